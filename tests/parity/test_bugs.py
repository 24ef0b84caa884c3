"""Every classic bug in every family: caught by the levels that claim it, and its place named by replay, exactly.

What was caught, and how far off it was, is written to build/parity-bugs.txt.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import lineage
from lineage import catalog, graph
from lineage import components as c
from lineage.modules.model import Model
from lineage.parity import levels, probes, reference, replay
from lineage.parity.levels import FP64_LIMIT
from lineage.parity.report import Report
from lineage.parity.tiny import tiny as tiny_arguments
from tests.parity import bugs, wrong
from tests.parity.planted import BUGS, Bug

TABLE = Path(__file__).parents[2] / "build" / "parity-bugs.txt"
LENGTH = 64  # of the longest probe that is replayed
APART = 1e6  # how many times the limit the weakest bug must stand above


def spec(kind: str, **arguments: object) -> c.Model:
    _, dialect, chosen = tiny_arguments(kind, **arguments)
    return catalog.families()[dialect.spec].function(**chosen)


def small(kind: str) -> dict[str, int]:
    """Arguments of a model that runs in little time: few layers, and no long probe (see `_one_reference`)."""
    return {"layers": 2} | ({"context": LENGTH} if spec(kind).embed.positions else {})


def kinds() -> list[str]:
    """Model types; of those with the same tensors under the same names, the first."""
    every = reversed(catalog.dialects().items())
    told = {repr((dialect.tensors, dialect.taps, graph.tensors(spec(kind)))): kind for kind, dialect in every}
    return sorted(told.values())


KINDS = kinds()
MORE = {  # what the plain ones lack
    "bert pretraining": ("bert", {"pooler": True, "next_sentence": True}),
    "roberta encoder": ("roberta", {"head": False, "pooler": True}),
    "gpt2 untied": ("gpt2", {"tied": False}),
    "mistral window": ("mistral", {"window": 7}),
    "llama scaled": ("llama", {"scaling": c.Banded(factor=4.0, low=1.0, high=4.0, length=32), "tied": True}),
    "llama with biases": ("llama", {"bias": True, "mlp_bias": True}),
    "gpt_neox serial": ("gpt_neox", {"parallel": False}),
}
CASES: dict[str, tuple[str, dict]] = {kind: (kind, {}) for kind in KINDS} | MORE
FOUND: dict[tuple[str, str], tuple[float, float]] = {}  # bug, case -> how far off: the result in fp64, a component


def planned() -> Iterator[tuple[Bug, str]]:
    """Every bug in every family that it fits; in the further cases what only they can have, and what differs there."""
    for case, (kind, arguments) in CASES.items():
        this, plain = spec(kind, **arguments), spec(kind)
        for bug in BUGS:
            if bug.fits(this) and (case == kind or bug.again or not bug.fits(plain)):
                yield bug, case


PLANNED = list(planned())


@pytest.fixture(scope="module", autouse=True)
def _one_reference() -> Iterator[None]:
    """Each reference is loaded, held to its file, and run once: no bug touches it."""
    kept: dict[object, Any] = {}

    def once(function: Callable[..., Any], key: Callable[..., object]) -> Callable[..., Any]:
        def asked(*arguments: Any) -> Any:
            name = function, key(*arguments)
            if name not in kept or name[1] is None:
                kept[name] = function(*arguments)
            return kept[name]

        return asked

    def loaded(chosen: Any, material: Any, *how: Any) -> object:
        return chosen.name, material.directory, str(how)

    def ran(model: Any, probe: Any, chosen: Any) -> object:
        return id(model), str([value.tolist() for value in probe.arguments().values()]), str(chosen.outputs)

    def recorded(model: Any, arguments: Any) -> object:
        return None if isinstance(model, Model) else (id(model), str([value.shape for value in arguments.values()]))

    def held(session: Any, dtype: Any) -> object:
        session.pair(dtype)
        return session.made.name, dtype

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "load", once(reference.load, loaded))
        patch.setattr(reference, "run", once(reference.run, ran))
        patch.setattr(replay, "record", once(replay.record, recorded))
        patch.setattr(levels, "in_memory", once(levels.in_memory, held))
        patch.setattr(probes, "UNLIMITED", LENGTH)
        patch.setattr(c.Component, "__deepcopy__", lambda value, memo: value, raising=False)  # frozen: no need of two
        yield


@cache
def right(directory: Path) -> Model:
    return lineage.from_pretrained(directory, dtype="fp64")


def judge(directory: Path, plant: bugs.Plant, names: tuple[str, ...]) -> tuple[Report, set[str]]:
    """The verdict on a model with a bug, and the components that the bug made wrong."""
    model = deepcopy(right(directory))
    at_fault = plant(model)
    return lineage.verify(model, only=names), at_fault


def named(report: Report) -> set[str]:
    return {node["ours"] for node in report.guilty}


def off(report: Report) -> float:
    return max(row["rel"] for row in report.level("fp64").figures)


@pytest.mark.parametrize(("bug", "case"), PLANNED, ids=[f"{case}: {bug}" for bug, case in PLANNED])
def test_bug_is_caught_and_named(tiny, bug, case):
    kind, arguments = CASES[case]
    names = tuple(dict.fromkeys(("replay", "fp64", *bug.claims, *bug.silent)))
    report, at_fault = judge(tiny(kind, faint=bug.faint, **small(kind), **arguments), bug.plant, names)
    assert not report.passed
    assert named(report) == at_fault
    verdicts = {level.name: level.verdict for level in report.levels}
    assert {name for name, verdict in verdicts.items() if verdict == "failed"} >= set(bug.claims)
    assert {name for name, verdict in verdicts.items() if verdict == "passed"} >= set(bug.silent)
    FOUND[str(bug), case] = off(report), max(node["local"] for node in report.guilty)
    assert "fp64" in bug.silent or off(report) >= APART * FP64_LIMIT


@pytest.mark.parametrize("case", CASES)
def test_a_right_rewriting_is_no_bug(tiny, case):
    """The class that the wrong products are made from, as it stands."""
    kind, arguments = CASES[case]
    plant = bugs.turn(bugs.PRODUCT, wrong.Written)
    report, _ = judge(tiny(kind, **small(kind), **arguments), plant, ("replay", "fp64", "behaviour"))
    assert report.passed, report.lines()
    assert report.guilty == ()


@pytest.mark.parametrize("kind", KINDS)
def test_eps_of_each_norm(tiny, kind):
    directory = tiny(kind, faint=True, **small(kind))
    for path in bugs.norms(lineage.from_pretrained(directory)):
        report, at_fault = judge(directory, bugs.eps_of(path), ("replay", "fp64"))
        assert named(report) == at_fault == {path}
        FOUND[f"eps of {path} 1e-5 more", kind] = off(report), report.guilty[0]["local"]
        assert off(report) >= APART * FP64_LIMIT, path


@pytest.mark.parametrize("case", ["gpt2 untied", "bert pretraining"])
def test_a_nudge_of_any_tensor_is_named(tiny, case):
    kind, arguments = CASES[case]
    directory = tiny(kind, **small(kind), **arguments)
    for name, tensor in lineage.from_pretrained(directory).named_parameters():
        if name.startswith(("blocks.0", "blocks.2")) or name == "embed.tokens.weight":
            continue
        assert tensor.numel() > 3 or name == "next_sentence.bias"
        report, at_fault = judge(directory, bugs.nudged(name), ("replay",))
        assert named(report) == at_fault == {name.rpartition(".")[0]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_any_tensor_is_seen(tiny, tmp_path, kind):
    copy = shutil.copytree(tiny(kind, **small(kind)), tmp_path / "copy")
    file = copy / "model.safetensors"
    before = file.read_bytes()
    start = 8 + int.from_bytes(before[:8], "little")
    header = json.loads(before[8:start])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        place = start + first + (last - first) // 8 * 4  # the lowest byte of the middle element
        changed = bytearray(before)
        changed[place] ^= 1
        file.write_bytes(changed)
        level = lineage.verify(copy, only=["bytes"]).level("bytes")
        assert level.failed
        assert f"{name} is not what the conversion wrote" in level.details
    file.write_bytes(before)
    assert lineage.verify(copy, only=["bytes"]).passed


def test_families_are_all_here():
    assert {"gpt2", "openai-gpt", "bert", "roberta", "distilbert"} <= set(KINDS)
    assert {d.spec for d in catalog.dialects().values()} == {catalog.dialects()[kind].spec for kind in KINDS}
    assert len({str(bug) for bug in BUGS}) == len(BUGS) >= 30
    assert {str(bug) for bug, _ in PLANNED} == {str(bug) for bug in BUGS}


def test_the_table_is_written():
    """The last of this file: what stands in FOUND was asserted above, one by one."""
    columns = list(dict.fromkeys(case for _, case in FOUND))
    lines = [f"{number:3}  {case}" for number, case in enumerate(columns, start=1)]
    lines += ["", f"{'':52}" + "".join(f"{number:6}" for number in range(1, len(columns) + 1))]
    for bug in dict.fromkeys(name for name, _ in FOUND):
        cells = [f"{FOUND[bug, case][0]:.0e}" if (bug, case) in FOUND else "" for case in columns]
        lines.append(f"{bug:52}" + "".join(f"{cell:>6}" for cell in cells))
    seen = {key: rel for key, (rel, _) in FOUND.items() if rel > FP64_LIMIT}
    lines += ["", f"{len(FOUND)} bugs caught; relative distance of the results in fp64, limit {FP64_LIMIT:.0e}"]
    if seen:
        weakest = min(seen, key=seen.__getitem__)
        lines += [f"weakest: {weakest[0]}, in {weakest[1]}: {seen[weakest]:.1e}"]
    for bug, case in sorted(FOUND.keys() - seen.keys()):
        lines += [f"in no result, seen by replay: {bug}, in {case}: a component by {FOUND[bug, case][1]:.1e}"]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n" + TABLE.read_text(encoding="utf-8"))
