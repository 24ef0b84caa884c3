"""Heads: what is made of the last layer's vectors, as components."""

from collections.abc import Mapping

from lineage.embedding import Projection
from lineage.fields import Component, Shape, check_activation, check_positive, choice, contradiction, dense, size
from lineage.norms import Norm, check_tables

READS = ("pooled", "first", "start", "mean", "each")
TASKS = {"text": None, "choice": 1, "tokens": None, "span": 2, "replaced": 1}
"""What a classifier scores, and how many scores that takes, where it is not the user's choice."""


class Transform(Component):
    """norm(activation(dense(x))) before the vocabulary or classes (Devlin et al. 2018, the released code).

    width: of what leaves it; None keeps it. bias: of the dense map.
    """

    activation: str = choice()
    norm: Norm | None = choice(default=None)
    width: int | None = size(default=None)
    bias: bool = choice(default=True)

    def check(self) -> None:
        check_activation(self.activation)
        check_tables(self)

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return dense("dense", self.width or width, width, self.bias)

    def child_width(self, child: str, width: int) -> int:
        return self.width or width


class Head(Component):
    """Vectors to logits over the vocabulary. tied: by the token table itself (Press & Wolf 2017).

    transform or projection come before the table. late: the bias is added to logits that were rounded to the model's
    type. scale: logits are multiplied by it; early: what meets the table is. softcap: then bent to
    c · tanh(logits / c) (Gemma 2, §2).
    """

    vocab: int = size()
    tied: bool = choice()
    bias: bool = choice(default=False)
    late: bool = choice(default=False)
    transform: Transform | None = choice(default=None)
    projection: Projection | None = choice(default=None)
    scale: float | None = choice(default=None)
    early: bool = choice(default=False)
    softcap: float | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "softcap", "scale")
        if self.early and self.scale is None:
            raise contradiction("early is of a scale, and there is none", "early", "scale")
        if self.transform and self.projection:
            raise contradiction("a head has a transform or a projection, not both", "transform", "projection")
        if self.late and not self.bias:
            raise contradiction("late is of a bias, and there is none", "late", "bias")

    def table_width(self, width: int) -> int:
        """The width of the vectors that meet the table."""
        before = self.transform or self.projection
        return (before.width if before else None) or width

    def tensors(self, width: int) -> Mapping[str, Shape]:
        weight: dict[str, Shape] = {} if self.tied else {"weight": (self.vocab, self.table_width(width))}
        return weight | ({"bias": (self.vocab,)} if self.bias else {})


class Pooler(Component):
    """tanh(dense(x)) of the first token (Devlin et al. 2018, §3.1)."""

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return dense("dense", width, width, True)


class Classifier(Component):
    """Scores by a linear map, after a transform if there is one (Devlin et al. 2018, §4).

    task: what is scored: a "text" in each class; a text as a "choice" among others; "tokens", each in each class; each
    token as the begin and the end of a "span" that answers; whether each was "replaced" (Clark et al. 2020, §2).
    reads: one vector a text, the "pooled" one, the "first" token's, that of the first that is no padding ("start") or
    the "mean" of those that are none; or "each" token's.
    """

    classes: int = size()
    task: str = choice(default="text")
    reads: str = choice(default="pooled")
    transform: Transform | None = choice(default=None)

    def check(self) -> None:
        if self.task not in TASKS or self.reads not in READS:
            known = f"{', '.join(TASKS)}; {', '.join(READS)}"
            odd = f"a classifier of {self.task[:20]!r} that reads {self.reads[:20]!r}"
            raise contradiction(f"{odd}: not of {known}", "task", "reads")
        if (self.reads == "each") != (self.task not in ("text", "choice")):
            raise contradiction(f"a classifier of task {self.task!r} does not read {self.reads!r}", "task", "reads")
        if TASKS[self.task] not in (None, self.classes):
            count = TASKS[self.task]
            raise contradiction(f"task {self.task!r} takes {count} scores, not {self.classes}", "classes", "task")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        inner = (self.transform.width if self.transform else None) or width
        return {"weight": (self.classes, inner), "bias": (self.classes,)}


def scorer(task: str | None, classes: int, reads: str, transform: Transform | None = None) -> Classifier | None:
    """A head for a task, if there is one. reads: what of a text it scores."""
    if task is None:
        return None
    count, texts = 1 if TASKS.get(task) == 1 else classes, task in ("text", "choice")
    return Classifier(classes=count, task=task, reads=reads if texts else "each", transform=transform)
