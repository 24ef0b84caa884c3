"""What each operation does with the numbers of a small example; and the names under which a manifest keeps them."""

import numpy as np
import pytest

from lineage.operations import (
    Alternate,
    Operation,
    PerHead,
    Row,
    Split,
    Stack,
    Transpose,
    Unfold,
    apply,
    read_operation,
    spell,
)  # fmt: skip
from lineage.paired import Paired


def test_neighbours_are_moved_half_a_head_apart() -> None:
    """Two heads of six rows: rows 0 and 1 turn together on disk, rows 0 and 3 in the model."""
    (made,) = apply((Paired(width=6),), [np.arange(12)[:, None]], ((12, 1),))
    assert made.ravel().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_heads_are_taken_apart_in_their_order() -> None:
    """Two heads of two channels: queries, keys and values stand head by head."""
    fused = np.array([[0], [1], [10], [11], [20], [21], [2], [3], [12], [13], [22], [23]])
    parts = apply((PerHead(width=2),), [fused], ((4, 1),) * 3)
    assert [part.ravel().tolist() for part in parts] == [[0, 1, 2, 3], [10, 11, 12, 13], [20, 21, 22, 23]]


def test_several_heads_of_queries_stand_before_each_of_keys_and_values() -> None:
    fused = np.array([[0], [1], [10], [20], [2], [3], [11], [21]])
    parts = apply((PerHead(queries=2),), [fused], ((4, 1), (2, 1), (2, 1)))
    assert [part.ravel().tolist() for part in parts] == [[0, 1, 2, 3], [10, 11], [20, 21]]


def test_what_takes_turns_is_told_apart() -> None:
    (even, odd) = apply((Alternate(),), [np.arange(6)], ((3,), (3,)))
    assert (even.tolist(), odd.tolist()) == ([0, 2, 4], [1, 3, 5])
    (even, odd) = apply((Alternate(axis=1),), [np.arange(8).reshape(2, 4)], ((2, 2), (2, 2)))
    assert (even.tolist(), odd.tolist()) == ([[0, 2], [4, 6]], [[1, 3], [5, 7]])


def test_rows_are_unfolded_in_their_order() -> None:
    (made,) = apply((Unfold(),), [np.arange(12).reshape(6, 2)], ((3, 2, 2),))
    assert made[1].tolist() == [[4, 5], [6, 7]]


SPELLED = {
    "Transpose": Transpose(),
    "Split": Split(),
    "Split(axis=1)": Split(axis=1),
    "Alternate": Alternate(),
    "Alternate(axis=1)": Alternate(axis=1),
    "Unfold": Unfold(),
    "Row": Row(),
    "Stack": Stack(),
    "PerHead": PerHead(),
    "PerHead(width=96)": PerHead(width=96),
    "PerHead(queries=4)": PerHead(queries=4),
    "PerHead(width=96, queries=4)": PerHead(width=96, queries=4),
    "Paired": Paired(),
    "Paired(width=96)": Paired(width=96),
}


def test_every_operation_is_spelled() -> None:
    assert {type(operation).__name__ for operation in SPELLED.values()} == set(Operation.kinds)


@pytest.mark.parametrize(("text", "operation"), SPELLED.items())
def test_operation_is_read_as_it_is_spelled(text: str, operation: Operation) -> None:
    assert spell(operation) == text
    assert read_operation(text) == operation


@pytest.mark.parametrize(
    "text",
    ["", "split", "Split()", "Split(1)", "Split(axis=-1)", "Split(axis=1", "Split(width=1)", "Transpose(axis=1)",
     "PerHead(width=2, width=3)", "PerHead(width=2, width=2)", "PerHead(width=²)", "PerHead(width=٣)",
     "PerHead(queries=4, width=96)", "PerHead(width=96,queries=4)", "PerHead(width=96, queries=4, )",
     "PerHead(width=1, queries=2)", "PerHead(width=96 , queries=4)", "Split(axis=0)", "Split(axis=01)",
     "Split(axis=1_0)", "Split(axis=" + "9" * 5000 + ")", "Fold", "Unfold(axis=1)", "Split(axis=1)\n",
     "Operation", "Split(axis=1)(axis=1)"],
)  # fmt: skip
def test_what_is_no_operation_is_not_read(text: str) -> None:
    assert read_operation(text) is None
