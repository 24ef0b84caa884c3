"""The rungs of the ladder (parity.md §2), each a function of the two sides that gives its verdict.

static: names, shapes and indices fit, and the mapping is a bijection. bytes: the mapping undone gives the source's
tensors bit for bit. reference: transformers holds those same numbers. replay: each component, fed the reference's own
input, gives its output. fp64, fp32: the results, in double precision free of noise, in single precision against the
reference's own noise. bf16: our error against the fp64 truth is no larger than the reference's.
"""

from collections.abc import Sequence
from typing import Any

import torch

from lineage import graph
from lineage.checkpoint.casting import cast
from lineage.checkpoint.writer import digest_of
from lineage.errors import TensorMismatch
from lineage.modules.loading import to_torch
from lineage.operations import Array
from lineage.parity import reference
from lineage.parity.activations import Pair, pairs
from lineage.parity.figures import Figures, rms
from lineage.parity.islands import lifted
from lineage.parity.replay import Trace, trace
from lineage.parity.report import Level, passed
from lineage.parity.routes import ROUTERS, flips, listed
from lineage.parity.session import SLOW_WORK, Results, Session, threads
from lineage.parity.subject import Subject
from lineage.proofs import prove
from lineage.rules import fill, holes

FP64_LIMIT = 1e-12  # relative; honest implementations stand at 1e-16…1e-13, the weakest known bug at 1e-8
FP32_LIMIT = 2e-5  # times max(1, std of the reference's result)
NOISE = 4.0  # times the reference's own noise, measured: the same sums in another order may be as far off
FAULT = 1e-3  # times the same: two paths of the reference this far apart are not both right
WHOLE = (("logits", "logits"), ("scores", "logits"), ("hidden", "last_hidden_state"))
BF16_RATIO = 2.0  # our rms error over the reference's: on few positions two honest ones differ by 1.3


def static(made: Subject) -> Level:
    """Both sides covered exactly, and every operation a bijection on unique ids."""
    given = [target for step in made.steps for target in step.targets]
    used = [source for step in made.steps for source in step.sources]
    wanted = graph.tensors(made.spec)
    problems = [f"{name} is not given" for name in wanted.keys() - set(given)]
    problems += [f"{name} is given, and the model has no such tensor" for name in set(given) - wanted.keys()]
    problems += [f"{n} is given or used twice" for names in (given, used) for n in set(names) if names.count(n) > 1]
    problems += [
        f"{', '.join(s.sources)}: not a bijection" for s in made.steps if not prove(s.operations, s.target_shapes)
    ]
    total = len(used) + len(made.copies) + len(made.dropped)
    summary = f"{total} tensors in file: {len(used)} mapped, {len(made.copies)} copies, {len(made.dropped)} dropped"
    details = [*sorted(problems)[:20], f"{graph.parameters(made.spec):,} parameters, a bijection of elements"]
    return passed("static", not problems, summary, problems or details)


def stored(made: Subject) -> Level:
    """Ours are those recorded, and undone they are the source's, bit for bit, as far as the record has hashes."""
    ours, theirs = made.own_digests, made.source_digests
    if not (ours or theirs):
        return Level("bytes", "skipped", "the record has no hashes: converted with --no-hash")
    changed = [name for name, digest in ours.items() if digest_of(made.read(name)) != digest]
    steps = [step for step in made.steps if theirs.keys() & set(step.sources)]
    wrong = [name for name, array, _ in made.undone(steps) if digest_of(array) != theirs.get(name)]
    problems = [f"{name} is not what the conversion wrote" for name in changed]
    problems += [f"{name}, undone, is not the source's" for name in wrong]
    total = len(theirs)
    summary = f"{total - len(wrong)}/{total} tensors equal to the source, bit for bit"
    if not theirs:  # a cast keeps none of the source's bits
        summary = f"{len(ours) - len(changed)}/{len(ours)} tensors as they were written, {made.cast}"
    return passed("bytes", not problems, summary, problems[:20])


def same_tensors(made: Subject, other: Subject) -> Level:
    """Our tensors against those of another checkpoint of the same shapes, under our names; cast as ours were."""
    wanted = graph.tensors(made.spec)
    if wanted != graph.tensors(other.spec):
        raise TensorMismatch(f"{made.name} and {other.name} do not have the same tensors", code="tensors")

    def theirs(name: str) -> Array:
        read = other.read(name)
        return cast(read, other.types[name], made.types[name]) if made.cast else read

    wrong = [name for name in wanted if digest_of(made.read(name)) != digest_of(theirs(name))]
    summary = f"{len(wanted) - len(wrong)}/{len(wanted)} tensors equal to {other.name}'s"
    return passed("against", not wrong, summary + (f", {made.cast}" if made.cast else ""), wrong[:20])


