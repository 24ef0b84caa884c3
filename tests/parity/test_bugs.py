"""Every classic bug, in families that spell its place differently: caught by the levels that claim it, and named.

A bug is planted in at most four (`cases.SPELLINGS`) of the families that can have it: those whose tensors, taps and
components differ most, and among equals those that had the fewest bugs so far. Every family, whatever is planted in
it, is swept once by what costs little: a right rewriting is no bug, every tensor wrong and every eps are named, every
flipped bit is seen. What was caught, and how far off it was, is written to build/parity-bugs.txt.
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
from lineage import catalog
from lineage import components as c
from lineage.modules.model import Model, build
from lineage.parity import levels, probes, reference, replay
from lineage.parity.levels import FP64_LIMIT
from lineage.parity.report import Report
from tests.parity import bugs, fits, wrong
from tests.parity.cases import CASES, KINDS, LENGTH, model_of, pairs_of, planned, small
from tests.parity.planted import BUGS

TABLE = Path(__file__).parents[2] / "build" / "parity-bugs.txt"
APART = 1e6  # how many times the limit the weakest bug must stand above
FOUND: dict[tuple[str, str], tuple[float, float]] = {}  # bug, case -> how far off: the result in fp64, a component
PLANNED = list(planned(BUGS))


@pytest.fixture(scope="module", autouse=True)
def _one_reference() -> Iterator[None]:
    """Each reference is loaded, held to its file, and run once: no bug touches it."""
    kept: dict[object, Any] = {}

    def once(function: Callable[..., Any], key: Callable[..., object]) -> Callable[..., Any]:
        def asked(*arguments: Any, **options: Any) -> Any:
            name = function, key(*arguments)
            if name not in kept or name[1] is None:
                kept[name] = function(*arguments, **options)
            return kept[name]

        return asked

    def loaded(chosen: Any, material: Any, *how: Any) -> object:
        return chosen.name, material.directory, str(how)

    def ran(model: Any, probe: Any, chosen: Any) -> object:
        return id(model), str([value.tolist() for value in probe.arguments().values()]), str(chosen.outputs)

    def recorded(model: Any, arguments: Any) -> object:
        return (
            None
            if isinstance(model, Model)
            else (id(model), str([getattr(value, "shape", value) for value in arguments.values()]))
        )

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


@pytest.fixture
def made(tiny):
    """A case's converted directory."""

    def directory(case: str, faint: bool = False) -> Path:
        kind, arguments = CASES[case]
        return tiny(kind, faint=faint, **small(kind) | arguments)

    return directory


@cache
def right(directory: Path) -> Model:
    return lineage.from_pretrained(directory, dtype="fp64")


def judge(directory: Path, plant: bugs.Plant, names: tuple[str, ...]) -> tuple[Report, set[str]]:
    """The verdict on a model with a bug, and the components that the bug made wrong."""
    model = deepcopy(right(directory))
    at_fault = plant(model)
    return lineage.verify(model, only=names), at_fault


def seen_at(case: str, report: Report, paths: set[str]) -> set[str]:
    """Where what is wrong there is judged: where the reference has no such module, in what holds it."""
    found, judged = set(), {node["ours"] for node in report.nodes}
    for path in paths:
        if path == bugs.WEIGHTS:
            path = bugs.MLP if pairs_of(case)[bugs.ROUTER].at == "logits" else bugs.ROUTER
        while path and path not in judged:
            path = path.rpartition(".")[0]
        found.add(path)
    return bugs.innermost(found)


def named(report: Report) -> set[str]:
    return {node["ours"] for node in report.guilty}


def off(report: Report) -> float:
    return max(row["rel"] for row in report.level("fp64").figures)


@pytest.mark.parametrize(("bug", "case"), PLANNED, ids=[f"{case}: {bug}" for bug, case in PLANNED])
def test_bug_is_caught_and_named(made, bug, case):
    names = tuple(dict.fromkeys(("replay", "fp64", *bug.claims, *bug.silent)))
    report, at_fault = judge(made(case, bug.faint), bug.plant, names)
    assert not report.passed
    assert named(report) == seen_at(case, report, at_fault)
    verdicts = {level.name: level.verdict for level in report.levels}
    assert {name for name, verdict in verdicts.items() if verdict == "failed"} >= set(bug.claims)
    assert {name for name, verdict in verdicts.items() if verdict == "passed"} >= set(bug.silent)
    FOUND[str(bug), case] = off(report), max(node["local"] for node in report.guilty)
    assert "fp64" in bug.silent or off(report) >= APART * FP64_LIMIT


