"""Every way to attend gives one result: with caches, windows, chunks, soft caps, sinks, biases, padding, two stacks."""

import pytest
import torch
from torch import nn

from lineage import catalog
from lineage.errors import UsageError
from lineage.modules import backends
from lineage.modules.cache import Cache
from lineage.modules.model import Model, build
from lineage.parity.tiny import spread, tiny

KINDS = ["gpt2", "llama", "mistral", "gemma2", "gpt_oss", "bloom", "llama4_text", "deepseek_v3", "bert", "bart", "t5"]
LENGTH = 20


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention's own formula: the same mask and score functions, in double precision, without a compiler."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(backends, "_compiled", lambda device: flex_attention)


def made(kind: str) -> Model:
    _, dialect, chosen = tiny(kind)
    spec = catalog.families()[dialect.spec].function(**chosen)
    model = build(spec, "cpu", torch.float64)
    model.load_state_dict({name: tensor.double() for name, tensor in spread(spec).items()})
    return model.requires_grad_(False)


def result(model: Model, ids: torch.Tensor, **given: torch.Tensor | Cache | None) -> torch.Tensor:
    if model.spec.encoder is not None:
        given = {f"decoder_{name}" if name == "attention_mask" else name: value for name, value in given.items()}
        given |= {"decoder_input_ids": ids, "attention_mask": torch.tensor([[1] * 9, [1] * 5 + [0] * 4])}
        ids = torch.arange(7, 16).expand(2, 9)
    return model(ids, **given).hidden


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_to_attend_agree(kind: str) -> None:
    model = made(kind)
    ids = torch.randint(7, 90, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    keep = torch.ones_like(ids)
    keep[0, :6] = 0
    for mask in (None, keep):
        found = {}
        for model.attention in ("sdpa", "eager", "flex"):
            pieces = [result(model, ids, attention_mask=mask)]
            if kind != "bert" and mask is None:
                cache = Cache(model.spec, 40, fixed=True)
                pieces += [result(model, piece, cache=cache) for piece in ids.split([11, 1, 1, 7], 1)]
            found[model.attention] = torch.cat(pieces, 1)
        rows = torch.ones_like(ids).bool() if mask is None else keep.bool()
        rows = torch.cat([rows] * (found["sdpa"].shape[1] // LENGTH), 1)
        for name in ("sdpa", "flex"):
            gap = (found[name] - found["eager"])[rows].abs().max()
            assert gap <= 1e-11 * found["eager"][rows].abs().max(), name


def test_a_way_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def mine(*given: object) -> torch.Tensor:
        seen.append(given)
        return backends.sdpa(*given)  # type: ignore[arg-type]

    monkeypatch.setitem(backends.BACKENDS, "mine", mine)
    model = made("llama")
    want = model(torch.arange(9)[None]).hidden
    model.attention = "mine"
    assert torch.equal(model(torch.arange(9)[None]).hidden, want)
    assert len(seen) == len(model.blocks)


def test_an_unknown_way_is_refused() -> None:
    model = made("llama")
    model.attention = "flash"
    with pytest.raises(UsageError, match=r"'flash' is not one of sdpa, eager, flex"):
        model(torch.arange(9)[None])


def test_heads_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is given as few keys as there are, and for one new token no mask."""
    calls: list[tuple[torch.Size, torch.Size, object]] = []
    usual = nn.functional.scaled_dot_product_attention

    def seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
        calls.append((q.shape, k.shape, options["attn_mask"]))
        return usual(q, k, v, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", seen)
    model = made("llama")
    body, cache = model.spec.blocks[0].attention.body, Cache(model.spec, 40)
    for piece in torch.arange(7, 18)[None].split([10, 1], 1):
        model(piece, cache=cache)
    groups = body.heads // body.kv_heads
    assert calls[0][1:] == (torch.Size([1, body.kv_heads, 10, body.head_width]), None)
    one = torch.Size([1, body.kv_heads, groups, body.head_width])
    assert calls[-1] == (one, torch.Size([1, body.kv_heads, 11, body.head_width]), None)


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "gradients"])
def test_flex_on_a_cpu_is_sdpa(kind: str, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the compiled kernel, as users have it
    model = made(kind).requires_grad_(gradients)
    ids = torch.randint(7, 90, (2, LENGTH), generator=torch.Generator().manual_seed(8))
    want = result(model, ids)
    model.attention = "flex"
    assert torch.equal(result(model, ids), want)
