"""`lineage.verify`: a model against the reference, level by level."""

import contextlib
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import lineage
from lineage.checkpoint.source import Access, Source
from lineage.errors import ResourceError
from lineage.installed import version
from lineage.modules.model import Model
from lineage.parity import levels
from lineage.parity.activations import Node
from lineage.parity.behaviour import behaviour
from lineage.parity.device import described, find, strict
from lineage.parity.probes import default_probes, given_probes
from lineage.parity.replay import Trace
from lineage.parity.report import LEVELS, Level, Report, check_levels
from lineage.parity.session import Session
from lineage.parity.subject import Subject, subject
from lineage.parity.training import training


def verify(
    model: str | Path | Model,
    against: str | Path | Source = "transformers",
    *,
    only: Sequence[str] = (),
    prompts: Sequence[Sequence[int]] = (),
    rtol: float | None = None,
    device: str = "cpu",
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    allow_pickle: bool = False,
    drop_head: bool = False,
) -> Report:
    """Compare a model with the reference and say, level by level, what holds.

    model: a converted directory, a model loaded from one, or anything that `convert` takes. against: "transformers"
    loads the same numbers there; a hub id or directory is loaded instead. only: some of LEVELS; all by default.
    prompts: token ids to run besides the default probes. rtol: a limit on the fp32 relative difference instead of the
    measured one. device: where both run: cpu, cuda or cuda:N. drop_head: of a checkpoint take the backbone alone.

    Returns a report, passed or not. Raises the project's errors where nothing can be compared.
    """
    check_levels(only)
    device = find(device)
    wanted = [name for name in LEVELS if name in only or not only]
    access = Access(revision, token, Path(cache_dir) if cache_dir else None, local_files_only)
    made = subject(model, access, allow_pickle, drop_head and not isinstance(against, Source))
    found = [level(made) for name, level in (("static", levels.static), ("bytes", levels.stored)) if name in wanted]
    with contextlib.ExitStack() as stack:
        other = _other(against, access, allow_pickle, drop_head)
        if other is not None:
            found.append(levels.same_tensors(made, other))
            if made.cast:  # from here on the reference computes with the cast numbers too
                other = None
        material = stack.enter_context((other or made).material())
        stack.enter_context(strict(device))
        probes = (*default_probes(made.spec), *given_probes(made.spec, prompts))
        session = Session(made, material, probes, rtol, other, device)
        traces: list[Trace] = []
        if set(wanted) - {"static", "bytes"}:
            found += _climb(session, wanted, traces)
    return report(session, found, traces)


def _other(against: str | Path | Source, access: Access, allow_pickle: bool, drop_head: bool) -> Subject | None:
    """The checkpoint that the reference is to load in place of the model's own numbers."""
    if isinstance(against, Source):
        return subject(str(against.file or against.directory), access, allow_pickle, drop_head)
    return None if against == "transformers" else subject(against, access, allow_pickle, drop_head)


def _climb(session: Session, wanted: Sequence[str], traces: list[Trace]) -> Iterator[Level]:
    """The levels that run both sides: those in double precision first. Ends early if the reference is not the file."""
    if not session.fits(4):
        raise ResourceError(
            f"verification needs {session.parameters * 8 / 1e9:.1f} GB of memory",
            facts=[f"free   {session.free() / 1e9:.1f} GB"],
            hint="convert with --verify none",
        )
    double = session.fits(8)
    loaded = levels.in_memory(session, torch.float64 if double else torch.float32)
    if "reference" in wanted or loaded.failed:
        yield loaded
    if loaded.failed:
        return

    def replayed(one: Session) -> Level:
        level, traced = levels.replay(one)
        traces.extend(traced)
        return level

    rungs: dict[str, Callable[[Session], Level]] = {
        "replay": replayed, "fp64": levels.fp64, "behaviour": behaviour, "training": training,
        "fp32": levels.fp32, "bf16": levels.bf16,
    }  # fmt: skip
    for name, rung in rungs.items():
        if name not in wanted:
            continue
        if name in ("replay", "fp64", "behaviour", "training") and not double:
            yield Level(name, "skipped", f"double precision needs {session.parameters * 16 / 1e9:.1f} GB of memory")
        else:
            yield rung(session)


def report(session: Session, found: Sequence[Level], traces: Sequence[Trace]) -> Report:
    """The report of some levels, in the order of the ladder."""
    order = ["static", "bytes", "against", *LEVELS[2:]]
    worst: dict[str, Node] = {}
    for node in (node for one in traces for node in one.nodes):
        worst[node.ours] = node.worse(worst.get(node.ours))
    guilty = {node.ours for one in traces for node in one.guilty}
    first = next((one.first for one in traces if one.first), None)
    ran = {level.name for level in found} - {"static", "bytes", "against"}
    where = [f"both ran on {described(session.device)}"] if ran and session.device != "cpu" else []
    source, used = session.against.name if session.against else "its source", session.reference
    return Report(
        session.made.name,
        f"{used.library} {_version(used.library)} ({used.name})" if ran else source,
        tuple(sorted(found, key=lambda level: order.index(level.name))),
        conditions=conditions(session.device),
        guilty=tuple(node.to_dict() for node in worst.values() if node.ours in guilty),
        first_divergence=first.to_dict() if first else None,
        nodes=tuple(node.to_dict() for node in worst.values()),
        faults=tuple(session.faults),
        notes=(*session.notes, *where),
    )


def _version(package: str) -> str:
    return version(package) or "of no version"  # a module by itself, or one of another distribution


def conditions(device: str = "cpu") -> dict[str, Any]:
    """What a figure depends on."""
    return {
        "lineage": lineage.__version__,
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "device": described(device),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
