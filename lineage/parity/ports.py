"""Somebody else's module against a model of ours: which of its parts is the first to differ, and which are at fault.

The other side may be any `nn.Module`, or activations that it left behind. Ours is the reference here: verified
against transformers, and named part by part.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lineage.errors import UsageError
from lineage.modules.loading import from_pretrained
from lineage.modules.model import Model
from lineage.parity.activations import Node, Pair, Recorder, record
from lineage.parity.figures import distance
from lineage.parity.probes import Probe, default_probes
from lineage.parity.replay import Trace, trace
from lineage.parity.report import Level, Report, passed
from lineage.parity.verification import conditions

LIMITS = {torch.float64: 1e-10, torch.float32: 2e-5}  # relative, for one component; lower precisions take a looser one
LOOSE = 2e-2
PILED = 10.0  # times the limit of one component: what the noise of all before it may come to


def verify_module(
    candidate: nn.Module | Mapping[str, Tensor],
    against: str | Path | Model,
    ports: Mapping[str, str],
    *,
    input_ids: Tensor | None = None,
    limit: float | None = None,
) -> Report:
    """Compare a module, or a dump of its activations, with a model of ours.

    candidate: takes token ids [B, T] as its first argument; or a map of port names to recorded activations, with the
    input_ids that made them. against: a converted directory, anything that `convert` takes, or a model. ports: the
    candidate's module paths (or the dump's names) -> our component paths; "" is the whole model. limit: on the
    relative distance of one component; by default what the candidate's precision allows, so that a candidate in
    double precision is judged without noise. The report names our components, with the candidate's in brackets.
    """
    reference = deepcopy(against) if isinstance(against, Model) else from_pretrained(against)
    _check_ports(candidate, reference, ports)
    held = candidate.parameters() if isinstance(candidate, nn.Module) else candidate.values()
    dtype = next((value.dtype for value in held if value.is_floating_point()), torch.float32)
    reference = reference.to(dtype)
    allowed = limit if limit is not None else LIMITS.get(dtype, LOOSE)
    probe = Probe("given", input_ids) if input_ids is not None else _probe(reference)
    found = (
        _traced(candidate, reference, ports, probe, allowed)
        if isinstance(candidate, nn.Module)
        else _dumped(candidate, reference, ports, probe, allowed)
    )
    worst = max((node.inherited for node in found.nodes), default=float("inf"))
    wide = PILED * allowed
    local = max((node.local for node in found.nodes if node.local is not None), default=0.0)
    levels: list[Level] = [
        passed("ports", worst <= wide, f"{len(found.nodes)} ports compared, worst {worst:.1e}", limit=wide),
        passed("replay", not found.guilty, f"each on our input, worst {local:.1e}", limit=allowed)
        if isinstance(candidate, nn.Module)
        else Level("replay", "skipped", "a dump cannot be run again"),
    ]
    return Report(
        type(candidate).__name__,
        str(against if not isinstance(against, Model) else against.provenance.get("directory", "our model")),
        tuple(levels),
        conditions=conditions(),
        guilty=tuple(_turned(node) for node in found.guilty),
        first_divergence=_turned(found.first) if found.first and any(level.failed for level in levels) else None,
        nodes=tuple(_turned(node) for node in found.nodes),
        notes=tuple(f"{path} gave nothing to compare" for path in found.unpaired),
    )


def _turned(node: Node) -> dict[str, Any]:
    """Traced as the candidate against us, told as us against the candidate: in every report `ours` is our own."""
    return replace(node, ours=node.theirs, theirs=node.ours).to_dict()


def _probe(reference: Model) -> Probe:
    probes = [
        probe for probe in default_probes(reference.spec) if probe.keep_BT is None and probe.ids_BT.numel() <= 128
    ]
    return Probe("default", probes[-1].ids_BT)


def _check_ports(candidate: nn.Module | Mapping[str, Tensor], reference: Model, ports: Mapping[str, str]) -> None:
    theirs = {path for path, _ in candidate.named_modules()} if isinstance(candidate, nn.Module) else set(candidate)
    ours = {path for path, _ in reference.named_modules()}
    odd = [f"{path!r} is not in the candidate" for path in ports if path not in theirs]
    odd += [f"{path!r} is not a component of ours" for path in ports.values() if path not in ours]
    if odd or not ports:
        raise UsageError(
            "ports do not fit", facts=odd[:20] or ["none are given"], hint="lineage show MODEL lists our paths"
        )


def _traced(candidate: nn.Module, reference: Model, ports: Mapping[str, str], probe: Probe, limit: float) -> Trace:
    own = record(reference, probe.arguments())
    mapping = [Pair(theirs, ours, given=_takes_ids(own, ours)) for theirs, ours in ports.items()]
    return trace(candidate, reference, mapping, probe, probe.arguments(), limit, our_arguments=(probe.ids_BT,))


def _takes_ids(own: Recorder, path: str) -> bool:
    call = own.calls.get(path)
    return call is not None and bool(call.inputs) and not call.inputs[0].is_floating_point()


def _dumped(
    dump: Mapping[str, Tensor], reference: Model, ports: Mapping[str, str], probe: Probe, limit: float
) -> Trace:
    own = record(reference, probe.arguments())
    nodes = []
    for theirs, ours in sorted(ports.items(), key=lambda port: own.order.index(port[1]) if port[1] in own.order else 0):
        output = own.calls[ours].output if ours in own.calls else None
        if output is not None:
            nodes.append(Node(theirs, ours, distance(dump[theirs], output), None))
    first = next((node for node in nodes if not node.inherited <= limit), None)
    return Trace(tuple(nodes), (), first, tuple(name for name in ports if name not in {node.ours for node in nodes}))
