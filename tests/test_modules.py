"""Experts, both ends of a model and its blocks against slow loops written from the papers' formulas.

N tokens, D width, E experts. Everything is in double precision unless a rounding is the question.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lineage import components as c
from lineage.modules.context import Context
from lineage.modules.experts import mix
from tests.judge import spread_model
from tests.specimens import LAYER, RMS, attention, block, dense, experts, model
from tests.test_attention import WIDTH, close, filled, linear, normed, run, stream

ROUTED = stream(2, 9).flatten(0, 1)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softmax(scores: Sequence[float]) -> list[float]:
    shares = [math.exp(score - max(scores)) for score in scores]
    return [share / sum(shares) for share in shares]


def largest(scores: Sequence[float], count: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:count]


def chosen(module: Any, x: Tensor) -> list[dict[int, float]]:
    """What the router gives, as expert -> weight for each token."""
    with torch.no_grad():
        _, weights, numbers = module(x)
    return [dict(zip(n.tolist(), w.tolist(), strict=True)) for n, w in zip(numbers, weights, strict=True)]


def check(module: Any, right: list[dict[int, float]]) -> None:
    for found, wanted in zip(chosen(module, ROUTED), right, strict=True):
        assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("normalise", ["none", "sum", "softmax", "sigmoid"])
def test_router_scores_chooses_and_normalises(score: str, normalise: str) -> None:
    module = filled(c.Router(experts=5, top_k=3, score=score, normalise=normalise, bias=True, scale=1.7, eps=0.3))
    right = []
    for x in ROUTED:
        logits = (module.weight.data @ x + module.bias.data).tolist()
        scores = {"softmax": softmax(logits), "sigmoid": [*map(sigmoid, logits)], "none": logits}[score]
        best = largest(scores, 3)
        weights = [scores[e] for e in best]
        weights = {
            "none": weights, "sum": [w / (sum(weights) + 0.3) for w in weights],
            "softmax": softmax(weights), "sigmoid": [*map(sigmoid, weights)],
        }[normalise]  # fmt: skip
        right.append({e: 1.7 * w for e, w in zip(best, weights, strict=True)})
    check(module, right)


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("correction", [True, False])
def test_only_the_best_groups_are_open(pair: bool, correction: bool) -> None:
    """A correction moves the choice of groups and experts, and no weight; it may be so low that all is below zero."""
    groups = c.Groups(count=4, keep=2, pair=pair)
    module = filled(
        c.Router(experts=12, top_k=4, score="sigmoid", normalise="sum", correction=correction, groups=groups)
    )
    low = torch.zeros(12, dtype=torch.float64)
    if correction:
        module.correction.data = low = module.correction.data - 2
    right = []
    for x in ROUTED:
        scores = [*map(sigmoid, (module.weight.data @ x).tolist())]
        by = [score + shift for score, shift in zip(scores, low.tolist(), strict=True)]
        worth = [sum(sorted(by[g * 3 : g * 3 + 3])[-(2 if pair else 1) :]) for g in range(4)]
        opened = largest(worth, 2)
        best = sorted((e for e in range(12) if e // 3 in opened), key=lambda e: -by[e])[:4]
        total = sum(scores[e] for e in best)
        right.append({e: scores[e] / total for e in best})
    check(module, right)


@pytest.mark.parametrize("top_k", [2, 3])
@pytest.mark.parametrize("shift", [0.0, -5.0])
def test_mixer_takes_one_expert_after_the_other(top_k: int, shift: float) -> None:
    """GRIN, §2: those further from the best than 2 · jitter, relative to the larger of best and own size, are out."""
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + shift
    weights, numbers = mix(logits, top_k, 0.2)
    for row, found, order in zip(logits.tolist(), weights.tolist(), numbers.tolist(), strict=True):
        left = dict(enumerate(row))
        for weight, number in zip(found, order, strict=True):
            best = max(left, key=left.__getitem__)
            near = {e for e in left if (left[best] - row[e]) / max(abs(row[e]), left[best]) <= 0.4}
            shares = {e: math.exp(row[e] - left[best]) for e in near}
            assert number == best
            assert weight == pytest.approx(shares[best] / sum(shares.values()), abs=1e-12)
            del left[best]


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def one_expert(module: Any, e: int, x: Tensor) -> Tensor:
    """One expert's result for one token."""
    spec = module.spec

    def mapped(name: str, y: Tensor) -> Tensor:
        out = getattr(module, name).data[e] @ y
        return out + getattr(module, f"{name}_bias").data[e] if spec.bias else out

    up = mapped("up", x)
    if not spec.gated:
        return mapped("down", up.clamp(min=0) ** 2)
    gate = mapped("gate", x)
    if spec.clamp is None:
        return mapped("down", silu(gate) * up)
    gate, up = gate.clamp(max=spec.clamp.limit), up.clamp(-spec.clamp.limit, spec.clamp.limit)
    return mapped("down", (up + 1) * gate / (1 + torch.exp(-spec.clamp.slope * gate)))


