"""What makes the modules fast, without a clock: nothing is copied, repeated, looped over or computed in vain."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn

import lineage
from lineage import catalog, count, graph
from lineage.errors import UsageError
from lineage.modules import experts
from lineage.modules.cache import Cache
from lineage.modules.fusing import fuse, part
from lineage.modules.model import Model, build
from lineage.parity.activations import record
from lineage.parity.tiny import spread, tiny, write_tiny
from tests.test_generation import KINDS, given
from tests.test_walls import SOURCES, code_lines

LLAMA = ("linear", "model", "block", "attention", "feed_forward", "norm", "rotary", "cache")


def made(kind: str, dtype: torch.dtype = torch.float64, **arguments: object) -> Model:
    _, dialect, chosen = tiny(kind, **arguments)
    spec = catalog.families()[dialect.spec].function(**chosen)
    model = build(spec, "cpu", dtype)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in spread(spec).items()})
    return model


IDS = torch.randint(5, 40, (2, 12), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_is_as_large_as_params_says(kind: str) -> None:
    model = made(kind, torch.float32)
    for length in (12, 64):
        cache = Cache(model.spec, length, fixed=True)
        with torch.no_grad():
            model(**given(model, IDS), cache=cache)
        crossing = sum(x.numel() * x.element_size() for pair in cache.cross.values() for x in pair)
        assert cache.size - crossing == count.kept(model.spec, length, batch=2, kind="fp32")


@pytest.mark.parametrize("kind", KINDS)
def test_fused_products_give_the_same_and_come_apart_again(kind: str) -> None:
    model = made(kind).requires_grad_(False)
    want, before = model(**given(model, IDS)).logits, {name: x.clone() for name, x in model.state_dict().items()}
    fused = fuse(model)
    assert len(fused.state_dict()) < len(before)
    assert (fused(**given(model, IDS)).logits - want).abs().max() <= 1e-12 * want.abs().max()
    after = part(fused).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert graph.tensors(model.spec) == {name: tuple(x.shape) for name, x in model.named_parameters()}


def test_a_fused_model_is_verified_in_its_parts(tmp_path: Path) -> None:
    source = write_tiny("llama", tmp_path / "source")
    lineage.convert(str(source), tmp_path / "out", verify=False)
    fused = lineage.from_pretrained(tmp_path / "out", fused=True)
    assert "blocks.0.attention.body.qkv.weight" in fused.state_dict()
    assert lineage.verify(fused, only=["bytes", "replay"]).passed


def test_weights_are_not_copied_out_of_their_file(tmp_path: Path) -> None:
    source = write_tiny("llama", tmp_path / "source")
    lineage.convert(str(source), tmp_path / "out", verify=False)
    for place in (source, tmp_path / "out"):
        model = lineage.from_pretrained(place)
        size = (place / "model.safetensors").stat().st_size
        storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        first = min(parameter.data_ptr() for parameter in model.parameters())
        last = max(parameter.data_ptr() + parameter.nbytes for parameter in model.parameters())
        assert last - first <= size, "all of them lie within one file"
        assert storages
        bytes_before = (place / "model.safetensors").read_bytes()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert (place / "model.safetensors").read_bytes() == bytes_before


@pytest.mark.parametrize(
    ("family", "kept", "copied"),
    [
        ("gpt2", "blocks.1.mlp.body.up.weight", "blocks.1.mlp.body.down.weight"),
        ("mixtral", "blocks.1.mlp.body.down", ""),
    ],
)
def test_what_a_file_holds_in_another_order_stays_where_a_product_reads_it_as_well(
    family: str, kept: str, copied: str, tmp_path: Path
) -> None:
    """Turned matrices with more rows than columns, and experts one by one; it computes, learns, moves and is saved."""
    source = write_tiny(family, tmp_path / "source")
    lineage.convert(str(source), tmp_path / "out", verify=False)
    straight, usual = lineage.from_pretrained(source), lineage.from_pretrained(tmp_path / "out")
    size = (source / "model.safetensors").stat().st_size
    owned = dict(straight.named_parameters())
    assert not owned[kept].is_contiguous()
    assert abs(owned[kept].data_ptr() - straight.embed.tokens.weight.data_ptr()) < size
    assert not copied or owned[copied].is_contiguous()
    assert all(torch.equal(one, usual.get_parameter(name)) for name, one in owned.items())
    ids = torch.arange(6, 22).view(2, 8)
    bytes_before = (source / "model.safetensors").read_bytes()
    for model in (straight, usual):
        torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten()).backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert (source / "model.safetensors").read_bytes() == bytes_before
    for name, one in owned.items():
        torch.testing.assert_close(one, usual.get_parameter(name), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(straight.double()(ids).logits, usual.double()(ids).logits, rtol=1e-3, atol=1e-4)
    assert all(one.is_contiguous() for one in lineage.from_pretrained(source, dtype="bf16").parameters())
    save_model(straight, str(tmp_path / "saved.safetensors"))
    assert load_file(tmp_path / "saved.safetensors").keys() == dict(straight.state_dict()).keys()


def test_experts_in_low_precision_stay_in_their_file(tmp_path: Path) -> None:
    source = write_tiny("mixtral", tmp_path / "source")
    tensors = {name: one.bfloat16() for name, one in load_file(source / "model.safetensors").items()}
    save_file(tensors, source / "model.safetensors")
    model = lineage.from_pretrained(source)
    size = (source / "model.safetensors").stat().st_size
    assert model.head.weight.dtype == torch.bfloat16
    first = min(parameter.data_ptr() for parameter in model.parameters())
    last = max(parameter.data_ptr() + parameter.nbytes for parameter in model.parameters())
    assert last - first <= size
    assert not model.get_parameter("blocks.1.mlp.body.down").is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("inner", "outer"), [(16, 24), (10, 7)])
def test_rows_by_their_experts_with_gradients(dtype: torch.dtype, inner: int, outer: int) -> None:
    draw = torch.Generator().manual_seed(1)
    x, w = torch.randn(9, inner, generator=draw), torch.randn(5, outer, inner, generator=draw)
    ends = torch.tensor([0, 3, 3, 8, 9])
    found, want = [], []
    for run, results in ((experts.grouped, found), (_one_by_one, want)):
        rows, weights = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
        out = run(rows, weights, ends)
        (out * out.detach()).sum().backward()
        results += [out.detach(), rows.grad, weights.grad]
    near = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for ours, right in zip(found, want, strict=True):
        assert (ours - right).abs().max() <= near * right.abs().max()


def _one_by_one(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    owner = np.searchsorted(ends.numpy(), np.arange(len(x)), side="right")
    return torch.stack([w[int(expert)] @ row for row, expert in zip(x, owner, strict=True)])


def test_experts_are_no_loop_over_experts_or_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number of products for any number of experts and tokens."""
    calls: list[str] = []
    usual = nn.functional.grouped_mm
    monkeypatch.setattr(nn.functional, "grouped_mm", lambda *a, **k: calls.append("grouped") or usual(*a, **k))
    for number in (4, 8):
        for ids in (IDS, IDS[:1, :1]):
            calls.clear()
            made("mixtral", torch.float32, experts=number)(ids)
            assert len(calls) == 3 * 3, "gate, up and down of three layers"