def in_memory(session: Session, dtype: torch.dtype) -> Level:
    """The reference's parameters against the file's numbers: releases have returned random ones in silence."""
    _, model = session.pair(dtype)
    made = session.against or session.made
    held = reference.held(model)
    sources = [name for step in made.memory for name in step.sources]
    names = reference.parameter_names(model, sources)
    wrong, compared = [], 0
    for name, array, kind in made.undone(made.memory):
        if name in names:
            compared += 1
            if not torch.equal(held[names[name]].detach().cpu(), to_torch(array, kind).to(dtype)):
                wrong.append(f"{name}: not the file's numbers in memory")
    told = {id(held[name]) for name in reference.parameter_names(model, [*sources, *made.copies]).values()}
    own = [
        name
        for name, value in held.items()
        if value.requires_grad and id(value) not in told and name not in _computed(made)
    ]
    strange = [f"{name}: a number of the reference's own, and none of the file" for name in own]
    rest = len(sources) - compared
    details = [*wrong[:20], *strange[:20], *([f"{rest} tensors that this class does not have"] if rest else [])]
    summary = f"{compared - len(wrong)}/{compared} tensors in its memory are the file's"
    return passed("reference", not wrong and not strange and compared > 0, summary, details)


def _computed(made: Subject) -> set[str]:
    """Names in a file of what this model computes, where others hold a table; the reference may hold it as well."""
    parts, held = {node.path for node in graph.walk(made.spec)}, graph.tensors(made.spec)
    drops = [drop.source for drop in made.dialect.drops]
    for rule in made.dialect.tensors:
        if any(target not in held and target.rpartition(".")[0] in parts for target in rule.targets):
            drops += rule.sources
    return {fill(name, {}, made.base) for name in drops if set(holes(name)) <= {"base"}}


def replay(session: Session) -> tuple[Level, list[Trace]]:
    """Each component on the reference's own inputs, in double precision, on the longest probe and a padded one."""
    ours, theirs = session.pair(torch.float64)
    paths = [path for path, _ in ours.named_modules() if path]
    mapping = pairs(session.made.dialect, session.made.memory, session.made.base, paths)
    if next(iter(session.reference.outputs.items())) in WHOLE:  # what a call of either side gives first
        mapping.append(Pair("", ""))  # right components, joined wrongly
    whole = [probe for probe in session.small() if probe.keep_BT is None and probe.ids_BT.numel() <= 512]
    chosen = [*whole[-1:], *(probe for probe in session.small() if probe.keep_BT is not None)]
    found = []
    for probe in chosen:
        own, given = probe.arguments(session.device), reference.accepted(theirs, probe.arguments())
        found.append(trace(ours, theirs, mapping, probe, given, FP64_LIMIT, own, within=lifted))
    guilty = {node.ours: node for one in found for node in one.guilty}
    local = [node.local for one in found for node in one.nodes if node.local is not None]
    inherit = [node for node in (found[0].nodes if found else ()) if not node.inherited <= FP64_LIMIT]
    details = (
        [f"{len(inherit)} of {len(found[0].nodes)} components differ, counting what they inherit"] if inherit else []
    )
    summary = f"{len(local)} components on the reference's own input, worst {max(local, default=0.0):.1e}"
    return passed("replay", not guilty and bool(local), summary, details, limit=FP64_LIMIT), found


def fp64(session: Session) -> Level:
    """The results in double precision."""
    exact = truth(session)
    ours, _ = session.pair(torch.float64)
    found = session.compare(session.ours(ours, session.small())[0], exact)
    worst = max((f.rel for f in found), default=float("inf"))
    left = [probe.name for probe in session.probes if probe not in session.small()]
    details = [f"too much work in double precision: {', '.join(left)}"] if left else []
    figures = tuple(f.to_dict() for f in found)
    return passed(
        "fp64", worst <= FP64_LIMIT, f"{_extent(found)}, rel {worst:.1e}", details, limit=FP64_LIMIT, figures=figures
    )


def truth(session: Session) -> Results:
    """The reference's results in double precision, run once; none where memory does not suffice."""
    if not session.exact and session.fits(8):
        _, theirs = session.pair(torch.float64)
        with lifted():
            session.exact, session.exact_routes = session.theirs(theirs, session.small())
    return session.exact


