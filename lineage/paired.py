"""The rows of a projection in the order in which another way to turn its channels wants them."""

from collections.abc import Sequence
from typing import Any

from lineage.operations import Array, Operation, Shapes


class Paired(Operation, rows_only=True):
    """Rows of a head that turn together are neighbours on disk, and half a head apart in the model.

    width: of a head, in rows.
    """

    width: int = 2

    @property
    def grain(self) -> int:
        return self.width

    def bound(self, component: Any) -> "Paired":
        return Paired(width=component.head_width)

    def shapes_before(self, after: Shapes) -> Shapes:
        if self.width % 2 or any(shape[0] % self.width for shape in after):
            raise ValueError(f"{after} are not whole heads of {self.width}, or these not whole pairs")
        return after

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [_turned(array, self.width // 2, 2) for array in arrays]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [_turned(array, 2, self.width // 2) for array in arrays]


def _turned(array: Array, *head: int) -> Array:
    return array.reshape(-1, *head, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