def test_logits_of_the_last_position_alone() -> None:
    model = made("llama")
    whole = model(IDS).logits
    calls = record(model, {"input_ids": IDS, "last": 1}).calls
    assert calls["head"].inputs[0].shape[1] == 1
    assert (calls["head"].output - whole[:, -1:]).abs().max() <= 1e-12 * whole.abs().max()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "mixtral"])
def test_activations_under_both_names(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    write_tiny(kind, tmp_path)
    ours = lineage.from_pretrained(tmp_path, dtype="fp32")
    loader = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    theirs = loader.from_pretrained(tmp_path, dtype=torch.float32).eval()
    recorded = record(theirs, {"input_ids": IDS}).calls
    with torch.no_grad(), lineage.trace(ours, names="hf") as found:
        ours(IDS)
    compared = 0
    for name, value in found.items():
        path, entry = name.removesuffix(":input"), name.endswith(":input")
        if path in recorded and not (kind == "mixtral" and "mlp" in path):
            want = recorded[path].inputs[0] if entry else recorded[path].output
            assert (value.reshape(want.shape) - want).abs().max() <= 1e-4 * want.abs().max(), name
            compared += 1
    assert compared > 12
    with torch.no_grad(), lineage.trace(ours, "blocks.*.attention.body.product") as found:
        ours(IDS)
    assert sorted(found) == [f"blocks.{i}.attention.body.product" for i in range(len(ours.blocks))]


def test_a_trace_leaves_nothing_behind() -> None:
    model = made("llama")
    with pytest.raises(RuntimeError, match="mine"), lineage.trace(model):
        raise RuntimeError("mine")
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("patterns", "names", "part"), [((), "tl", "'tl'"), (("layers.*",), "lineage", "layers"), ((), "hf", "public")]
)
def test_a_trace_of_what_is_not_there(patterns: tuple[str, ...], names: str, part: str) -> None:
    with pytest.raises(UsageError, match=part), lineage.trace(made("llama"), *patterns, names=names):
        pass


def test_the_whole_path_of_a_llama_is_short() -> None:
    """Counted as the engine is (docs/decisions/005): what holds code, prose apart. Scaled angles are not in it."""
    assert sum(code_lines(SOURCES[f"lineage/modules/{name}.py"]) for name in LLAMA) < 500
