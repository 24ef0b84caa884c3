"""Lines of descent: the family tree, a model's place on it, and ways from design to design whose every step runs."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from lineage.cli import cli

import lineage
from lineage import catalog, graph, lines
from lineage.design import compare
from lineage.errors import UsageError
from lineage.lines import Branch
from lineage.modules.model import build
from lineage.render import comparison
from tests.published import DIALECTS

Golden = Callable[[str, str], None]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def every(roots: list[Branch]) -> Iterator[Branch]:
    for root in roots:
        yield root
        yield from every(root.children)


def test_tree_holds_every_family_and_public_type_once() -> None:
    roots = lines.tree()
    found = list(every(roots))
    assert sorted(branch.name for branch in found if branch.year) == sorted(catalog.families())
    assert sorted(branch.name for branch in found if not branch.year) == DIALECTS
    assert [root.name for root in roots] == ["transformer"]
    for branch in found:
        for child in branch.children:
            if child.year:
                assert catalog.families()[child.name].parent == branch.name
                assert child.year >= branch.year
                assert child.changes, f"{child.name} is what its parent is"


def test_labels_of_edges_are_the_diff() -> None:
    labels = {branch.name: branch.changes for branch in every(lines.tree()) if branch.year}
    assert labels["gpt2"] == ("norm before each branch", "final norm")
    assert labels["llama"] == ("RMSNorm, eps 1e-06", "rotary, θ 10,000", "SwiGLU", "no biases", "head untied")
    assert labels["qwen3"] == tuple(row.label for row in lineage.diff("llama", "qwen3").design)
    diff = compare(lineage.spec("gpt2"), catalog.families()["bert"].function())
    assert "no final norm" in [row.label for row in diff.design]


def test_tree_is_printed() -> None:
    whole = run("tree")
    assert whole.exit_code == 0
    assert [line for line in whole.output.splitlines() if len(line) > 80] == []
    assert all(name in whole.output for name in (*catalog.families(), *DIALECTS))
    part = run("tree", "llama").output
    assert part.startswith("llama 2023")
    assert "bert" not in part
    chart = run("tree", "--format", "mermaid").output
    assert 'r0["transformer 2017"]' in chart
    data = json.loads(run("tree", "--json").output)
    assert (data["schema"], data["roots"][0]["name"], data["roots"][0]["year"]) == (
        "lineage.tree/1",
        "transformer",
        2017,
    )
    assert data == json.loads(run("tree", "--format", "json").output)


def test_family_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'lama'. Did you mean 'llama'"):
        lines.tree("lama")


def test_parent_that_is_not_described_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: family for name, family in catalog.families().items() if name != "transformer"}
    kept = {kind: one for kind, one in catalog.dialects().items() if one.spec in known}
    monkeypatch.setattr(catalog, "families", lambda: known)
    monkeypatch.setattr(catalog, "dialects", lambda: kept)
    (root,) = lines.tree()
    assert (root.name, root.year) == ("transformer", None)
    assert {"bert", "gpt"} <= {child.name for child in root.children}
    assert comparison.tree_text([root])[0].startswith("transformer")


def test_nearest_relatives() -> None:
    found = lines.nearest(lineage.spec("llama-3-8b", layers=16), "llama")
    assert found[0].names[0] == "llama-3-8b"
    assert lines.distance(found[0].script)[:2] == (0, 0)
    distances = [lines.distance(diff.script) for diff in found]
    assert distances == sorted(distances)
    itself = lines.nearest(lineage.spec("gpt2-large"), "gpt2")[0]
    assert (itself.names[0], itself.script) == ("gpt2-large", ())


def test_checkpoint_is_placed_on_the_tree(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 3, "n_embd": 24, "n_head": 2, "scale_attn_weights": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = run("tree", "--of", str(tmp_path)).output.splitlines()
    assert told[0].endswith("of the family gpt2")
    assert "1 in design" in told[3]
    assert "score scale 1" in told[3]
    data = json.loads(run("tree", "--of", str(tmp_path), "--json").output)
    assert (data["family"], len(data["nearest"])) == ("gpt2", 5)
    assert data["nearest"][0]["changes"] == ["score scale 1"]


TINY = {name: family.function(**family.tiny) for name, family in catalog.families().items()}
WAYS = [
    ("gpt", "llama"), ("gpt2", "bert"), ("llama", "mixtral"), ("transformer", "gpt"), ("transformer", "bert"),
    ("gpt", "transformer"), ("bert", "gemma2"), ("gpt_neox", "qwen3_moe"), ("mixtral", "gpt2"), ("gemma2", "bert"),
    ("llama", "deepseek_v2"), ("gpt2", "falcon"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), WAYS, ids="-".join)
def test_every_step_of_a_way_runs(before: str, after: str) -> None:
    steps = lines.path(compare(TINY[before], TINY[after], (before, after)))
    assert (steps[0].model, steps[-1].model) == (TINY[before], TINY[after])
    assert len(steps) > 2
    for one, other in pairwise(steps):
        assert one.model != other.model
        model = build(other.model, "cpu")
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        ids = torch.randint(5, 60, (2, 9))
        with torch.no_grad():
            result = model(ids, decoder_input_ids=ids) if other.model.encoder else model(ids)
        assert torch.isfinite(result.hidden).all(), other.change


def test_every_step_counts_what_its_modules_hold() -> None:
    for step in lines.path(lineage.diff("gpt", "llama-3-8b"))[1:]:
        held = sum(parameter.numel() for parameter in build(step.model).parameters())
        assert held == graph.parameters(step.model)


def test_each_step_is_one_aspect_in_the_order_of_history() -> None:
    steps = lines.path(lineage.diff("gpt", "llama-3-8b"))
    assert [step.change.partition(":")[0] for step in steps] == [
        "", "sizes", "norm placement", "final norm", "norm", "positions", "mlp", "heads", "biases", "head",
    ]  # fmt: skip
    for one, other in pairwise(steps[1:]):
        assert [row.aspect for row in compare(one.model, other.model).design] == [other.change.partition(":")[0]]


@pytest.mark.parametrize("before", sorted(TINY))
def test_there_is_a_way_between_all_families(before: str) -> None:
    for after in ("gpt2", "bert", "mixtral", "transformer"):
        steps = lines.path(compare(TINY[before], TINY[after]))
        assert steps[-1].model == TINY[after]


def test_way_is_printed() -> None:
    told = run("path", "gpt2", "llama-3-8b")
    assert told.exit_code == 0
    assert told.output.startswith("gpt2 → llama-3-8b      7 steps")
    assert "8,030,261,248 head: tied to the tokens → untied" in told.output
    data = json.loads(run("path", "gpt2", "llama-3-8b", "--json").output)
    assert (data["schema"], data["steps"][0]["change"], len(data["steps"])) == ("lineage.path/1", "", 8)
    assert graph.model_from_json(data["steps"][-1]["spec"]) == lineage.spec("llama-3-8b")
    assert data["steps"][-1]["parameters"] == 8_030_261_248
    assert run("path", "gpt2", "gpt2").output.startswith("gpt2 → gpt2      0 steps")
