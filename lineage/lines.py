"""Lines of descent: the family tree, a model's place on it, and the way from one design to another in single steps."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field
from itertools import combinations
from typing import Any

from lineage import catalog, count, graph
from lineage.components import Model
from lineage.describe import of_type
from lineage.design import Diff, Side, choices, compare, numeric, size_name, sizes
from lineage.edits import Edit, applied, between
from lineage.errors import ArchitectureError, LineageError
from lineage.values import Value


class Branch(Value):
    """A family on the tree, or (without a year) a public model type. changes: from its parent, in words."""

    name: str
    year: int | None = None
    about: str = ""
    changes: tuple[str, ...] = ()
    children: list["Branch"] = field(default_factory=list)


def tree(of: str | None = None) -> list[Branch]:
    """The roots of the family tree, or one family. The changes are computed from the specs.

    Raises UsageError for a family that is not known.
    """
    if of and of not in catalog.families():
        raise catalog.unknown(of, catalog.families())
    families = sorted(catalog.families().values(), key=lambda one: (one.year, one.name))
    models = {family.name: Side(catalog.spec(family.name)) for family in families}
    found: dict[str, Branch] = {}
    for one in families:
        changes = _changes(models[str(one.parent)], models[one.name]) if one.parent in models else ()
        found[one.name] = Branch(one.name, one.year, one.about, changes)
    for one in families:
        if one.parent:
            found.setdefault(one.parent, Branch(one.parent)).children.append(found[one.name])
    for kind, usual in sorted(types().items()):
        family = catalog.dialects()[kind].spec
        found[family].children.append(Branch(kind, changes=_changes(models[family], Side(usual)) if usual else ()))
    roots = [branch for name, branch in found.items() if name not in models or not catalog.families()[name].parent]
    return [found[of]] if of else roots


def types() -> dict[str, Model | None]:
    """Every public model type as the reference's defaults make it; None where these contradict each other."""
    found: dict[str, Model | None] = dict.fromkeys(catalog.dialects())
    for kind in found:
        with suppress(ArchitectureError):
            found[kind] = of_type(kind)
    return found


def _changes(before: Side, after: Side) -> tuple[str, ...]:
    return tuple(row.label for row in compare(before, after).design) if after.model != before.model else ()


def nearest(model: Model, family: str | None = None, few: int = 5) -> list[Diff]:
    """The published models and public types that differ least in design, then in size, then those of `family`."""
    known = {name: (found.name, catalog.spec(name)) for name, (found, _) in catalog.published().items()}
    others = {kind: (catalog.dialects()[kind].spec, usual) for kind, usual in types().items() if usual}
    known = others | known
    sides, it = {name: Side(other) for name, (_, other) in known.items()}, Side(model)
    far = {name: (distance(between(one.tree, it.tree)), known[name][0] != family) for name, one in sides.items()}
    return [compare(sides[name], it, (name, "it")) for name in sorted(far, key=far.__getitem__)[:few]]


def relatives(name: str, family: str, near: list[Diff]) -> dict[str, Any]:
    """A model's place on the tree as JSON."""
    changes = [(one, [row.label for row in one.design]) for one in near]
    told = [
        {"name": d.names[0], "distance": distance(d.script), "changes": what, "sizes": d.sizes} for d, what in changes
    ]
    return {"schema": "lineage.tree/1", "name": name, "family": family, "nearest": told}


def distance(script: Sequence[Edit]) -> tuple[int, int, float]:
    """How far two designs are apart: aspects that differ, aspects in which only numbers do, and ratios of sizes."""
    ratios = sum(abs(math.log(after / before)) for before, after in sizes(script).values())
    found = choices(script).values()
    alone = sum(map(numeric, found))
    return len(found) - alone, alone, ratios


class Step(Value):
    """One change on the way, and the architecture that it leads to."""

    change: str
    model: Model

    def to_dict(self) -> dict[str, Any]:
        return {"change": self.change, **count.figures(self.model), "spec": graph.to_json(self.model)}


def path(diff: Diff) -> list[Step]:
    """From one architecture to the other, one aspect a step, every spec on the way a valid one; sizes come first.

    The order is that of the design's rows; an aspect that cannot be yet waits for another. What can only go together
    goes together.
    """
    first = [edit for edit in diff.script if not edit.decided]
    told = ", ".join(dict.fromkeys(f"{size_name(e)} {e.before:,} → {e.after:,}" for e in first if e.state == "size"))
    waiting = {f"sizes: {told}": first}
    if any(isinstance(step, tuple) for edit in diff.script for step in edit.path) and not _applied(diff.before, first):
        depth = [edit for edit in first if edit.phase == "length"]  # at least: layers are told by their place in it
        waiting = {"layers": depth, f"sizes: {told}": [edit for edit in first if edit not in depth]}
    for row in diff.design:
        waiting[f"{row.aspect}: {row.before} → {row.after}"] = [edit for edit in row.edits if edit.decided]
    steps = [Step("", diff.before)]
    while waiting := {name: edits for name, edits in waiting.items() if edits}:
        groups = [group for n in (1, 2, len(waiting)) for group in combinations(waiting, min(n, len(waiting)))]
        trials = ((group, _applied(steps[-1].model, [e for name in group for e in waiting[name]])) for group in groups)
        group, model = next((group, model) for group, model in trials if model)
        steps.append(Step("; ".join(group), model))
        waiting = {name: edits for name, edits in waiting.items() if name not in group}
    assert steps[-1].model == diff.after, "the steps lead elsewhere than the script"
    return steps


def _applied(model: Model, edits: list[Edit]) -> Model | None:
    try:
        return applied(sorted(edits, key=Edit.rank), model)
    except LineageError:
        return None
