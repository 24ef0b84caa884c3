"""`lineage.verify`: a model against the reference, level by level.

static: names, shapes and indices fit, and the mapping is a bijection. bytes: the mapping undone gives the source's
tensors bit for bit. reference: transformers holds those same numbers in memory. replay: each component, fed the
reference's own input, gives its output. fp64, fp32: the results, in double precision free of noise, in single
precision against the reference's measured noise.
"""

import contextlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lineage
from lineage import graph
from lineage.checkpoint.source import Access, Source
from lineage.checkpoint.writer import digest_of
from lineage.conversion import open_checkpoint
from lineage.errors import ResourceError, TensorMismatch
from lineage.modules.loading import to_torch
from lineage.modules.model import Model
from lineage.operations import prove
from lineage.parity import reference
from lineage.parity.activations import pairs
from lineage.parity.figures import Figures, compare
from lineage.parity.probes import Probe, default_probes, given_probes
from lineage.parity.replay import Trace, trace
from lineage.parity.report import Level, Report, passed
from lineage.parity.subject import Subject, subject

FP64_LIMIT = 1e-12  # relative; honest implementations stand at 1e-16…1e-13, the weakest known bug at 1e-8
FP32_LIMIT = 2e-5  # times max(1, std of the reference's result)
NOISE = 4.0  # times the reference's own noise, measured: the same sums in another order may be as far off
FP64_WORK = 2e10  # parameters x tokens beyond which a probe runs in fp32 alone

Results = dict[tuple[str, str], Tensor]


def verify(
    model: str | Path | Model,
    against: str | Path | Source = "transformers",
    *,
    prompts: Sequence[Sequence[int]] = (),
    rtol: float | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    allow_pickle: bool = False,
) -> Report:
    """Compare a model with the reference and say, level by level, what holds.

    model: a converted directory, a model loaded from one, or anything that `convert` takes. against: "transformers"
    loads the same numbers there; a hub id or directory is loaded instead. prompts: token ids to run besides the
    default ones. rtol: a limit on the fp32 relative difference instead of the measured one.

    Returns a report, passed or not. Raises the project's errors where nothing can be compared.
    """
    access = Access(revision, token, Path(cache_dir) if cache_dir else None, local_files_only)
    made = subject(model, access, allow_pickle)
    levels = [_static(made), _bytes(made)]
    with contextlib.ExitStack() as stack:
        if isinstance(against, str) and against == "transformers":
            material = stack.enter_context(made.material())
        else:
            place = against.file or against.directory if isinstance(against, Source) else against
            other = open_checkpoint(str(place), access, allow_pickle=allow_pickle)
            levels.append(_same_tensors(made, subject(str(place), access, allow_pickle)))
            material = stack.enter_context(reference.staged(other.source, other.weights))
        session = Session(made, material, (*default_probes(made.spec), *given_probes(made.spec, prompts)), rtol)
        levels += session.levels()
    return Report(
        made.name,
        f"transformers {_version()} ({session.reference.name})",
        tuple(levels),
        conditions=_conditions(),
        guilty=session.guilty,
        first_divergence=session.first,
        notes=tuple(session.notes),
    )


def _version() -> str:
    from importlib.metadata import version

    return version("transformers")


