"""Every operation is undone by its inverse, for elements of any width; what is no bijection is caught."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.operations import (
    Alternate,
    Array,
    Operation,
    Operations,
    PerHead,
    Row,
    Shapes,
    Split,
    Stack,
    Transpose,
    Unfold,
    apply,
    invert,
    stages,
)
from lineage.paired import Paired
from lineage.proofs import prove
from lineage.segments import _runs, lower

SIZES = st.integers(1, 6)


@st.composite
def stacked(draw: st.DrawFn) -> Shapes:
    """Shapes that may stand one after the other along their first axis."""
    rest = draw(st.lists(SIZES, max_size=2))
    return tuple((n, *rest) for n in draw(st.lists(SIZES, min_size=1, max_size=4)))


@st.composite
def abreast(draw: st.DrawFn) -> Shapes:
    """Shapes that may stand one after the other along their second axis."""
    rows, rest = draw(SIZES), draw(st.lists(SIZES, max_size=1))
    return tuple((rows, n, *rest) for n in draw(st.lists(SIZES, min_size=1, max_size=4)))


@st.composite
def headed(draw: st.DrawFn, width: int) -> Shapes:
    """Equal shapes whose rows are whole heads."""
    shape = (width * draw(SIZES), *draw(st.lists(SIZES, max_size=1)))
    return (shape,) * draw(st.integers(1, 4))


@st.composite
def grouped(draw: st.DrawFn, width: int, queries: int) -> Shapes:
    """Several heads of the first with one head of each other."""
    rows, rest = width * draw(SIZES), draw(st.lists(SIZES, max_size=1))
    return ((queries * rows, *rest), *((rows, *rest) for _ in range(draw(st.integers(0, 3)))))


def several(*sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Shapes]:
    return st.lists(st.tuples(*sizes), min_size=1, max_size=3).map(tuple)


AFTER: dict[str, st.SearchStrategy[Shapes]] = {
    "Transpose": several(SIZES, SIZES) | several(SIZES, SIZES, SIZES),
    "Alternate": headed(1),
    "Unfold": several(SIZES, SIZES) | several(SIZES, SIZES, SIZES),
    "Row": several(SIZES) | several(SIZES, SIZES),
    "Split": stacked(),
    "Stack": st.lists(SIZES, min_size=2, max_size=4).map(lambda shape: (tuple(shape),)),
    "PerHead": headed(1),
    "Paired": headed(2).map(lambda shapes: shapes[:1]),
}
"""For every kind of operation, the shapes that it can make."""

ROWS = stacked().filter(lambda shapes: len(shapes[0]) == 2)
COLUMNS = ROWS.map(lambda shapes: tuple(shape[::-1] for shape in shapes))
CHAINS: list[tuple[Operations, st.SearchStrategy[Shapes]]] = [
    ((), ROWS),
    ((Transpose(), Split()), ROWS),
    ((Split(), Transpose()), COLUMNS),
    ((Transpose(), Split(), Transpose()), COLUMNS),
    ((Split(axis=1),), abreast()),
    ((Split(axis=1), Transpose()), ROWS),
    ((PerHead(width=2),), headed(2)),
    ((PerHead(width=3),), headed(3)),
    ((PerHead(width=2, queries=3),), grouped(2, 3)),
    ((PerHead(queries=2),), grouped(1, 2)),
    ((Paired(width=6),), headed(6)),
    ((PerHead(width=4, queries=2), Paired(width=4)), grouped(4, 2)),
    ((Alternate(axis=1),), abreast().map(lambda shapes: shapes[:1] * 3)),
    ((Transpose(), Alternate()), ROWS.map(lambda shapes: shapes[:1] * 2)),
    ((Alternate(axis=1), Transpose()), COLUMNS.map(lambda shapes: shapes[:1] * 2)),
    ((Transpose(), Alternate(axis=1)), st.tuples(SIZES, SIZES, SIZES).map(lambda shape: (shape, shape))),
    ((Unfold(), Transpose()), several(SIZES, SIZES, SIZES)),
    ((Row(), Split()), stacked()),
    ((Transpose(), PerHead(width=2)), headed(2).filter(lambda shapes: len(shapes[0]) == 2)),
]


@st.composite
def arrays(draw: st.DrawFn, shapes: Shapes) -> list[Array]:
    """Raw elements of these shapes, all of one width: any bits, and any layout in memory."""
    kind = np.dtype(f"<u{draw(st.sampled_from([1, 2, 4, 8]))}")
    made = []
    for shape in shapes:
        count = int(np.prod(shape))
        raw = draw(st.binary(min_size=count * kind.itemsize, max_size=count * kind.itemsize))
        made.append(np.frombuffer(raw, dtype=kind).reshape(shape))
    return [np.asfortranarray(array) for array in made] if draw(st.booleans()) else made


def same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def test_every_operation_has_a_strategy() -> None:
    assert set(AFTER) == set(Operation.kinds)


def check_both_ways(data: st.DataObject, operations: Operations, after: Shapes) -> None:
    before = stages(operations, after)[0]
    theirs = data.draw(arrays(before))
    made = apply(operations, theirs, after)
    assert tuple(array.shape for array in made) == after
    assert same(invert(operations, made), theirs)
    ours = data.draw(arrays(after))
    assert same(apply(operations, invert(operations, ours), after), ours)
    assert tuple(array.shape for array in invert(operations, ours)) == before
    assert prove(operations, after)


@pytest.mark.parametrize("kind", sorted(Operation.kinds))
@given(data=st.data())
def test_operation_is_undone_by_its_inverse(kind: str, data: st.DataObject) -> None:
    check_both_ways(data, (Operation.kinds[kind](),), data.draw(AFTER[kind]))


@pytest.mark.parametrize(("operations", "after"), CHAINS, ids=[str(operations) for operations, _ in CHAINS])
@given(data=st.data())
def test_chain_is_undone_by_its_inverse(
    operations: Operations, after: st.SearchStrategy[Shapes], data: st.DataObject
) -> None:
    check_both_ways(data, operations, data.draw(after))


@pytest.mark.parametrize("kind", [name for name, kind in Operation.kinds.items() if kind().rows_only])
@given(data=st.data())
def test_what_moves_rows_moves_them_whole(kind: str, data: st.DataObject) -> None:
    operation, after = (Operation.kinds[kind](),), data.draw(AFTER[kind])
    (table,) = data.draw(arrays(stages(operation, after)[0]))
    rows = apply(operation, [np.arange(len(table))], tuple(shape[:1] for shape in after))
    assert same(apply(operation, [table], after), [table[row] for row in rows])


@pytest.mark.parametrize("kind", [name for name, kind in Operation.kinds.items() if kind().in_order])
@pytest.mark.parametrize("backward", [False, True])
@given(data=st.data())
def test_what_keeps_an_order_is_said_to(kind: str, backward: bool, data: st.DataObject) -> None:
    operation, after = (Operation.kinds[kind](),), data.draw(AFTER[kind])
    before = stages(operation, after)[0]
    inputs = after if backward else before
    ends = np.cumsum([0, *map(math.prod, inputs)])
    ids = [np.arange(a, b).reshape(shape) for a, b, shape in zip(ends[:-1], ends[1:], inputs, strict=True)]
    made = invert(operation, ids) if backward else apply(operation, ids, after)
    assert np.concatenate([array.ravel() for array in made]).tolist() == list(range(ends[-1]))
    found = lower(operation, after, backward)
    assert found.spans is not None
    assert found.runs is not None
    assert found.runs.tolist() == [list(row) for row in found.spans]
    assert np.array_equal(_runs(operation, after, before, backward), found.runs)


@pytest.mark.parametrize("after", [((2, 3), (1, 2), (1, 4)), ((4, 3), (4, 5)), ((2, 3), (2,))])
def test_parts_that_do_not_fit_are_not_proved(after: Shapes) -> None:
    """Of the first not an element is left over, yet no tensor can be cut so."""
    assert not prove((Split(),), after)
    assert not prove((Row(), Split()), after)


@pytest.mark.parametrize(
    ("operations", "after"), [((Stack(),), ((0, 3),)), ((Stack(),), ((3, 0),)), ((Row(),) * 70, ((3,),))]
)
def test_what_no_array_can_be_is_not_proved(operations: Operations, after: Shapes) -> None:
    assert not prove(operations, after)


def unlisted(kind: type[Operation]) -> type[Operation]:
    """An operation for these tests alone."""
    del Operation.kinds[kind.__name__]
    return kind


@unlisted
class Still(Operation):
    """Changes nothing; each of the following breaks it in one way."""

    def shapes_before(self, after: Shapes) -> Shapes:
        return after

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return list(arrays)

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return list(arrays)


@unlisted
class OneWay(Still):
    """Its inverse does nothing."""

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [array[::-1] for array in arrays]


@unlisted
class Doubling(Still):
    """An element arrives twice, and another nowhere."""

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [np.concatenate([array[:1], array[:-1]]) for array in arrays]


@unlisted
class Exchanging(Still):
    """Arrives whole, and comes back in the wrong places."""

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return list(arrays)[::-1]


@unlisted
class Misshapen(Still):
    """Makes other shapes than the model wants."""

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [array.T for array in arrays]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [array.T for array in arrays]


@unlisted
class Padding(Still):
    """Adds a copy of the first row, and takes it away again."""

    def shapes_before(self, after: Shapes) -> Shapes:
        return tuple((shape[0] - 1, *shape[1:]) for shape in after)

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [np.concatenate([array, array[:1]]) for array in arrays]

    def backward(self, arrays: Sequence[Array], before: Shapes) -> list[Array]:
        return [array[:-1] for array in arrays]


@unlisted
class Rounding(Still):
    """Loses the last bit of each element."""

    def forward(self, arrays: Sequence[Array], after: Shapes) -> list[Array]:
        return [array & ~1 for array in arrays]


@pytest.mark.parametrize("kind", [OneWay, Doubling, Exchanging, Misshapen, Padding, Rounding])
@pytest.mark.parametrize("after", [((4, 6), (4, 6)), ((3072, 4096), (3072, 4096))])
def test_what_is_no_bijection_is_caught(kind: type[Operation], after: Shapes) -> None:
    assert prove((Still(),), after)
    assert not prove((kind(),), after)
    assert not prove((Transpose(), kind(), Transpose()), after)


def test_proof_of_a_large_shape_stands_on_a_smaller_one() -> None:
    assert prove((Transpose(), Split()), ((8192 * 12, 8192), (8192 * 6, 8192), (8192 * 6, 8192)))


PROJECTIONS = ((6144, 6144),) * 3


def test_heads_stay_whole_where_a_smaller_shape_stands_for_a_large_one() -> None:
    """The width of a head does not shrink with the shape: 6144 over the least factor is no multiple of 96."""
    assert prove((PerHead(width=96),), PROJECTIONS)
    assert prove((PerHead(width=96),), ((6144,),) * 3)
    assert not prove((PerHead(width=7),), PROJECTIONS)
    assert not prove((PerHead(width=0),), PROJECTIONS)
    assert not prove((PerHead(width=96),), ((6144, 6144), (1536, 6144), (1536, 6144)))


def test_pairs_are_proved_in_whole_heads() -> None:
    assert prove((Paired(width=96),), PROJECTIONS[:1])
    assert not prove((Paired(width=7),), ((14, 4),))
    assert not prove((Paired(width=8),), ((12, 4),))
    assert not prove((Paired(width=0),), ((12, 4),))


def test_experts_are_proved_in_their_stack() -> None:
    assert prove((Stack(),), ((128, 1536, 4096),))
    assert prove((Split(axis=1),), ((8, 14336, 4096), (8, 14336, 4096)))


@pytest.mark.parametrize(
    ("operations", "after"),
    [
        ((Stack(),), ((4, 6), (4, 6))),
        ((Stack(),), ((),)),
        ((Split(axis=1),), ((4,), (4,))),
        ((Split(),), ((4, 6), (4, 5))),
        ((Split(),), ((),)),
        ((Split(axis=2),), ((4, 6), (4, 6))),
        ((Alternate(),), ((4, 6), (2, 6))),
        ((Alternate(axis=1),), ((4,), (4,))),
        ((Unfold(),), ((4,),)),
        ((Transpose(),), ((4,),)),
        ((PerHead(queries=0),), ((4, 6), (4, 6))),
        ((PerHead(queries=3),), ((4, 6), (4, 6))),
        ((PerHead(width=2, queries=2),), ((8, 6), (8, 6))),
        ((PerHead(width=4, queries=2),), ((12, 6), (6, 6))),
    ],
)
def test_what_does_not_fit_is_not_proved(operations: Operations, after: Shapes) -> None:
    assert not prove(operations, after)


def test_rows_that_lie_evenly_in_one_memory_are_not_copied() -> None:
    """Even where something else lies between them; rows of two memories, or unevenly spaced, are copied."""
    memory = np.arange(60, dtype=np.uint16)
    parts = [memory[start : start + 6].reshape(2, 3) for start in (4, 14, 24, 34)]
    (rows,) = Stack().forward(parts, ((4, 2, 3),))
    assert np.array_equal(rows, np.stack(parts))
    assert np.shares_memory(rows, memory)
    for others in ([*parts[:2], parts[3]], [*parts[:1], parts[1].copy()], parts[::-1], [parts[0], parts[0]]):
        (copied,) = Stack().forward(others, ((len(others), 2, 3),))
        assert np.array_equal(copied, np.stack(others))
        assert not np.shares_memory(copied, memory)
