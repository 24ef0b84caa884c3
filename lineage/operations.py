"""The closed set of invertible operations between tensors on disk and tensors of a model.

An operation turns a list of arrays (as the file stores them) into another (as the model holds them). It is told the
shapes on its far side, so that it needs no numbers of its own: how a fused tensor is cut follows from the model. It
works on any numpy array: real bytes, or the unique ids with which `prove` shows that nothing is lost or doubled.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from lineage.components import Shape
from lineage.values import Value

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    from lineage.later import np

    Array = Any
Shapes = tuple[Shape, ...]


class Operation(Value, ABC):
    """One step. Subclasses are final and listed in `Operation.kinds`.

    rows_only, in_order: told of the class, `class Split(Operation, in_order=True)`; false for one with an axis, unless
    it is the first; a subclass does not inherit them.
    """

    kinds: ClassVar[dict[str, type["Operation"]]] = {}
    _rows_only: ClassVar[bool]
    _in_order: ClassVar[bool]

    @property
    def rows_only(self) -> bool:
        """Whether it moves whole rows, so that it applies to a bias and to activations as well."""
        return self._rows_only and not getattr(self, "axis", 0)

    @property
    def in_order(self) -> bool:
        """Whether elements keep their order, from the first tensor's first to the last one's last: only shapes change,
        and where each element goes is known without numpy.
        """
        return self._in_order and not getattr(self, "axis", 0)

    @property
    def grain(self) -> int:
        """How many rows stay together, whatever the shape."""
        return 1

    def bound(self, component: Any) -> "Operation":
        """The same operation for one component, if it needs a number that shapes do not tell."""
        return self

    def __init_subclass__(cls, kw_only: bool = False, rows_only: bool = False, in_order: bool = False) -> None:
        super().__init_subclass__(kw_only)
        cls._rows_only, cls._in_order = rows_only, in_order
        Operation.kinds[cls.__name__] = cls

    @abstractmethod
    def shapes_before(self, after: Shapes) -> Shapes:
        """The shapes on the file's side, given those on the model's."""

    @abstractmethod
    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        """From the file's side to the model's."""

    @abstractmethod
    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        """From the model's side to the file's: the exact inverse."""


class Transpose(Operation):
    """[…, in, out] on disk, […, out, in] in the model."""

    def shapes_before(self, after: Shapes) -> Shapes:
        return tuple((*shape[:-2], *shape[-2:][::-1]) for shape in after)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [array.swapaxes(-1, -2) for array in arrays]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [array.swapaxes(-1, -2) for array in arrays]


class Split(Operation, rows_only=True, in_order=True):
    """One tensor on disk holds several of the model's, one after the other along an axis."""

    axis: int = 0

    def shapes_before(self, after: Shapes) -> Shapes:
        first, axis = after[0], self.axis
        if any((*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]) for shape in after):
            raise ValueError(f"{after} differ along more than axis {axis}")
        return ((*first[:axis], sum(shape[axis] for shape in after), *first[axis + 1 :]),)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        (whole,) = arrays
        cuts = np.cumsum([shape[self.axis] for shape in after])[:-1]
        return list(np.split(whole, [int(cut) for cut in cuts], axis=self.axis))

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [np.concatenate(list(arrays), axis=self.axis)]


class Alternate(Operation, rows_only=True):
    """One tensor on disk holds several of the model's, of one shape, taking turns along an axis."""

    axis: int = 0

    def shapes_before(self, after: Shapes) -> Shapes:
        if any(shape != after[0] for shape in after):
            raise ValueError(f"{after} are not alike")
        return Split(self.axis).shapes_before(after)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        (whole,) = arrays
        turns = whole.reshape(*whole.shape[: self.axis], -1, len(after), *whole.shape[self.axis + 1 :])
        return list(np.moveaxis(turns, self.axis + 1, 0))

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [np.stack(list(arrays), axis=self.axis + 1).reshape(before[0])]


class Unfold(Operation, in_order=True):
    """[a · b, c] on disk, [a, b, c] in the model."""

    def shapes_before(self, after: Shapes) -> Shapes:
        return tuple((shape[0] * shape[1], *shape[2:]) for shape in after)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [array.reshape(shape) for array, shape in zip(arrays, after, strict=True)]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [array.reshape(shape) for array, shape in zip(arrays, before, strict=True)]


