"""Block by block: the ordinary verdict, with one module's weights in memory at a time."""

import json

import pytest
import torch
from torch import nn

import lineage
from lineage import catalog, graph
from lineage.modules.model import build
from lineage.parity import blocks
from lineage.parity.blocks import streamed, verify_blocks
from lineage.parity.tiny import spread

NAMES = ("static", "bytes", "replay")


def verdicts(report):
    return {level.name: level.verdict for level in report.levels}


@pytest.mark.parametrize("kind", sorted(catalog.dialects()))
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


def real(model: nn.Module) -> int:
    """How many numbers of a model are in memory."""
    return sum(parameter.numel() for parameter in model.parameters() if not parameter.is_meta)


def largest(model: nn.Module) -> int:
    """The most that one module and those around it have of their own: all of these are being called at once."""
    own = {path: sum(p.numel() for p in one.parameters(recurse=False)) for path, one in model.named_modules()}
    return max(sum(own[other] for other in own if f"{path}.".startswith(f"{other}.")) for path in own)


@pytest.mark.parametrize("kind", ["llama", "bert", "mixtral"])  # bert's table is at both ends
def test_each_side_holds_one_module_at_a_time(tiny, kind, monkeypatch):
    sizes = []

    def counted(ours, theirs, *more):
        def count(*_: object) -> None:
            sizes.append((real(ours), real(theirs)))

        for module in (*ours.modules(), *theirs.modules()):
            module.register_forward_hook(count)
            module.register_forward_pre_hook(count)
        count()
        assert sizes[0] == (0, 0)
        found = run(ours, theirs, *more)
        assert max(size for size, _ in sizes) <= largest(ours)
        assert max(size for _, size in sizes) <= largest(theirs)
        count()
        assert sizes[-1] == sizes[0]
        return found

    run = blocks.trace
    monkeypatch.setattr(blocks, "trace", counted)
    assert verify_blocks(tiny(kind)).passed
    assert len({size for size, _ in sizes}) > 3
    assert len({size for _, size in sizes}) > 3


def test_the_heap_is_tidied_after_large_modules(tiny, monkeypatch):
    tidied = []
    monkeypatch.setattr(blocks, "_trim", lambda: tidied.append(1))
    assert verify_blocks(tiny("gpt2")).passed
    assert not tidied
    monkeypatch.setattr(blocks, "LARGE", 24 * 96 - 1)  # what the projections of a feed-forward network have
    assert verify_blocks(tiny("gpt2")).passed
    assert len(tidied) >= 3 * 2 * 3  # layers, projections; on either side, and again to replay them


def test_weights_are_in_memory_only_while_their_module_runs():
    spec = catalog.spec("llama", **catalog.families()["llama"].tiny)
    model, state, held = build(spec), spread(spec), []

    def count(*_: object) -> None:
        held.append(sum(not parameter.is_meta for parameter in model.parameters()))

    with streamed(model, state.__getitem__):
        for module in model.modules():
            module.register_forward_hook(count)
        with torch.no_grad():
            model(torch.arange(7)[None])
    assert len(held) > len(graph.tensors(spec))
    assert max(held) <= 1
    assert all(parameter.is_meta for parameter in model.parameters())
