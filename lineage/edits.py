"""The edit script between two specs: what turns one value into the other, exactly.

Both are laid open as plain trees (as in `graph.to_json`, but unfolded) and aligned by role and path. A stack of other
depth is first stretched: its beginning and the pattern that repeats after it are continued or cut. What hangs on
another field is written relative to it (`relative`), so that twice the heads with twice the keys is one edit, not two.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from lineage import graph
from lineage.components import Component, Model
from lineage.errors import ArchitectureError, FileDamaged, UsageError
from lineage.values import Value

Path = tuple[str | tuple[int, ...], ...]
"""Field names from the root; after a tuple's name the indices that are meant, or "*" for all."""
PHASES = ("length", "kind", "moved", "changed")
ROOT, SHARE, WIDE = "1/√head width", "1/head width", "1/√width"  # scales; the first is the one that None means


class Edit(Value):
    """One step. phase: a stack's "length"; another "kind" of component, before and after holding the fields that only
    one of them has; a part "moved" to another slot, before and after naming these; else a value or part "changed".

    state: size, moved, added, removed or changed; same for what is written otherwise and has the same effect.
    """

    phase: str
    path: Path
    before: Any
    after: Any
    state: str

    @property
    def names(self) -> tuple[str, ...]:
        """The path without indices."""
        return tuple(step for step in self.path if isinstance(step, str) and step != "*")

    @property
    def decided(self) -> bool:
        """Whether it is a design decision."""
        return self.state not in ("size", "same")

    def rank(self) -> tuple[int, int]:
        """Its place in a script: what lies deeper may need what lies above it."""
        return len(self.path), PHASES.index(self.phase)

    def apply(self, part: Any) -> Any:
        """The part at the path after this step. Raises UsageError for one that is not as it was."""
        before, after = self.before, self.after
        if self.phase == "length" and isinstance(part, list) and len(part) == before:
            return stretched(part, after)
        if self.phase == "kind" and isinstance(part, dict) and before.items() <= part.items():
            return {name: value for name, value in part.items() if name not in before} | after
        if self.phase == "moved" and isinstance(part, dict) and part.get(before) and part.get(after, 0) is None:
            return part | {before: None, after: part[before]}
        if self.phase == "changed" and part == before and type(part) is type(before):
            return after
        raise UsageError(f"the script is of another model: {'.'.join(self.names)} is not as it was")


def script(before: Model, after: Model) -> tuple[Edit, ...]:
    """What turns `before` into `after`: ``applied(script(a, b), a) == b``."""
    return between(lay_open(before), lay_open(after))


def between(before: Any, after: Any) -> tuple[Edit, ...]:
    """The script between two specs that are laid open."""
    return tuple(sorted(_compare(before, after, ()), key=Edit.rank))


def applied(edits: tuple[Edit, ...] | list[Edit], model: Model) -> Model:
    """The model after these edits.

    Raises UsageError for a model that they are not of, ArchitectureError if they lead to one that cannot be.
    """
    tree = lay_open(model)
    for edit in edits:
        tree = _at(tree, edit.path, edit.apply)
    try:
        return graph.model_from_json(_folded(tree))
    except FileDamaged as error:
        raise ArchitectureError(error.message) from error


def _at(tree: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(tree)
    step, rest = path[0], path[1:]
    if isinstance(tree, list) and (isinstance(step, str) or step[-1] < len(tree)):
        return [_at(part, rest, change) if step == "*" or i in step else part for i, part in enumerate(tree)]
    if isinstance(tree, dict) and step in tree:
        return tree | {step: _at(tree[step], rest, change)}
    raise UsageError(f"the script is of another model: there is no {step}")


def lay_open(value: Any) -> Any:
    """A spec as a tree of dictionaries and lists; equal parts of a tuple are one object."""
    if isinstance(value, Component):
        body = {f.name: lay_open(getattr(value, f.name)) for f in value.declared}
        return relative({"component": type(value).__name__} | body, True)
    if isinstance(value, tuple):
        kinds = alike(value)
        laid = {i: lay_open(value[i]) for i in set(kinds)}
        return [laid[i] for i in kinds]
    return value


def alike(stack: tuple[Any, ...]) -> list[int]:
    """For each part of a stack the place of the first that equals it."""
    places: list[int] = []
    firsts: dict[Any, int] = {}
    for i, part in enumerate(stack):  # equal neighbours are seen at once; a hash goes through all that there is
        same = i and (part is stack[i - 1] or part == stack[i - 1])
        places.append(places[-1] if same else firsts.setdefault(part, i))
    return places


def _folded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _folded(value) for name, value in relative(tree, False).items()}
    if isinstance(tree, list):
        runs = [(one, len(list(run))) for one, run in groupby(tree)]
        return [{"repeat": n, "of": _folded(one)} if n > 1 else _folded(one) for one, n in runs]
    return tree


