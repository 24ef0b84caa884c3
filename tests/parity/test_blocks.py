"""Block by block: the ordinary verdict, with one module's weights in memory at a time."""

import json

import pytest
import torch
from torch import nn

import lineage
from lineage import catalog, graph
from lineage.modules.model import build
from lineage.parity import blocks
from lineage.parity.blocks import Store, Streamed, verify_blocks
from lineage.parity.tiny import spread
from tests.published import JUDGED

NAMES = ("static", "bytes", "replay")


def verdicts(report):
    return {level.name: level.verdict for level in report.levels}


@pytest.mark.parametrize("kind", JUDGED)
def test_honest_model_gets_the_ordinary_verdict(tiny, kind):
    report = verify_blocks(tiny(kind))
    assert report.passed, report.lines()
    ordinary = lineage.verify(tiny(kind), only=NAMES)
    assert verdicts(report) == verdicts(ordinary)
    ours = {node["ours"] for node in ordinary.nodes if node["ours"]}
    assert {node["ours"] for node in report.nodes} == ours


@pytest.fixture
def one_block_off(tiny):
    """A converted directory whose record claims another activation in one of its blocks."""
    directory = tiny("gpt2", table_scale=0.5)
    manifest = json.loads((directory / "lineage.json").read_text())
    (run,) = manifest["spec"]["blocks"]
    block = json.dumps(run["of"])
    manifest["spec"]["blocks"] = [json.loads(one) for one in (block, block.replace('"gelu_new"', '"relu"'), block)]
    (directory / "lineage.json").write_text(json.dumps(manifest))
    return directory


def test_changed_block_is_named(one_block_off):
    report = verify_blocks(one_block_off)
    assert report.exit_code == 3
    assert [node["ours"] for node in report.guilty] == ["blocks.1.mlp.body.act"]
    ordinary = lineage.verify(one_block_off, only=NAMES)
    assert verdicts(report) == verdicts(ordinary)
    assert [node["ours"] for node in ordinary.guilty] == ["blocks.1.mlp.body.act"]


def test_flipped_bit_is_seen(tiny):
    directory = tiny("gpt2", table_scale=0.6)
    file = directory / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-4] ^= 1
    file.write_bytes(raw)
    assert verdicts(verify_blocks(directory))["bytes"] == "failed"


def held(store):
    """How many numbers of a model are in memory."""
    return sum(tensor.numel() for tensor in store.held.values())


def largest(model: nn.Module) -> int:
    """The most that one module has of its own."""
    return max(sum(p.numel() for p in one.parameters(recurse=False)) for one in model.modules())


@pytest.mark.parametrize("kind", ["llama", "bert", "mixtral", "bart"])  # bert's table is at both ends, bart's at three
def test_each_side_holds_one_module_at_a_time(tiny, kind, monkeypatch):
    stores, sizes = [], []

    class Counted(Store):
        def __init__(self, model, *more):
            stores.append((self, largest(model), len({id(p) for p in model.parameters()})))
            super().__init__(model, *more)
            assert all(type(p) is Streamed for p in model.parameters())

        def get(self, name):
            found = super().get(name)
            sizes.append((self, name, held(self)))
            return found

    monkeypatch.setattr(blocks, "Store", Counted)
    assert verify_blocks(tiny(kind)).passed
    assert len(stores) == 2
    assert stores[0][0].held is stores[1][0].held  # nor both at once
    for store, most, count in stores:
        mine = [(name, size) for one, name, size in sizes if one is store]
        assert max(size for _, size in mine) <= most
        assert len({name for name, _ in mine}) >= 0.9 * count
        assert held(store) == 0


def test_the_heap_is_tidied_after_large_modules(tiny, monkeypatch):
    tidied = []
    monkeypatch.setattr(blocks, "_trim", lambda: tidied.append(1))
    assert verify_blocks(tiny("gpt2")).passed
    assert not tidied
    monkeypatch.setattr(blocks, "LARGE", 24 * 96 - 1)  # what the projections of a feed-forward network have
    assert verify_blocks(tiny("gpt2")).passed
    assert len(tidied) >= 3 * 2 * 3  # layers, projections; on either side, and again to replay them


def test_a_parameter_is_fetched_when_it_is_computed_with():
    spec = catalog.spec("llama", **catalog.families()["llama"].tiny)
    model, state, asked = build(spec), spread(spec), []

    def fetch(name):
        asked.append(name)
        return state[name]

    held = {}
    Store(model, fetch, held)
    table = model.get_parameter("embed.tokens.weight")
    assert (table.shape, table.device.type, table.dtype) == (state["embed.tokens.weight"].shape, "cpu", torch.float32)
    with torch._C.DisableTorchFunctionSubclass():
        assert {p.untyped_storage().nbytes() for p in model.parameters()} == {4}
    assert asked == []
    assert torch.equal(table + 0, state["embed.tokens.weight"])
    assert torch.equal(torch.cat([table, table]), torch.cat([state["embed.tokens.weight"]] * 2))
    assert asked == ["embed.tokens.weight"]
    with torch.no_grad():
        logits = model(torch.arange(7)[None]).logits
        right = build(spec, "cpu")
        right.load_state_dict(state)
        assert torch.equal(logits, right(torch.arange(7)[None]).logits)
    assert set(asked) == set(graph.tensors(spec))
    assert len(asked) <= len(state) + 1
    assert [name for _, name in held] == ["head.weight"]
