"""The loss and every parameter's gradient against the reference's, in double precision."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lineage.modules.losses import causal_loss, masked_loss
from lineage.modules.model import Model
from lineage.operations import invert
from lineage.parity import reference
from lineage.parity.figures import distance
from lineage.parity.islands import lifted
from lineage.parity.probes import Probe, tokens, usable_length
from lineage.parity.report import Level, passed
from lineage.parity.session import Session
from lineage.plan import shown

GRADIENT_LIMIT = 1e-10  # relative to the tensor's largest gradient
FAINT = 1e-4  # of the largest of all: below it a gradient is rounding (a key's bias has none in exact arithmetic)


def training(session: Session) -> Level:
    """One backward of each side on the same batch."""
    ours, theirs = session.pair(torch.float64)
    spec = session.made.spec
    ids_BT = tokens(spec, 2, min(16, usable_length(spec)), torch.Generator().manual_seed(9))
    probe = Probe("training", ids_BT)
    with lifted(), reference.quiet():
        mine, its = _losses(session, ours, theirs, probe)
        mine.backward()
        its.backward()
    gaps = _gaps(session, ours, theirs)
    for model in (ours, theirs):
        model.zero_grad(set_to_none=True)
    loss = distance(mine.detach(), its.detach())
    worst = sorted(gaps.items(), key=lambda item: -item[1])
    bad = [f"{name}: gradient off by {gap:.1e}" for name, gap in worst if not gap <= GRADIENT_LIMIT]
    summary = f"loss off by {loss:.1e}, {len(gaps)} gradients, worst {worst[0][1] if worst else 0.0:.1e}"
    good = loss <= GRADIENT_LIMIT and not bad and bool(gaps)
    return passed("training", good, summary, shown(bad, 5), limit=GRADIENT_LIMIT)


def _losses(session: Session, ours: Model, theirs: nn.Module, probe: Probe) -> tuple[Tensor, Tensor]:
    """The family's own loss where the reference computes it from labels; else a fixed sum of its results."""
    given = reference.accepted(theirs, probe.arguments())
    mine = ours(**probe.arguments())
    if "logits" in session.reference.outputs and list(session.reference.outputs) == ["logits"]:
        labels_BT = probe.ids_BT.clone()
        labels_BT[:, ::3] = -100
        assert "labels" in inspect.signature(theirs.forward).parameters
        loss = causal_loss if session.causal else masked_loss
        return loss(mine.logits, labels_BT), theirs(**given, labels=labels_BT).loss
    outputs = theirs(**given)
    pairs = [(getattr(mine, name), getattr(outputs, its)) for name, its in session.reference.outputs.items()]
    sums = [(_weighed(a), _weighed(b)) for a, b in pairs]
    return torch.stack([a for a, _ in sums]).sum(), torch.stack([b for _, b in sums]).sum()


def _weighed(value: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape)
    return (value * weights).sum()


def _gaps(session: Session, ours: Model, theirs: nn.Module) -> dict[str, float]:
    """Source tensor's name -> how far its gradient is off; our gradients go back through the mapping as weights do."""
    held = dict(ours.named_parameters())
    sources = [name for step in session.made.memory for name in step.sources]
    names = reference.parameter_names(theirs, [*sources, *session.made.copies])
    other = dict(theirs.named_parameters(remove_duplicate=False))
    top = max(float(p.grad.abs().max()) for p in held.values() if p.grad is not None)
    gaps = {}
    for step in session.made.memory:
        given = zip(step.targets, step.target_shapes, strict=True)
        arrays = [_gradient(held.get(target), shape).numpy() for target, shape in given]
        for name, array in zip(step.sources, invert(step.operations, arrays), strict=True):
            if name in names:  # and its copies, which the reference may train in its place
                same = (name, *(copy for copy, of in session.made.copies.items() if of == name and copy in names))
                owners = {id(other[names[one]]): other[names[one]] for one in same}
                want = torch.stack([_gradient(owner, array.shape) for owner in owners.values()]).sum(0)
                gap = (torch.from_numpy(array.copy()) - want).abs().max().item()
                gaps[name] = gap / max(want.abs().max().item(), FAINT * top)
    return gaps


def _gradient(parameter: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Zero where nothing flows back, and for a tensor that a changed module has lost."""
    gradient = None if parameter is None else parameter.grad
    return torch.zeros(*shape, dtype=torch.float64) if gradient is None else gradient
