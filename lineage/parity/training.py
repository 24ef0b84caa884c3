"""The loss and every parameter's gradient against the reference's, in double precision."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lineage.misfits import shown
from lineage.modules.losses import causal_loss, class_loss, masked_loss, span_loss
from lineage.modules.model import Model
from lineage.operations import invert
from lineage.parity import reference
from lineage.parity.figures import distance
from lineage.parity.islands import lifted
from lineage.parity.probes import Probe, sources, tokens, usable_length
from lineage.parity.report import Level, passed
from lineage.parity.session import Session

GRADIENT_LIMIT = 1e-10  # relative to the tensor's largest gradient
FAINT = 1e-4  # of the largest of all: below it a gradient is rounding (a key's bias has none in exact arithmetic)


def training(session: Session) -> Level:
    """One backward of each side on the same batch."""
    ours, theirs = session.pair(torch.float64)
    spec = session.made.spec
    ids_BT = tokens(spec, 2, min(16, usable_length(spec)), torch.Generator().manual_seed(9))
    rows, length = ids_BT.shape
    source_BS = sources(spec, rows, length, torch.Generator().manual_seed(10))
    probe = Probe("training", ids_BT, source_BS=source_BS)
    usual, ours.attention = ours.attention, session.attention  # a kernel's backward loses digits where scores are large
    mine = _ours(session, ours, probe)
    mine.backward()
    ours.attention = usual
    with lifted(), reference.quiet():
        its = _theirs(session, theirs, probe)
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


def _labels(session: Session, probe: Probe) -> dict[str, Tensor]:
    """What a model is to say, by the reference's names, where it computes a loss from it; else a fixed sum is taken."""
    ids_BT, classifier = probe.ids_BT, session.made.spec.classifier
    if session.reference.build is not None or list(session.reference.outputs) not in (["logits"], ["scores"]):
        return {}
    if classifier is None or "scores" not in session.reference.outputs:
        return {"labels": _some(ids_BT.clone())}
    classes_BT, row_B = ids_BT % classifier.classes, torch.arange(len(ids_BT))
    labels = {
        "text": lambda: _text_labels(len(ids_BT), classifier.classes, problem(session)),
        "choice": lambda: row_B[-1:],
        "tokens": lambda: _some(classes_BT),
        "replaced": lambda: (ids_BT % 2).double(),
    }
    if classifier.task == "span":
        return {"start_positions": row_B + 1, "end_positions": row_B + 3}
    return {"labels": labels[classifier.task]()}


def _some(labels_BT: Tensor) -> Tensor:
    """Every third does not count."""
    labels_BT[:, ::3] = -100
    return labels_BT


def problem(session: Session) -> str:
    """What kind of loss a classifier of texts is trained with: as the config says, or as its classes suggest."""
    classifier = session.made.spec.classifier
    usual = "regression" if classifier and classifier.classes == 1 else "single_label_classification"
    return session.material.said().get("problem_type") or usual


def _text_labels(rows: int, classes: int, kind: str) -> Tensor:
    numbers = torch.linspace(-1, 1, rows * classes, dtype=torch.float64).reshape(rows, classes)
    if kind == "regression":
        return numbers[:, 0] if classes == 1 else numbers
    return (numbers > 0).double() if kind == "multi_label_classification" else torch.arange(rows) % classes


def _ours(session: Session, model: Model, probe: Probe) -> Tensor:
    outputs, labels = model(**probe.arguments(session.device)), _labels(session, probe)
    if not labels:
        return torch.stack([_weighed(getattr(outputs, name)) for name in session.reference.outputs]).sum()
    if "scores" in session.reference.outputs:
        return _score_loss(session, outputs.scores.cpu(), labels)
    loss = causal_loss if session.causal and probe.source_BS is None else masked_loss
    return loss(outputs.logits.cpu(), labels["labels"])


def _score_loss(session: Session, scores: Tensor, labels: dict[str, Tensor]) -> Tensor:
    single, several = "single_label_classification", "multi_label_classification"
    match session.made.spec.classifier.task if session.made.spec.classifier else "":
        case "span":
            return span_loss(scores, *labels.values())
        case "tokens":
            return masked_loss(scores, labels["labels"])
        case "choice":
            return class_loss(scores.transpose(0, 1), labels["labels"], single)
        case "replaced":
            return class_loss(scores[..., 0], labels["labels"], several)
    return class_loss(scores, labels["labels"], problem(session))


def _theirs(session: Session, model: nn.Module, probe: Probe) -> Tensor:
    given, labels = probe.arguments(), _labels(session, probe)
    if not labels:
        outputs = model(**reference.accepted(model, given))
        return torch.stack(
            [_weighed(reference.result(outputs, name)) for name in session.reference.outputs.values()]
        ).sum()
    assert labels.keys() <= inspect.signature(model.forward).parameters.keys()
    loss: Tensor = model(**reference.accepted(model, {**given, **labels})).loss
    return loss.cpu()


def _weighed(value: Tensor) -> Tensor:
    value = value.cpu()
    weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).reshape(value.shape)
    return (value * weights).sum()


def _gaps(session: Session, ours: Model, theirs: nn.Module) -> dict[str, float]:
    """Source tensor's name -> how far its gradient is off; our gradients go back through the mapping as weights do."""
    held = dict(ours.named_parameters())
    sources = [name for step in session.made.memory for name in step.sources]
    names = reference.parameter_names(theirs, [*sources, *session.made.copies])
    other = {name: one for name, one in theirs.named_parameters(remove_duplicate=False) if one.requires_grad}
    top = max(float(p.grad.abs().max()) for p in held.values() if p.grad is not None)
    gaps = {}
    for step in session.made.memory:
        given = zip(step.targets, step.target_shapes, strict=True)
        arrays = [_gradient(held.get(target), shape).numpy() for target, shape in given]
        for name, array in zip(step.sources, invert(step.operations, arrays), strict=True):
            if name in names:  # and its copies, which the reference may train in its place
                same = (name, *(copy for copy, of in session.made.copies.items() if of == name and copy in names))
                owners = {id(other[names[one]]): other[names[one]] for one in same if names[one] in other}
                if not owners:  # it does not train what it keeps as a buffer, or has frozen
                    continue
                want = torch.stack([_gradient(owner, array.shape) for owner in owners.values()]).sum(0)
                gap = (torch.from_numpy(array.copy()) - want).abs().max().item()
                gaps[name] = gap / max(want.abs().max().item(), FAINT * top)
    return gaps


def _gradient(parameter: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Zero where nothing flows back, and for a tensor that a changed module has lost."""
    gradient = None if parameter is None else parameter.grad
    return torch.zeros(*shape, dtype=torch.float64) if gradient is None else gradient.cpu()
