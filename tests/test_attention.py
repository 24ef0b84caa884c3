"""Attention against loops written from the papers' formulas: head by head, query by query, key by key.

T tokens, H heads, W channels of one. Everything is in double precision.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.biases import slopes
from lineage.modules.context import Context
from lineage.modules.registry import make
from lineage.modules.rotary import table
from tests.judge import calls, spread_model
from tests.specimens import SPECIMENS, attention

TOKENS, WIDTH, NEAR = 13, 10, 1e-12
PADDED = torch.ones(3, TOKENS, dtype=torch.bool)
PADDED[0, -4:] = PADDED[1, :5] = False
Score = Callable[[int, int, int, int], float]  # of row, head, query, key
BACKENDS = pytest.mark.parametrize("backend", ["sdpa", "eager"])


def filled(spec: c.Component, width: int = WIDTH) -> nn.Module:
    module, generator = make(spec, width).double(), torch.Generator().manual_seed(4)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return module


def stream(rows: int = 3, tokens: int = TOKENS, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, tokens, WIDTH, generator=generator, dtype=torch.float64)


def run(module: nn.Module, x: Tensor, keep: Tensor | None, backend: str, **more: Any) -> Tensor:
    with torch.no_grad():
        return module(x, Context(torch.arange(x.shape[1])[None], keep, backend, **more))


def close(ours: Tensor, right: Tensor, keep: Tensor | None = None) -> bool:
    """At the positions that count."""
    gap = (ours - right).abs()
    return bool((gap if keep is None else gap[keep]).max() < NEAR)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return x @ layer.weight.data.T + (0 if layer.bias is None else layer.bias.data)


def loops(q: Tensor, k: Tensor, v: Tensor, scale: float, added: Score, sinks: Tensor | None = None) -> Tensor:
    """Softmax over keys, one query after the other. q, k, v: [B, T, H, W], of as many heads. added: -inf forbids."""
    rows, tokens, heads, _ = q.shape
    out = torch.zeros(rows, tokens, heads, v.shape[-1], dtype=torch.float64)
    for b in range(rows):
        for h in range(heads):
            for t in range(tokens):
                scores = [float(q[b, t, h] @ k[b, s, h]) * scale + added(b, h, t, s) for s in range(k.shape[1])]
                top = max(scores)
                shares = [math.exp(score - top) if top > -math.inf else 0.0 for score in scores]
                total = sum(shares) + (0.0 if sinks is None else math.exp(float(sinks[h]) - top))
                out[b, t, h] = sum(share / (total or 1.0) * v[b, s, h] for s, share in enumerate(shares))
    return out


def causal(keep: Tensor | None = None, seen: Callable[[int, int, int], bool] = lambda b, t, s: True) -> Score:
    def added(b: int, h: int, t: int, s: int) -> float:
        real = keep is None or bool(keep[b, s])
        return 0.0 if s <= t and real and seen(b, t, s) else -math.inf

    return added


def parts(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Queries, keys and values by head, keys and values repeated for each query's head."""
    spec = module.spec
    made = [linear(getattr(module, name), x).unflatten(-1, (-1, spec.head_width)) for name in "qkv"]
    return [part.repeat_interleave(spec.heads // part.shape[2], 2) for part in made]


def joined(module: nn.Module, out: Tensor) -> Tensor:
    return linear(module.o, out.flatten(2))


def test_slopes_are_those_of_the_paper() -> None:
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(8) == eight
    assert slopes(4) == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert slopes(6) == [*slopes(4), 1 / 2, 1 / 8]
    sixteen = [2 ** (-(i + 1) / 2) for i in range(16)]
    assert slopes(16) == pytest.approx(sixteen, rel=1e-15)
    assert slopes(11) == pytest.approx([*eight, sixteen[0], sixteen[2], sixteen[4]], rel=1e-15)
    assert slopes(1) == [1 / 256]


@BACKENDS
@pytest.mark.parametrize("heads", [6, 8])
@pytest.mark.parametrize("keep", [None, PADDED])
def test_alibi_is_linear_in_the_place_of_the_key(heads: int, keep: Tensor | None, backend: str) -> None:
    """Only distances count within a row, so that padding before a text changes nothing."""
    module = filled(attention(heads=heads, kv_heads=heads, head_width=4, position_bias=c.Alibi(scale=0.7)))
    x, by_head = stream(), slopes(heads)
    mask = causal(keep)
    right = loops(*parts(module, x), 0.5, lambda b, h, t, s: mask(b, h, t, s) + 0.7 * by_head[h] * (s - t))
    assert close(run(module, x, keep, backend), joined(module, right), keep)


@BACKENDS
def test_chunks_are_counted_from_the_first_token_that_is_no_padding(backend: str) -> None:
    module = filled(attention(head_width=4, mask=c.Chunked(length=4)))
    x, first = stream(), [0, 5, 0]
    mask = causal(PADDED, lambda b, t, s: (t - first[b]) // 4 == (s - first[b]) // 4)
    right = joined(module, loops(*parts(module, x), 0.5, mask))
    assert close(run(module, x, PADDED, backend), right, PADDED)
    alone = run(module, x[1:2, 5:], None, backend)
    assert close(alone, right[1:2, 5:])


@BACKENDS
def test_windows_reach_back_and_reaches_both_ways(backend: str) -> None:
    x = stream()
    module = filled(attention(head_width=4, mask=c.Causal(window=3)))
    right = loops(*parts(module, x), 0.5, causal(None, lambda b, t, s: t - s < 3))
    assert close(run(module, x, None, backend), joined(module, right))
    module = filled(attention(head_width=4, mask=c.Bidirectional(reach=3)))
    right = loops(*parts(module, x), 0.5, lambda b, h, t, s: 0.0 if abs(t - s) <= 3 and PADDED[b, s] else -math.inf)
    assert close(run(module, x, PADDED, backend), joined(module, right), PADDED)


@BACKENDS
def test_later_queries_are_hotter(backend: str) -> None:
    module = filled(attention(head_width=4, temperature=c.Temperature(scale=0.3, length=4.0)))
    x = stream()
    q, k, v = parts(module, x)
    for t in range(TOKENS):
        q[:, t] *= 1 + 0.3 * math.log(1 + (t + 1) // 4)
    assert close(run(module, x, None, backend), joined(module, loops(q, k, v, 0.5, causal())))


@BACKENDS
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_sinks_take_a_share_that_goes_nowhere(softcap: float | None, backend: str) -> None:
    module = filled(attention(head_width=4, sinks=True, mask=c.Causal(window=5), softcap=softcap))
    x, sinks = stream(), module.sinks.data
    q, k, v = parts(module, x)
    mask = causal(PADDED, lambda b, t, s: t - s < 5)
    if softcap is None:
        assert close(run(module, x, PADDED, backend), joined(module, loops(q, k, v, 0.5, mask, sinks)), PADDED)
    else:  # bent before the mask and the sink: the bent score is the whole of it
        bent = torch.einsum("bthw,bshw->bhts", q, k) * 0.5
        bent = softcap * torch.tanh(bent / softcap)
        added = lambda b, h, t, s: float(bent[b, h, t, s]) + mask(b, h, t, s)  # noqa: E731
        right = loops(torch.zeros_like(q), k, v, 1.0, added, sinks)
        assert close(run(module, x, PADDED, backend), joined(module, right), PADDED)


def normed(x: Tensor, eps: float, weight: Tensor | float, mean: bool) -> Tensor:
    """Over the last axis, by sums. mean: whether it is removed, as LayerNorm does."""
    count = x.shape[-1]
    x = x - x.sum(-1, keepdim=True) / count if mean else x
    return x / ((x * x).sum(-1, keepdim=True) / count + eps).sqrt() * weight


@BACKENDS
def test_each_head_has_a_norm_of_its_own(backend: str) -> None:
    tables = {name: c.LayerNorm(eps=0.1, bias=False, tables=n) for name, n in (("query_norm", 4), ("key_norm", 2))}
    module = filled(attention(head_width=4, **tables))
    x = stream()
    q, k, v = (linear(getattr(module, name), x).unflatten(-1, (-1, 4)) for name in "qkv")
    q = torch.stack([normed(q[:, :, h], 0.1, module.query_norm.weight.data[h], True) for h in range(4)], 2)
    k = torch.stack([normed(k[:, :, h // 2], 0.1, module.key_norm.weight.data[h // 2], True) for h in range(4)], 2)
    right = loops(q, k, v.repeat_interleave(2, 2), 0.5, causal())
    assert close(run(module, x, None, backend), joined(module, right))


@BACKENDS
def test_norms_of_all_heads_come_before_the_clip(backend: str) -> None:
    norm = c.RMSNorm(eps=0.1)
    module = filled(attention(head_width=4, query_norm=norm, key_norm=norm, joined=True, clip=0.4))
    x = stream()
    q, k = (
        normed(linear(getattr(module, n), x), 0.1, getattr(module, norm).weight.data, False)
        for n, norm in (("q", "query_norm"), ("k", "key_norm"))
    )
    q, k, v = (y.clamp(-0.4, 0.4).unflatten(-1, (-1, 4)) for y in (q, k, linear(module.v, x)))
    right = loops(q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2), 0.5, causal())
    assert close(run(module, x, None, backend), joined(module, right))


def turned(x: Tensor, place: int, theta: float) -> Tensor:
    """Neighbours turned by the place times their frequency (Su et al. 2021, eq. 34)."""
    out = x.clone()
    for p in range(x.shape[-1] // 2):
        angle = place * theta ** (-2 * p / x.shape[-1])
        a, b = x[..., 2 * p], x[..., 2 * p + 1]
        out[..., 2 * p] = a * math.cos(angle) - b * math.sin(angle)
        out[..., 2 * p + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


@BACKENDS
@pytest.mark.parametrize("small", [None, 6])
def test_latent_attention_head_by_head(small: int | None, backend: str) -> None:
    """DeepSeek-V2, eq. 9 to 19: each head has a key of its own, and a turned one that all share."""
    spec = c.LatentAttention(
        heads=3, query_latent=small, latent=5, plain=4, value_width=2, mask=c.Causal(), latent_norm=c.RMSNorm(eps=0.1),
        rotary=c.Rotary(theta=50.0, width=6, pairing="neighbours"), query_norm=c.RMSNorm(eps=0.2) if small else None,
        bias=small is not None,
    )  # fmt: skip
    module, x = filled(spec), stream()
    down = linear(module.kv_down, x)
    latent = normed(down[..., :5], 0.1, module.latent_norm.weight.data, False)
    source, up = x, module.q if small is None else module.q_up
    if small:
        source = normed(linear(module.q_down, x), 0.2, module.query_norm.weight.data, False)
    heads = []
    for h in range(3):
        q = source @ up.weight.data[h * 10 : (h + 1) * 10].T
        key = latent @ module.kv_up.weight.data[h * 6 : h * 6 + 4].T
        value = latent @ module.kv_up.weight.data[h * 6 + 4 : (h + 1) * 6].T
        q = torch.stack([torch.cat([q[:, t, :4], turned(q[:, t, 4:], t, 50.0)], -1) for t in range(TOKENS)], 1)
        k = torch.stack([torch.cat([key[:, t], turned(down[:, t, 5:], t, 50.0)], -1) for t in range(TOKENS)], 1)
        heads.append(loops(q[:, :, None], k[:, :, None], value[:, :, None], 10**-0.5, causal(PADDED)))
    assert close(run(module, x, PADDED, backend), joined(module, torch.cat(heads, 2)), PADDED)


@pytest.mark.parametrize("length", [6, 7])
def test_long_texts_have_factors_of_their_own(length: int) -> None:
    rope = c.LongRope(short=(1.0, 1.5, 2.0), long=(2.0, 4.0, 8.0), length=6, attention=1.1, long_attention=1.3)
    spec = c.Rotary(theta=50.0, width=6, scaling=rope)
    cos, sin = table(spec, torch.arange(length)[None], torch.float64, length)
    factors, factor = ((1.0, 1.5, 2.0), 1.1) if length == 6 else ((2.0, 4.0, 8.0), 1.3)
    for t in range(length):
        for p in range(3):
            angle = t / (factors[p] * 50.0 ** (2 * p / 6))
            assert cos[0, t, p] == pytest.approx(factor * math.cos(angle), abs=NEAR)
            assert sin[0, t, p] == pytest.approx(factor * math.sin(angle), abs=NEAR)


def bucket(ahead: int, buckets: int, distance: int, both_ways: bool) -> int:
    """Half of the buckets for one distance each, the rest in ranges that grow as powers (Raffel et al. 2020, §2.1)."""
    if both_ways:
        side = buckets // 2 if ahead > 0 else 0
        return side + bucket(-abs(ahead), buckets // 2, distance, False)
    back, single = max(-ahead, 0), buckets // 2
    if back < single:
        return back
    ends = [single * (distance / single) ** (i / (buckets - single)) for i in range(1, buckets - single)]
    return single + sum(back >= end - 1e-6 for end in ends)


@pytest.mark.parametrize(("buckets", "distance", "both_ways"), [(32, 128, True), (32, 128, False), (10, 17, True)])
def test_distances_fall_into_buckets(buckets: int, distance: int, both_ways: bool) -> None:
    module = filled(c.RelativeBias(buckets=buckets, distance=distance, heads=3, both_ways=both_ways))
    place = torch.arange(150)
    bias = module(place, place)
    assert bias.shape == (1, 3, 150, 150)
    for t, s in [(t, s) for t in (0, 70, 149) for s in range(150)]:
        assert torch.equal(bias[0, :, t, s], module.weight[bucket(s - t, buckets, distance, both_ways)])


@BACKENDS
def test_cross_attention_sees_the_source_that_is_no_padding(backend: str) -> None:
    module = filled(attention(head_width=4, mask=c.Bidirectional(), cross=True))
    x, source = stream(tokens=6), stream(seed=8)
    memory = Context(torch.arange(TOKENS)[None], PADDED, backend, hidden_BSD=source)
    q = parts(module, x)[0]
    _, k, v = parts(module, source)
    right = loops(q, k, v, 0.5, lambda b, h, t, s: 0.0 if PADDED[b, s] else -math.inf)
    assert close(run(module, x, None, backend, memory=memory), joined(module, right))


@pytest.mark.parametrize("name", SPECIMENS)
def test_both_ways_to_attend_agree(name: str) -> None:
    model, found = spread_model(SPECIMENS[name]), {}
    for call in calls(model.spec)[:3]:
        for backend in ("sdpa", "eager"):
            model.attention = backend
            with torch.no_grad():
                output = model(**call.arguments())
                found[backend] = output.logits if output.logits is not None else output.scores
        each = found["sdpa"].dim() == 3 and not model.spec.encoder  # else there is no result for each of the tokens
        keep = call.keep_BT if each else None
        assert close(found["sdpa"] / 10, found["eager"] / 10, keep)