MIXTURES = {
    "gated": experts({}),
    "biased": experts({}, bias=True),
    "ungated": experts({}, gated=False, activation="relu2", bias=True),
    "clamped": experts({}, clamp=c.Clamp(limit=0.3, slope=1.7), bias=True),
    "early": experts({"score": "none", "normalise": "sigmoid"}, early=True),
    "shared": experts({"scale": 1.5}, shared=dense(6, bias=True)),
    "shared behind a gate": experts({}, shared=dense(6), shared_gate=True, early=True),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_token_by_token(name: str) -> None:
    module, x = filled(MIXTURES[name]), stream(2, 9)
    right = torch.zeros_like(x).flatten(0, 1)
    for n, weights in enumerate(chosen(module.router, ROUTED)):
        for e, weight in weights.items():
            if module.spec.early:
                right[n] += one_expert(module, e, weight * ROUTED[n])
            else:
                right[n] += weight * one_expert(module, e, ROUTED[n])
        if module.shared is not None:
            gate = linear(module.shared.gate, ROUTED[n])
            out = linear(module.shared.down, silu(gate) * linear(module.shared.up, ROUTED[n]))
            share = sigmoid(float(module.shared_gate.weight.data[0] @ ROUTED[n])) if module.spec.shared_gate else 1
            right[n] += share * out
    with torch.no_grad():
        assert close(module(x), right.view_as(x))


def test_an_expert_takes_so_many_tokens_of_a_row() -> None:
    module, x = filled(experts({"top_k": 1, "capacity": 2, "normalise": "none"})), stream(2, 9)
    right = torch.zeros_like(x).flatten(0, 1)
    taken: dict[tuple[int, int], int] = {}
    for n, weights in enumerate(chosen(module.router, ROUTED)):
        ((e, weight),) = weights.items()
        taken[n // 9, e] = taken.get((n // 9, e), 0) + 1
        if taken[n // 9, e] <= 2:
            right[n] = weight * one_expert(module, e, ROUTED[n])
    with torch.no_grad():
        assert close(module(x), right.view_as(x))


# Both ends

IDS = torch.tensor([[4, 1, 6, 3, 0], [2, 2, 5, 7, 8]])
KEEP = torch.tensor([[True, True, True, False, False], [False, False, True, True, True]])


def looked_up(spec: c.Embed, ids: Tensor = IDS, **more: Any) -> tuple[Any, Tensor]:
    module = filled(spec)
    with torch.no_grad():
        return module, module(ids, **more)


def test_positions_count_what_the_mask_keeps() -> None:
    spec = c.Embed(vocab=9, width=4, positions=c.LearnedPositions(length=8, ids=c.SkipMasked(offset=2)))
    module, found = looked_up(spec, keep_BT=KEEP)
    rows = torch.tensor([[2, 3, 4, 1, 1], [1, 1, 2, 3, 4]])
    assert close(found, module.tokens.weight.data[IDS] + module.positions.weight.data[rows])
    module, found = looked_up(spec)
    assert close(found, module.tokens.weight.data[IDS] + module.positions.weight.data[torch.arange(5) + 2])


def test_positions_skip_the_padding_token() -> None:
    spec = c.Embed(vocab=9, width=4, positions=c.LearnedPositions(length=9, ids=c.SkipPadding(pad=2)))
    module, found = looked_up(spec)
    rows = torch.tensor([[3, 4, 5, 6, 7], [2, 2, 3, 4, 5]])
    assert close(found, module.tokens.weight.data[IDS] + module.positions.weight.data[rows])


@pytest.mark.parametrize("early", [True, False])
def test_projection_comes_before_what_is_added_or_after_the_norm(early: bool) -> None:
    spec = c.Embed(
        vocab=9, width=4, positions=c.LearnedPositions(length=5), segments=c.Segments(count=2), norm=LAYER, scale=1.7,
        projection=c.Projection(width=6, bias=True), early=early,
    )  # fmt: skip
    module, found = looked_up(spec, segments_BT=(IDS > 4).long())
    tokens = 1.7 * module.tokens.weight.data[IDS]
    x = linear(module.projection.dense, tokens) if early else tokens
    x = x + module.segments.weight.data[(IDS > 4).long()] + module.positions.weight.data[:5]
    x = normed(x, 1e-3, module.norm.weight.data, True) + module.norm.bias.data
    assert close(found, x if early else linear(module.projection.dense, x))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("width", [8, 7])
def test_sinusoids_by_the_formula(apart: bool, closed: bool, width: int) -> None:
    """Vaswani et al. 2017, §3.5; closed: the last frequency is 1/10000 itself."""
    spec = c.Embed(vocab=9, width=width, positions=c.Sinusoids(apart=apart, closed=closed, single=False))
    module, found = looked_up(spec)
    sines, cosines = (width + 1) // 2, width // 2
    half = cosines if closed else width / 2
    waves = [10000 ** (-p / (half - 1 if closed else half)) for p in range(sines)]
    for t in range(5):
        pairs = [(math.sin(t * wave), math.cos(t * wave)) for wave in waves]
        if closed and width % 2:
            pairs[-1] = (0.0, 0.0)  # a channel without a pair
        row = [sine for sine, _ in pairs] + [cosine for _, cosine in pairs] if apart else [y for p in pairs for y in p]
        if width % 2 and apart:
            row = row[:cosines] + row[sines : sines + cosines] + [0.0] if closed else row[:width]
        added = (found - module.tokens.weight.data[IDS])[:, t]
        assert close(added, torch.tensor(row[:width], dtype=torch.float64).expand_as(added))


def test_the_row_of_a_skipped_token_is_zero() -> None:
    module, found = looked_up(c.Embed(vocab=9, width=4, positions=c.Sinusoids(ids=c.SkipPadding(pad=2))))
    added = found - module.tokens.weight.data[IDS]
    assert torch.equal(added[1, :2], torch.zeros(2, 4, dtype=torch.float64))
    assert added[1, 2].tolist() == pytest.approx([math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)], abs=1e-7)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_head_narrows_scales_and_bends(late: bool, early: bool) -> None:
    narrow = c.Projection(width=4, bias=True)
    spec = c.Head(vocab=7, tied=False, bias=True, late=late, projection=narrow, scale=0.3, early=early, softcap=2.0)
    module, x = filled(spec), stream(2, 5)
    bias = module.bias.data / (0.3 if early else 1.0)  # scaled before it is added, it is not
    logits = 0.3 * (linear(module.projection.dense, x) @ module.weight.data.T + bias)
    with torch.no_grad():
        assert close(module(x, torch.zeros(7, 4)), 2 * torch.tanh(logits / 2))


# Blocks


def in_block(spec: c.Block, x: Tensor) -> tuple[Any, Tensor]:
    module = filled(spec)
    return module, run(module, x, None, "sdpa")


def test_branches_are_scaled_and_may_be_added_to_the_normed_stream() -> None:
    x = stream(2, 5)
    spec = block(attention(), attention={"scale": 0.4, "normed": True}, mlp={"scale": 0.6, "norm_sum": LAYER})
    module, found = in_block(spec, x)
    read = normed(x, 1e-3, module.attention.norm_input.weight.data, False)
    x = read + 0.4 * run(module.attention.body, read, None, "eager")
    read = normed(x, 1e-3, module.mlp.norm_input.weight.data, False)
    with torch.no_grad():
        x = x + 0.6 * module.mlp.body(read)
    norm = module.mlp.norm_sum
    assert close(found, normed(x, 1e-3, norm.weight.data, True) + norm.bias.data)


@pytest.mark.parametrize("stream_first", [True, False])
def test_parallel_branches_read_one_norm(stream_first: bool) -> None:
    x, none = stream(2, 5), {"norm_input": None}
    spec = block(attention(), attention=none, mlp=none, parallel=True, norm_input=RMS, stream_first=stream_first)
    module, found = in_block(spec, x)
    read = normed(x, 1e-3, module.norm_input.weight.data, False)
    with torch.no_grad():
        right = x + run(module.attention.body, read, None, "eager") + module.mlp.body(read)
    assert close(found, right)


def test_blocks_run_in_their_order() -> None:
    spec = model(block(), block(), order=(1, 0, 0))
    made, ids = spread_model(spec), IDS
    with torch.no_grad():
        x, context = made.embed(ids), Context(torch.arange(5)[None])
        for place in (1, 0, 0):
            x = made.blocks[place](x, context)
        assert close(made(ids).hidden, made.norm(x))


def test_norms_may_be_bare() -> None:
    bare = filled(c.LayerNorm(eps=0.1, weight=False, bias=False), WIDTH)
    assert close(bare(stream()), normed(stream(), 0.1, 1.0, True))
    bare = filled(c.RMSNorm(eps=0.1, weight=False), WIDTH)
    assert close(bare(stream()), normed(stream(), 0.1, 1.0, False))