def _conditions() -> dict[str, Any]:
    return {
        "lineage": lineage.__version__,
        "torch": torch.__version__,
        "transformers": _version(),
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def _static(made: Subject) -> Level:
    """Both sides covered exactly, and every operation a bijection on unique ids."""
    given = [target for step in made.steps for target in step.targets]
    used = [source for step in made.steps for source in step.sources]
    wanted = graph.tensors(made.spec)
    problems = [
        f"{name} is not given exactly once"
        for name in {*wanted, *given}
        if given.count(name) != 1 or name not in wanted
    ]
    problems += [f"{name} is used twice" for name in set(used) if used.count(name) > 1]
    problems += [
        f"{', '.join(s.sources)}: not a bijection" for s in made.steps if not prove(s.operations, s.target_shapes)
    ]
    total = len(used) + len(made.copies) + len(made.dropped)
    summary = f"{total} tensors in file: {len(used)} mapped, {len(made.copies)} copies, {len(made.dropped)} dropped"
    return passed(
        "static", not problems, summary, [*problems, f"{graph.parameters(made.spec):,} parameters, a bijection"]
    )


def _bytes(made: Subject) -> Level:
    """Ours are those recorded, and undone they are the source's, bit for bit."""
    changed = [n for n, digest in made.own_digests.items() if digest_of(made.read(n)) != digest]
    wrong = [name for name, array, _ in made.undone() if digest_of(array) != made.source_digests[name]]
    problems = [f"{name} is not what the conversion wrote" for name in changed] + [
        f"{name}, undone, is not the source's" for name in wrong
    ]
    total = len(made.source_digests)
    return passed(
        "bytes", not problems, f"{total - len(wrong)}/{total} tensors equal to the source, bit for bit", problems[:20]
    )


def _same_tensors(made: Subject, other: Subject) -> Level:
    """Our tensors against those of another checkpoint of the same spec, under our names."""
    if graph.tensors(made.spec) != graph.tensors(other.spec):
        raise TensorMismatch(f"{made.name} and {other.name} are not of one shape", code="tensors")
    wrong = [name for name in graph.tensors(made.spec) if digest_of(made.read(name)) != digest_of(other.read(name))]
    total = len(graph.tensors(made.spec))
    return passed("against", not wrong, f"{total - len(wrong)}/{total} tensors equal to {other.name}'s", wrong[:20])


@dataclass
class Session:
    """The levels that run both sides."""

    made: Subject
    material: reference.Material
    probes: tuple[Probe, ...]
    rtol: float | None
    guilty: tuple[dict[str, Any], ...] = ()
    first: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reference = reference.choose(self.made.dialect, self.made.spec)
        covered = {"head": "logits", "pooler": "pooled", "next_sentence": "next_sentence"}
        for part, output in covered.items():
            seen = output in self.reference.outputs or (part == "pooler" and "next_sentence" in self.reference.outputs)
            if getattr(self.made.spec, part) is not None and not seen:
                self.notes.append(f"{self.reference.name} has no {part}: its bytes are compared, its result is not")

    def levels(self) -> Iterator[Level]:
        """reference, then replay and fp64 where they fit into memory, then fp32."""
        count = graph.parameters(self.made.spec)
        free = available_memory()
        if count * 4 * 2 > free:
            raise ResourceError(
                f"full verification needs {count * 8 / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free",
                hint="--verify none",
            )
        eager = self._load(torch.float32, "eager")
        yield self._in_memory(eager)
        theirs32 = self._theirs(eager, self.probes)
        del eager
        theirs_sdpa = self._theirs(self._load(torch.float32, "sdpa"), self.probes)
        ours32 = self._ours(self.made.make(torch.float32), self.probes)
        theirs64: Results = {}
        if count * 8 * 2 <= free:
            ours, theirs = self.made.make(torch.float64), self._load(torch.float64, "eager")
            small = [probe for probe in self.probes if count * probe.ids_BT.numel() <= FP64_WORK]
            theirs64 = self._theirs(theirs, small)
            yield self._replay(ours, theirs, small)
            yield self._fp64(self._ours(ours, small), theirs64)
        else:
            yield Level("fp64", "skipped", f"needs {count * 16 / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")
        yield self._fp32(ours32, theirs32, theirs_sdpa, theirs64)

    def _load(self, dtype: torch.dtype, attention: str) -> nn.Module:
        return reference.load(self.reference, self.material, dtype, attention)

    def _theirs(self, model: nn.Module, probes: Sequence[Probe]) -> Results:
        return {
            (output, probe.name): value
            for probe in probes
            for output, value in reference.run(model, probe, self.reference).items()
        }

    def _ours(self, model: Model, probes: Sequence[Probe]) -> Results:
        found: Results = {}
        for probe in probes:
            with torch.no_grad():
                outputs = model(**probe.arguments())
            found |= {(output, probe.name): getattr(outputs, output) for output in self.reference.outputs}
        return found

    def _in_memory(self, model: nn.Module) -> Level:
        """The reference's parameters against the file's numbers: releases have returned random ones in silence."""
        held = dict(model.named_parameters(remove_duplicate=False))
        names = reference.parameter_names(model, list(self.made.source_digests))
        wrong, compared = [], 0
        for name, array, dtype in self.made.undone():
            if name in names:
                compared += 1
                if not torch.equal(held[names[name]].detach(), to_torch(array, dtype).float()):
                    wrong.append(f"{name}: not the file's numbers in memory")
        rest = len(self.made.source_digests) - compared
        details = [*wrong[:20], *([f"{rest} tensors that this class does not have"] if rest else [])]
        return passed(
            "reference", not wrong, f"{compared - len(wrong)}/{compared} tensors in memory are the file's", details
        )

    def _replay(self, ours: Model, theirs: nn.Module, probes: Sequence[Probe]) -> Level:
        """Each component on the reference's own inputs, in double precision."""
        paths = [path for path, _ in ours.named_modules() if path]
        mapping = pairs(self.made.dialect, self.made.steps, self.made.base, paths)
        found = [self._trace(ours, theirs, mapping, probe) for probe in probes if probe.name in ("long", "padded")]
        guilty = {node.ours: node for one in found for node in one.guilty}
        self.guilty = tuple({"ours": n.ours, "theirs": n.theirs, "local": n.local} for n in guilty.values())
        first = next((one.first for one in found if one.first), None)
        self.first = {"ours": first.ours, "theirs": first.theirs, "inherited": first.inherited} if first else None
        nodes = found[0].nodes if found else ()
        local = [node.local for one in found for node in one.nodes if node.local is not None]
        inherit = sum(not node.inherited <= FP64_LIMIT for node in nodes)
        details = [f"{node.ours} is off by {node.local:.1e}" for node in list(guilty.values())[:8]]
        if inherit:
            details.append(f"{inherit} of {len(nodes)} nodes differ, most by what they inherit")
        summary = f"{len(local)} components fed the reference's input, worst {max(local, default=0.0):.1e}"
        return passed("replay", not guilty, summary, details, limit=FP64_LIMIT)

    def _trace(self, ours: Model, theirs: nn.Module, mapping: Any, probe: Probe) -> Trace:
        return trace(ours, theirs, mapping, probe, reference.accepted(theirs, probe.arguments()), FP64_LIMIT)

    def _compare(self, ours: Results, theirs: Results) -> list[Figures]:
        probes = {probe.name: probe for probe in self.probes}
        return [compare(o, p, ours[o, p], theirs[o, p], probes[p].keep_BT) for o, p in theirs if (o, p) in ours]

    def _fp64(self, ours: Results, theirs: Results) -> Level:
        found = self._compare(ours, theirs)
        worst = max((f.rel for f in found), default=0.0)
        summary = f"{_extent(found)}, fp64: rel {worst:.1e}"
        return passed("fp64", worst <= FP64_LIMIT, summary, limit=FP64_LIMIT, figures=tuple(f.to_dict() for f in found))

    def _fp32(self, ours: Results, theirs: Results, sdpa: Results, exact: Results) -> Level:
        """Each result against 2e-5 · max(1, std), or a few times the reference's own noise where that is more."""
        rounding = {(f.output, f.probe): f.max_abs for f in self._compare(theirs, exact)}
        floors = {
            (f.output, f.probe): max(f.max_abs, rounding.get((f.output, f.probe), 0.0))
            for f in self._compare(sdpa, theirs)
        }
        found = self._compare(ours, theirs)
        details, rows = [], []
        for f in found:
            floor = floors[f.output, f.probe]
            limit = (
                self.rtol * f.max_abs / f.rel
                if self.rtol and f.rel
                else max(FP32_LIMIT * max(1.0, f.std), NOISE * floor)
            )
            good = f.max_abs <= limit
            rows.append(f.to_dict() | {"floor": floor, "limit": limit, "passed": good})
            details.append(_line(f, floor, limit, good))
        summary = f"{_extent(found)}, fp32: max |Δ| {max(f.max_abs for f in found):.1e}"
        return passed("fp32", all(row["passed"] for row in rows), summary, details, figures=tuple(rows))


def _extent(found: Sequence[Figures]) -> str:
    outputs = " and ".join(dict.fromkeys(f.output for f in found))
    return f"{outputs}, {len({f.probe for f in found})} probes, {sum(f.positions for f in found)} positions"


def _line(f: Figures, floor: float, limit: float, good: bool) -> str:
    top = f"  top-1 {f.top1:.1%}  KL {f.kl:.0e}" if f.top1 is not None and f.kl is not None else f"  cos {f.cosine:.7f}"
    where = "" if good else f"  at row {f.worst[0][0]}, token {f.worst[0][1]}"
    gap = f"|Δ| {f.max_abs:.1e}  noise {floor:.1e}  limit {limit:.1e}"
    return f"{f.probe:8} {f.output:7} {gap}{top}{where}"


def available_memory() -> float:
    """Bytes of memory that are free to use; unlimited where the system does not tell."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024.0
    return float("inf")