@pytest.mark.parametrize("case", CASES)
def test_a_right_rewriting_is_no_bug(made, case):
    """The class that the wrong products are made from, as it stands; of another kind of attention, the model itself."""
    rewritten = len(model_of(case).blocks) > 1 and fits.plain(model_of(case))
    plant = bugs.turn(bugs.PRODUCT, wrong.Written) if rewritten else lambda model: set()
    report, _ = judge(made(case), plant, ("replay", "fp64"))
    assert report.passed, report.lines()
    assert report.guilty == ()


@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_tensor_is_named(made, kind):
    """All at once: each component is judged by itself, so that none hides another."""
    report, at_fault = judge(made(kind), bugs.all_rolled, ("replay", "fp64"))
    assert named(report) == seen_at(kind, report, at_fault)
    FOUND["every tensor rolled", kind] = off(report), max(node["local"] for node in report.guilty)


@pytest.mark.parametrize("kind", KINDS)
def test_eps_of_every_norm_is_named(made, kind):
    report, at_fault = judge(made(kind, faint=True), bugs.eps_of(), ("replay", "fp64"))
    assert named(report) == seen_at(kind, report, at_fault)
    FOUND["eps of every norm 1e-5 more", kind] = off(report), min(node["local"] for node in report.guilty)
    assert off(report) >= APART * FP64_LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_any_tensor_is_seen(made, tmp_path, kind):
    copy = shutil.copytree(made(kind), tmp_path / "copy")
    file = copy / "model.safetensors"
    before = file.read_bytes()
    start = 8 + int.from_bytes(before[:8], "little")
    header = json.loads(before[8:start])
    tensors = [(name, entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"]
    for these in (tensors[i : i + 10] for i in range(0, len(tensors), 10)):  # as many as a report names
        changed = bytearray(before)
        for _, (first, last) in these:
            changed[start + first + (last - first) // 8 * 4] ^= 1  # the lowest byte of the middle element
        file.write_bytes(changed)
        level = lineage.verify(copy, only=["bytes"]).level("bytes")
        assert level.failed
        assert {f"{name} is not what the conversion wrote" for name, _ in these} <= set(level.details)
    file.write_bytes(before)
    assert lineage.verify(copy, only=["bytes"]).passed


@pytest.mark.parametrize("case", CASES)
def test_what_a_family_has_a_module_for_is_judged_by_itself(case):
    """Products, routers, and all with tensors of their own; tables apart, which are shared, scaled or added to."""
    model, paired = build(model_of(case)), pairs_of(case)
    owned = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    owned |= {path for path, _ in model.named_modules() if path.endswith(".product")}
    apart = {path.rpartition("blocks.")[2][2:] for path in owned - paired.keys() if not path.endswith(ELSEWHERE)}
    assert apart == ({"attention.body.product"} if case.startswith("llama4") else set())


ELSEWHERE = ("embed.tokens", "embed.projection.dense", "head.projection.dense", "position_bias")


def test_families_are_all_here():
    dialects = {kind: dialect for kind, dialect in catalog.dialects().items() if not dialect.form}
    assert {dialect.spec for dialect in dialects.values()} == {catalog.dialects()[kind].spec for kind in KINDS}
    assert len({str(bug) for bug in BUGS}) == len(BUGS) >= 200
    assert {str(bug) for bug, _ in PLANNED} == {str(bug) for bug in BUGS}


def test_the_table_is_written():
    """The last of this file: what stands in FOUND was asserted above, one by one."""
    columns = list(dict.fromkeys(case for _, case in FOUND))
    lines = [f"{number:3}  {case}" for number, case in enumerate(columns, start=1)]
    lines += ["", f"{'':60}" + "".join(f"{number:6}" for number in range(1, len(columns) + 1))]
    for bug in dict.fromkeys(name for name, _ in FOUND):
        cells = [f"{FOUND[bug, case][0]:.0e}" if (bug, case) in FOUND else "" for case in columns]
        lines.append(f"{bug:60}" + "".join(f"{cell:>6}" for cell in cells).rstrip())
    seen = {key: rel for key, (rel, _) in FOUND.items() if rel > FP64_LIMIT}
    lines += ["", f"{len(FOUND)} bugs caught; relative distance of the results in fp64, limit {FP64_LIMIT:.0e}"]
    if seen:
        weakest = min(seen, key=seen.__getitem__)
        lines += [f"weakest: {weakest[0]}, in {weakest[1]}: {seen[weakest]:.1e}"]
    for bug, case in sorted(FOUND.keys() - seen.keys()):
        lines += [f"in no result, seen by replay: {bug}, in {case}: a component by {FOUND[bug, case][1]:.1e}"]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
