"""Anybody's module, or what it left behind, against a model of ours: the planted mistake is named."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lineage
from lineage.errors import UsageError
from lineage.parity.activations import record

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_module"
PLANTED = {
    "gelu": "blocks.1.mlp.body.act",
    "scale": "blocks.1.attention.body",
    "mask": "blocks.1.attention.body",
}


@pytest.fixture(scope="module")
def by_hand():
    """The example's modules: the hand-written GPT-2, and the script that searches it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        import find_the_bug

        yield find_the_bug


def verified(by_hand, against, bug, precise=True, **options):
    candidate = by_hand.load(by_hand.MODEL, bug)
    candidate = candidate.double() if precise else candidate
    return lineage.verify_module(candidate, against=against, ports=by_hand.ports(3), **options)


@pytest.mark.parametrize("precise", [True, False], ids=["fp64", "fp32"])
def test_honest_module_passes(by_hand, addition, precise):
    report = verified(by_hand, addition, None, precise)
    assert report.passed, report.lines()
    assert report.guilty == ()
    assert report.first_divergence is None
    assert {node["theirs"] for node in report.nodes} == set(by_hand.ports(3))
    assert max(node["local"] for node in report.nodes) <= (1e-14 if precise else 2e-6)


@pytest.mark.parametrize("precise", [True, False], ids=["fp64", "fp32"])
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_named(by_hand, addition, bug, precise):
    report = verified(by_hand, addition, bug, precise)
    assert report.exit_code == 3
    assert [node["ours"] for node in report.guilty] == [PLANTED[bug]]
    assert "layers.1." in report.guilty[0]["theirs"]
    assert report.to_dict()["likely"]


def test_every_bug_of_the_example_is_tried(by_hand):
    assert set(by_hand.BUGS) == set(PLANTED)


def test_own_ids_and_limit(by_hand, addition):
    ids = torch.tensor([[0, 3, 7, 10, 0, 5, 8]])
    report = verified(by_hand, addition, None, input_ids=ids)
    assert report.passed
    assert not verified(by_hand, addition, None, input_ids=ids, limit=1e-18).passed
    assert verified(by_hand, addition, "scale", input_ids=ids, limit=10.0).passed


def test_model_of_ours_is_left_as_it_was(by_hand, addition):
    model = lineage.from_pretrained(addition)
    report = verified(by_hand, model, None)
    assert report.passed
    assert max(node["local"] for node in report.nodes) <= 1e-14
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def dumped(by_hand, bug=None):
    """What a run of the candidate leaves behind: each port's output."""
    ids = torch.arange(12)[None] % 13
    calls = record(by_hand.load(by_hand.MODEL, bug).double(), (ids,)).calls
    return {path: calls[path].output for path in by_hand.ports(3)}, ids


def test_dump_of_activations_is_compared(by_hand, addition):
    dump, ids = dumped(by_hand)
    report = lineage.verify_module(dump, against=addition, ports=by_hand.ports(3), input_ids=ids)
    assert report.passed, report.lines()
    assert report.level("replay").verdict == "skipped"


def test_first_divergence_of_a_dump_is_the_bug(by_hand, addition):
    dump, ids = dumped(by_hand, "gelu")
    report = lineage.verify_module(dump, against=addition, ports=by_hand.ports(3), input_ids=ids)
    assert not report.passed
    assert report.first_divergence["ours"] == "blocks.1.mlp.body.act"
    assert report.guilty == ()


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ({"wordz": "embed.tokens"}, "'wordz' is not in the candidate"),
        ({"words": "embed.token"}, "'embed.token' is not a component of ours"),
        ({}, "none are given"),
    ],
)
def test_wrong_ports_are_refused(by_hand, addition, ports, words):
    for candidate in (by_hand.load(by_hand.MODEL), dumped(by_hand)[0]):
        with pytest.raises(UsageError) as caught:
            lineage.verify_module(candidate, against=addition, ports=ports)
        assert words in " ".join(caught.value.facts)


def test_script_and_readme_agree():
    """The README shows what the script prints, but for figures that another machine may round differently."""
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for bug, code in (("gelu", 3), ("none", 0)):
        command = [sys.executable, "find_the_bug.py", bug]
        done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (code, "")
        shown = readme.split(f"$ python examples/own_module/find_the_bug.py {bug}\n")[1].split("```")[0]
        assert blurred(done.stdout) == blurred(shown)


def blurred(text: str) -> list[str]:
    return [re.sub(r"\d\.\de[-+]\d\d", "N", line) for line in text.strip().splitlines()]
