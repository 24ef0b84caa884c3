"""The differences between two architectures as a specialist tells them: a row for each aspect of the design.

Every edit of the script belongs to one aspect. An aspect with a choice among its edits is a row of the design; what is
left are sizes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from lineage import count
from lineage.aspects import aspect_of, aspects
from lineage.components import Bidirectional, Model
from lineage.edits import ROOT, Edit, applied, between, lay_open
from lineage.values import Value
from lineage.words import joined, number

ORDER = ("encoder", "mask", "embedding scale", "norm placement", "embedding norm", "final norm", "norm", "segments",
         "positions", "attention", "mlp", "heads", "biases")  # fmt: skip
"""What changed first comes first, 2017 to today; the rest as it stands in the spec, and then what matters least."""
LAST = ("padding token", "rounding")
SPEAKING = ("encoder", "norm", "positions", "mlp", "mask", "heads", "segments", "attention", "shared layers",
            "rounding")  # fmt: skip
"""Aspects whose words need no name before them."""
ALONE = ("decoder alone", "encoder alone")


class Row(Value):
    """One aspect of two designs in words. state: changed, moved, added, removed, or same."""

    aspect: str
    state: str
    before: str
    after: str
    edits: tuple[Edit, ...] = ()

    @property
    def label(self) -> str:
        """The change in few words, as an edge of the family tree says it."""
        if self.after in ("none", "yes"):
            return f"{'no ' if self.after == 'none' else ''}{self.aspect}"
        alone = self.aspect in SPEAKING and not self.after.startswith("none")
        return self.after if alone else f"{self.aspect.removesuffix(' placement')} {self.after}"

    @property
    def numeric(self) -> bool:
        return numeric(self.edits)


class Diff(Value):
    """What lies between two architectures. design: the aspects that differ; same: those that do not; sizes: name ->
    before, after; script: the exact edits."""

    before: Model
    after: Model
    names: tuple[str, str]
    script: tuple[Edit, ...]
    design: tuple[Row, ...]
    same: tuple[Row, ...]
    sizes: dict[str, tuple[int, int]]

    def apply(self, model: Model) -> Model:
        """The script applied: turns `before` into `after`. Raises as `edits.applied` does."""
        return applied(self.script, model)

    @cached_property
    def figures(self) -> dict[str, tuple[int, int]]:
        """What it leads to, before and after (see `count.figures`)."""
        one, other = count.figures(self.before), count.figures(self.after)
        return {name: (one[name], other[name]) for name in one}

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        words = ("aspect", "state", "before", "after")
        rows = {
            of: [{word: getattr(row, word) for word in words} for row in getattr(self, of)] for of in ("design", "same")
        }
        facts = {"schema": "lineage.diff/1", "names": self.names, "identical": not self.script, **rows}
        return facts | {"sizes": self.sizes, "figures": self.figures, "script": [asdict(edit) for edit in self.script]}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from lineage.render import comparison

        return {"text/plain": "\n".join(comparison.table(self)), "text/markdown": "\n".join(comparison.markdown(self))}


def diff(before: Model | str, after: Model | str) -> Diff:
    """What changed between two architectures: specs, or what `describe` finds under a name. Raises its errors."""
    from lineage.checkpoint.source import Access
    from lineage.describe import describe

    sides = (("before", before), ("after", after))
    found = [(one, describe(one, Access()).model) if isinstance(one, str) else (name, one) for name, one in sides]
    return compare(found[0][1], found[1][1], (found[0][0], found[1][0]))


class Side:
    """An architecture to be compared with several others: what hangs on it alone is found once."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @cached_property
    def tree(self) -> Any:
        return lay_open(self.model)

    @cached_property
    def aspects(self) -> dict[str, str]:
        return aspects(self.model)


def compare(before: Model | Side, after: Model | Side, names: tuple[str, str] = ("before", "after")) -> Diff:
    """What changed between two architectures."""
    first, second = (one if isinstance(one, Side) else Side(one) for one in (before, after))
    edits, one, other, before, after = (
        between(first.tree, second.tree), first.aspects, second.aspects, first.model, second.model,
    )  # fmt: skip
    decided = choices(edits)
    design = [
        _row(n, e, one.get(n) or _absent(n, before), other.get(n) or _absent(n, after)) for n, e in decided.items()
    ]
    same = [Row(name, "same", one[name], other[name]) for name in one if name in other and name not in decided]
    told, kept = (tuple(sorted(rows, key=_rank)) for rows in (design, same))
    return Diff(before, after, names, edits, told, kept, sizes(edits))


def choices(edits: Iterable[Edit]) -> dict[str, list[Edit]]:
    """The aspects in which something is decided otherwise, each with all of its edits."""
    grouped: dict[str, list[Edit]] = {}
    for edit in edits:
        grouped.setdefault(aspect(edit), []).append(edit)
    return {name: found for name, found in grouped.items() if any(edit.decided for edit in found)}


def numeric(edits: Sequence[Edit]) -> bool:
    """Whether only numbers are other ones: an eps, a theta."""
    return bool(edits) and all(type(edit.before) is type(edit.after) is float for edit in edits)


def sizes(edits: Sequence[Edit]) -> dict[str, tuple[int, int]]:
    """The dimensions that differ, but for those that the words of an aspect hold."""
    told = {"heads"} & set(choices(edits))
    sized = [edit for edit in edits if edit.state == "size" and aspect(edit) not in told]
    return {size_name(edit): (edit.before, edit.after) for edit in sized}


def _absent(name: str, model: Model) -> str:
    """The words for an aspect that a design has nothing of."""
    if name == "encoder":
        return ALONE[isinstance(model.blocks[0].attention.body.mask, Bidirectional)]  # type: ignore[union-attr]
    return {"branches": "one after the other", "score scale": ROOT, "rounding": "rounding as usual"}.get(name, "none")


def _rank(row: Row) -> tuple[bool, int]:
    place = ORDER.index(row.aspect) if row.aspect in ORDER else len(ORDER) + (row.aspect in LAST)
    return row.numeric, place


def _row(name: str, edits: list[Edit], before: str, after: str) -> Row:
    gone, moved = [text in ("none", *ALONE) for text in (before, after)], any(edit.state == "moved" for edit in edits)
    state = "moved" if moved else "added" if gone[0] else "removed" if gone[1] else "changed"
    if before == after:  # what the words leave out
        chosen = [edit for edit in edits if edit.decided]
        before = joined(dict.fromkeys(_field(edit, edit.before) for edit in chosen))
        after = joined(dict.fromkeys(_field(edit, edit.after) for edit in chosen))
    return Row(name, state, before, after, tuple(edits))


def _field(edit: Edit, value: Any) -> str:
    """A field and its value: ``norm eps 1e-12``, ``head not late``."""
    *owner, last = edit.names[-2:]
    told = f"{'' if value else 'not '}{last}" if isinstance(value, bool) else f"{last} {number(value)}"
    return " ".join([*owner, told])


def size_name(edit: Edit) -> str:
    """A dimension's name: ``layers``, ``width``, ``mlp width``, ``vocab``."""
    if edit.names[-1] in ("blocks", "order"):
        return "layers"
    *owners, last = (name for name in edit.names if name not in ("blocks", "body", "embed"))
    general = last in ("width", "length", "count") and owners
    return (f"{owners[-1]} {last}" if general else last).replace("_", " ")


def aspect(edit: Edit) -> str:
    """The aspect of the design that an edit belongs to."""
    moved, parts = edit.phase == "moved", edit.phase != "kind" and dict in (type(edit.before), type(edit.after))
    return aspect_of((*edit.names, edit.after) if moved else edit.names, moved or parts)
