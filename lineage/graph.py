"""Paths through a spec, the tensors it names, and its canonical JSON.

A path is the chain of field names, indices as plain numbers: ``blocks.0.attention.norm_input``. The same path names
the component in the spec, the module at run time, and the prefix of its tensors.
"""

import math
from collections.abc import Iterator
from dataclasses import MISSING
from itertools import groupby
from typing import Any

from lineage.components import Component, Model, Shape
from lineage.errors import ArchitectureError, FileDamaged
from lineage.values import Value

MANY = 100_000  # equal parts in a row; a file that claims more is not one of ours


class Node(Value):
    """One component in its place. width: of the vectors that it works on."""

    path: str
    component: Component
    width: int


def children(component: Component) -> Iterator[tuple[str, Component]]:
    """The direct parts of a component, by field name; parts of a tuple as ``name.index``."""
    for f in component.declared:
        value = getattr(component, f.name)
        if isinstance(value, Component):
            yield f.name, value
        elif isinstance(value, tuple):
            for i, part in enumerate(value):
                if isinstance(part, Component):
                    yield f"{f.name}.{i}", part


def walk(component: Component, path: str = "", width: int = 0) -> Iterator[Node]:
    """Every component of a spec, parents before their parts, in the order of the fields."""
    yield Node(path, component, width)
    for name, child in children(component):
        yield from walk(child, f"{path}.{name}" if path else name, component.child_width(name, width))


def tensors(model: Component, width: int = 0) -> dict[str, Shape]:
    """Every tensor of a spec: full name -> shape."""
    return {
        f"{node.path}.{name}" if node.path else name: shape
        for node in walk(model, width=width)
        for name, shape in node.component.tensors(node.width).items()
    }


def parameters(model: Component) -> int:
    """How many numbers the model learns; a tied table counts once."""
    return sum(math.prod(shape) for shape in tensors(model).values())


def to_json(value: Any) -> Any:
    """The canonical form: every field is written, equal neighbours of a tuple are folded into {"repeat", "of"}."""
    if isinstance(value, Component):
        body = {f.name: to_json(getattr(value, f.name)) for f in value.declared}
        return {"component": type(value).__name__} | body
    if isinstance(value, tuple):
        return [_fold(part, len(list(run))) for part, run in groupby(value)]
    return value


def _fold(part: Any, count: int) -> Any:
    return {"repeat": count, "of": to_json(part)} if count > 1 else to_json(part)


def from_json(data: Any) -> Any:
    """The inverse of `to_json`. Raises FileDamaged for a component, field or value that the vocabulary lacks.

    A field that has a default may be missing: the file is older than the field.
    """
    if isinstance(data, list):
        return tuple(part for item in data for part in _unfold(item))
    if not isinstance(data, dict):
        return data
    kind = Component.kinds.get(str(data.get("component")))
    if kind is None:
        raise FileDamaged(
            f"spec: unknown component {data.get('component')!r}", hint="was it written by a newer version?"
        )
    values = {name: from_json(value) for name, value in data.items() if name != "component"}
    known = {f.name: f.default is MISSING for f in kind.declared}
    if odd := (values.keys() - known) | {name for name, needed in known.items() if needed and name not in values}:
        raise FileDamaged(f"spec: {kind.__name__} has not exactly the fields it should: {', '.join(sorted(odd))}")
    try:
        return kind(**values)
    except ArchitectureError as error:
        raise FileDamaged(f"spec: {error.message}") from error


def _unfold(item: Any) -> tuple[Any, ...]:
    if not isinstance(item, dict) or "repeat" not in item:
        return (from_json(item),)
    count = item["repeat"]
    if set(item) != {"repeat", "of"} or type(count) is not int or not 1 < count <= MANY:
        raise FileDamaged(f"spec: a repeat is not {{repeat: 2 to {MANY:,}, of: …}}")
    return (from_json(item["of"]),) * count


def model_from_json(data: Any) -> Model:
    """A whole model from its canonical form."""
    try:
        model = from_json(data)
    except RecursionError:
        raise FileDamaged("spec: nested too deep") from None
    if not isinstance(model, Model):
        raise FileDamaged("spec: not a Model")
    return model