class Row(Operation, in_order=True):
    """[1, n] on disk, [n] in the model."""

    def shapes_before(self, after: Shapes) -> Shapes:
        return tuple((1, *shape) for shape in after)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [array[0] for array in arrays]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [array[None] for array in arrays]


class Stack(Operation, in_order=True):
    """Several tensors on disk, of one shape, are the rows of one of the model's."""

    def shapes_before(self, after: Shapes) -> Shapes:
        ((count, *shape),) = after
        return (tuple(shape),) * count

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        together = _evenly(arrays)
        return [np.stack(list(arrays)) if together is None else together]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return list(arrays[0])


class PerHead(Operation, rows_only=True):
    """One tensor on disk holds, head by head, that head's rows of several of the model's.

    width: of a head, in rows. queries: how many heads of the first go with one head of the others.
    """

    width: int = 1
    queries: int = 1

    @property
    def grain(self) -> int:
        return self.width

    def bound(self, component: Any) -> "PerHead":
        return PerHead(width=component.head_width, queries=component.heads // component.kv_heads)

    def shapes_before(self, after: Shapes) -> Shapes:
        first, *others = after
        one = (first[0] // self.queries, *first[1:])
        if first[0] % self.queries or one[0] % self.width or any(shape != one for shape in others):
            raise ValueError(f"{after} are not alike and whole heads of {self.width}")
        return ((sum(shape[0] for shape in after), *first[1:]),)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        (whole,) = arrays
        heads = whole.reshape(-1, self.queries + len(after) - 1, self.width, *whole.shape[1:])
        parts = (heads[:, : self.queries], *np.moveaxis(heads[:, self.queries :], 1, 0))
        return [part.reshape(shape) for part, shape in zip(parts, after, strict=True)]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        first, *others = arrays
        shapes = [(-1, count, self.width, *first.shape[1:]) for count in (self.queries, *(1 for _ in others))]
        heads = [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
        return [np.concatenate(heads, axis=1).reshape(before[0])]


def _evenly(arrays: Sequence[Array]) -> Array | None:
    """Arrays of one memory (a file that is mapped) at even distances, as rows of one: nothing is copied."""
    first, starts = arrays[0], [array.__array_interface__["data"][0] for array in arrays]
    steps = {after - before for before, after in pairwise(starts)}
    alike = {(id(_owner(array)), array.shape, array.strides, array.dtype) for array in arrays}
    if len(steps) != 1 or len(alike) != 1 or min(steps) < first.nbytes:
        return None
    return np.lib.stride_tricks.as_strided(first, (len(arrays), *first.shape), (*steps, *first.strides))


def _owner(array: Array) -> object:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


Operations = tuple[Operation, ...]


def spell(operation: Operation) -> str:
    """An operation as a manifest names it: its kind, and what is not as usual about it."""
    values = {f.name: getattr(operation, f.name) for f in operation.declared if getattr(operation, f.name) != f.default}
    return type(operation).__name__ + (f"({', '.join(f'{k}={v}' for k, v in values.items())})" if values else "")


def read_operation(text: str) -> Operation | None:
    """The inverse of `spell`; None for what is not known."""
    found = re.fullmatch(r"(\w+)(?:\((\w+=\d{1,9}(?:, \w+=\d{1,9})*)\))?", text)
    kind = Operation.kinds.get(found[1]) if found else None
    values = dict(part.split("=") for part in found[2].split(", ")) if found and found[2] else {}
    if kind is None or values.keys() - {f.name for f in kind.declared}:
        return None
    read = kind(**{name: int(value) for name, value in values.items()})
    return read if spell(read) == text else None


def stages(operations: Operations, after: Shapes) -> list[Shapes]:
    """The shapes before the first operation, between each two, and after the last."""
    shapes = [after]
    for operation in reversed(operations):
        shapes.insert(0, operation.shapes_before(shapes[0]))
    return shapes


def apply(operations: Operations, arrays: Sequence[Array], after: Shapes) -> list[Array]:
    """From the file's arrays to the model's, whose shapes are `after`."""
    current = list(arrays)
    for operation, shapes in zip(operations, stages(operations, after)[1:], strict=True):
        current = operation.forward(current, shapes)
    return current


def invert(operations: Operations, arrays: Sequence[Array]) -> list[Array]:
    """From the model's arrays to the file's: `apply` undone."""
    current = list(arrays)
    shapes = stages(operations, tuple(array.shape for array in arrays))
    for operation, before in zip(reversed(operations), reversed(shapes[:-1]), strict=True):
        current = operation.backward(current, before)
    return current