def fp32(session: Session) -> Level:
    """Each result, the routers' first, against 2e-5 · max(1, std), or a few times the reference's noise if more.

    The noise: eager against sdpa with another number of threads, and eager against its own fp64 results. Paths so far
    apart that one of them is wrong are a fault of the reference, and no measure of noise. All take the eager run's
    routes; where the fp64 run has others, it says nothing of noise.
    """
    exact = truth(session)
    ours, theirs = session.pair(torch.float32)
    first, given = session.theirs(theirs, session.probes)
    with threads(1 if torch.get_num_threads() > 1 else 2):
        attention = "eager" if session.attention == "sdpa" else "sdpa"
        other, _ = session.theirs(session.load(torch.float32, attention), session.probes, given)
    paths = session.compare(other, first)
    wrong = [f for f in paths if f.max_abs > FAULT * max(1, f.std)]
    session.faults += [f"its eager and sdpa attention differ by {f.max_abs:.1e} on {f.probe}" for f in wrong]
    floors = {(f.output, f.probe): 0.0 if f in wrong else f.max_abs for f in paths}
    moved = {flip.probe for flip in flips(session.routers(ours), session.exact_routes, given, session.probes)}
    for f in (f for f in session.compare(first, exact) if f.probe not in moved):
        floors[f.output, f.probe] = max(floors[f.output, f.probe], f.max_abs)
    mine, own = session.ours(ours, session.probes, given)
    found, details, rows = session.compare(mine, first), [], []
    for f in found:
        limit = _limit(f, floors[f.output, f.probe], session.rtol)
        good = f.max_abs <= limit
        rows.append(f.to_dict() | {"floor": floors[f.output, f.probe], "limit": limit, "passed": good})
        details.append(_line(f, floors[f.output, f.probe], limit, good))
    away = flips(session.routers(ours), own, given, session.probes)
    good = bool(rows) and all(row["passed"] for row in rows) and not any(flip.wrong for flip in away)
    details += listed(away)
    summary = f"{_extent(found)}, max |Δ| {max((f.max_abs for f in found), default=0.0):.1e}"
    return passed("fp32", good, summary, details, figures=tuple(rows))


def bf16(session: Session) -> Level:
    """Our rms error against the fp64 truth next to the reference's own; and whether the two agree to the bit."""
    exact = truth(session)
    small = session.small(SLOW_WORK) if session.device == "cpu" else session.small()
    probes = [probe for probe in small if any(p == probe.name for _, p in exact)]
    if not probes:
        return Level("bf16", "skipped", "too much work without a fast bf16 product, or no fp64 results")
    ours, theirs = session.pair(torch.bfloat16)
    ours.attention = session.attention  # as the reference's: the same roundings in the same places
    its, given = session.theirs(theirs, probes)
    mine, chosen = session.ours(ours, probes, given)
    away = flips(session.routers(ours), chosen, given, probes)
    rows: list[dict[str, Any]] = []
    for (output, name), double in exact.items():
        if (output, name) in mine:
            keep = next(probe for probe in probes if probe.name == name).keep_BT
            own, other = (rms(side[output, name], double, keep) for side in (mine, its))
            equal = torch.equal(mine[output, name], its[output, name])
            rows.append({"output": output, "probe": name, "ours": own, "theirs": other, "bit_exact": equal})
    good = all(row["ours"] <= BF16_RATIO * row["theirs"] for row in rows) and not any(flip.wrong for flip in away)
    worst = max(row["ours"] / row["theirs"] if row["theirs"] else 1.0 for row in rows)
    same = sum(row["bit_exact"] for row in rows)
    summary = f"rms error {worst:.2f} x the reference's; {same} of {len(rows)} results equal to the bit"
    return passed("bf16", good, summary, listed(away), figures=tuple(rows), limit=BF16_RATIO)


def _limit(f: Figures, floor: float, rtol: float | None) -> float:
    if rtol is not None:
        return rtol * f.max_abs / f.rel if f.rel else 0.0
    return max(FP32_LIMIT * max(1.0, f.std), NOISE * floor)


def _extent(found: Sequence[Figures]) -> str:
    outputs = " and ".join(dict.fromkeys(f.output for f in found))
    positions = sum(f.positions for f in found if f.output != ROUTERS)
    return f"{outputs}, {len({f.probe for f in found})} probes, {positions} positions"


def _line(f: Figures, floor: float, limit: float, good: bool) -> str:
    top = f"  top-1 {f.top1:.1%}  KL {f.kl:.0e}" if f.top1 is not None and f.kl is not None else f"  cos {f.cosine:.7f}"
    where = "" if good or not f.worst else f"  at row {f.worst[0][0]}, token {f.worst[0][1]}"
    return f"{f.probe:8} {f.output:7} |Δ| {f.max_abs:.1e}  noise {floor:.1e}  limit {limit:.1e}{top}{where}"