def relative(body: dict[str, Any], fold: bool) -> dict[str, Any]:
    """A component's fields with those written relative to others that follow from them, or (fold false) back.

    As many keys as heads: "heads". Channels that turn: their share of the head's. A scale: "1/√head width", "√width".
    One block run again and again: how often.
    """
    across, width, turned, order = (body.get(name) for name in ("head_width", "width", "rotary", "order"))
    pairs = [("kv_heads", "heads", body.get("heads"))]
    pairs += [("scale", ROOT, across**-0.5), ("scale", SHARE, 1 / across)] if across else []
    pairs += [("scale", "√width", width**0.5)] if isinstance(width, int) and not across else []
    changed = {
        name: word if fold else value for name, word, value in pairs if body.get(name, 0) == (value if fold else word)
    }
    if across and isinstance(turned, dict) and isinstance(turned["width"], int if fold else str):
        from fractions import Fraction  # few parts come here, and it takes 2 ms

        share = Fraction(turned["width"]) / across if fold else Fraction(turned["width"]) * across
        changed["rotary"] = turned | {"width": str(share) if fold or share % 1 else int(share)}
    head, embed = body.get("head"), body.get("embed")
    if isinstance(head, dict) and isinstance(embed, dict):
        scale = (embed["projection"] or embed)["width"] ** -0.5
        if head["scale"] == (scale if fold else WIDE):
            changed["head"] = head | {"scale": WIDE if fold else scale}
    if fold and isinstance(order, list) and not any(order):
        changed["order"] = len(order)
    elif not fold and isinstance(order, int):
        changed["order"] = [0] * order
    return body | changed


def _compare(a: Any, b: Any, path: Path, owner: str = "") -> Iterator[Edit]:
    """owner: the component whose field the path ends in."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a != b:  # a field's values are of its types alone, so that equal ones are the same
            yield from _parts(a, b, path)
    elif isinstance(a, list) and isinstance(b, list) and all(isinstance(one, dict) for one in a + b):
        if len(a) != len(b):
            yield Edit("length", path, len(a), len(b), "size")
        yield from _stacks(a if len(a) == len(b) else stretched(a, len(b)), b, path)
    elif type(a) is not type(b) or a != b:
        yield Edit("changed", path, a, b, _state(a, b, owner, str(path[-1])))


def _state(a: Any, b: Any, owner: str, name: str) -> str:
    if type(a) is type(b) is int and (name != "kv_heads" or 1 not in (a, b)):  # one key for all is a design of its own
        roles = {f.name: f.metadata["role"] for f in Component.kinds[owner].declared}
        return "size" if roles[name] == "size" else "changed"
    if all(value is None or value == ROOT for value in (a, b)):
        return "same"
    return "added" if a is None else "removed" if b is None else "changed"


def _parts(a: dict[str, Any], b: dict[str, Any], path: Path) -> Iterator[Edit]:
    hanging = ("rotary", "scale") if ("head_width" in a) != ("head_width" in b) else ()  # on what one of them lacks
    common = [name for name in a if name in b and name not in ("component", *hanging)]
    if a["component"] != b["component"]:
        own = [{name: value for name, value in one.items() if name not in common} for one in (a, b)]
        yield Edit("kind", path, own[0], own[1], "changed")
    hints = Component.kinds[b["component"]].__annotations__
    gone = [name for name in common if path and isinstance(a[name], dict) and b[name] is None]
    sources = {name: name for name in common}  # the model's own slots are places, not turns of one branch: path
    for name in [name for name in common if a[name] is None and isinstance(b[name], dict)]:
        if found := next((old for old in gone if hints[old] == hints[name]), None):
            gone.remove(found)
            sources[name] = found
            del sources[found]
            yield Edit("moved", path, found, name, "moved")
    for name, source in sources.items():
        yield from _compare(a[source], b[name], (*path, name), b["component"])


def _stacks(a: list[Any], b: list[Any], path: Path) -> Iterator[Edit]:
    """Equal edits of several layers are one."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for i, (one, other) in enumerate(zip(a, b, strict=True)):
        pairs.setdefault((id(one), id(other)), []).append(i)
    found: dict[str, tuple[Edit, list[int]]] = {}
    for layers in pairs.values():
        for edit in _compare(a[layers[0]], b[layers[0]], ()):
            found.setdefault(repr(edit), (edit, []))[1].extend(layers)
    for edit, where in found.values():
        yield replace(edit, path=(*path, "*" if len(where) == len(b) else tuple(sorted(where)), *edit.path))


def stretched(stack: list[Any], length: int) -> list[Any]:
    """A stack of another depth: the shortest beginning and pattern after it, repeated on and on."""
    count, kinds = len(stack), [stack.index(one) for one in stack]
    start, period = next(
        (start, total - start)
        for total in range(1, count + 1)
        for start in range(total)
        if kinds[start : count - total + start] == kinds[total:]
    )
    return [stack[i if i < start else start + (i - start) % period] for i in range(length)]
