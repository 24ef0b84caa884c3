"""Runs and tiles move exactly what the operations move, in both directions, and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage import catalog, segments
from lineage.errors import ArchitectureError, TensorMismatch, UsageError
from lineage.operations import (
    Alternate,
    Array,
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
from lineage.plan import expected
from lineage.segments import Lowered, lower
from tests.test_operations import AFTER, CHAINS, Operation

CASES: list[tuple[Operations, st.SearchStrategy[Shapes]]] = [
    *(((Operation.kinds[kind](),), AFTER[kind]) for kind in sorted(Operation.kinds)),
    *CHAINS,
]


def numbered(shapes: Shapes) -> list[Array]:
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [np.arange(a, b).reshape(s) for a, b, s in zip(ends[:-1], ends[1:], shapes, strict=True)]


def moved(lowered: Lowered, elements: int) -> list[Array]:
    """The outputs, made by runs where there are some, and else by tiles."""
    inputs, outputs = numbered(lowered.inputs), [np.full(shape, -1) for shape in lowered.outputs]
    if lowered.runs is not None:
        for source, start, target, at, count in lowered.runs:
            outputs[target].reshape(-1)[at : at + count] = inputs[source].reshape(-1)[start : start + count]
        return outputs
    for tile in lowered.tiles(elements):
        parts = [array[region] for array, region in zip(inputs, tile.inputs, strict=True)]
        for output, region, made in zip(outputs, tile.outputs, lowered.made(parts), strict=True):
            assert (output[region] == -1).all(), "no place is written twice"
            output[region] = made
    return outputs


@pytest.mark.parametrize("long", [1, 10**9], ids=["runs", "tiles"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("operations", "shapes"), CASES, ids=[str(operations) for operations, _ in CASES])
@settings(max_examples=30)
@given(data=st.data())
def test_what_is_lowered_moves_what_the_operations_move(
    operations: Operations, shapes: st.SearchStrategy[Shapes], backward: bool, long: int, data: st.DataObject
) -> None:
    after = data.draw(shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "LONG", long)
        lowered = lower.__wrapped__(operations, after, backward)
    before = stages(operations, after)[0]
    wanted = invert(operations, numbered(after)) if backward else apply(operations, numbered(before), after)
    found = moved(lowered, data.draw(st.sampled_from([1, 7, 10**6])))
    assert all(map(np.array_equal, found, wanted))


ROWS, SQUARE = 4096, ((4096, 4096),)


@pytest.mark.parametrize(
    ("operations", "after", "runs"),
    [
        ((), SQUARE, 1),
        ((Row(),), ((ROWS,),), 1),
        ((Split(),), ((ROWS, ROWS), (1024, ROWS), (1024, ROWS)), 3),
        ((Split(),), ((14336 * 8, 4096), (14336, 4096)), 2),
        ((Stack(),), ((128, 1536, ROWS),), 128),
        ((Unfold(),), ((16, 10752, 6144),), 1),
        ((PerHead(width=128),), SQUARE * 3, 3 * 32),
        ((PerHead(width=128, queries=4),), ((ROWS, ROWS), (1024, ROWS), (1024, ROWS)), 3 * 8),
        ((Paired(width=128),), SQUARE, ROWS - 31),  # the last of a head and the first of the next are neighbours
        ((Split(axis=1),), ((8, 14336, 4096), (8, 14336, 4096)), 16),
        ((Split(axis=1),), ((8, ROWS), (8, ROWS)), 16),
    ],
)
def test_long_runs_are_as_long_as_can_be(operations: Operations, after: Shapes, runs: int) -> None:
    for backward in (False, True):
        table = lower(operations, after, backward).runs
        assert table is not None
        assert len(table) == runs


@pytest.mark.parametrize(
    ("operations", "after"),
    [
        ((Transpose(),), ((2304, 768),)),
        ((Transpose(), Split()), ((1600, 1600),) * 3),
        ((Transpose(), Alternate(axis=1)), ((32, 2880, 2880),) * 2),
        ((Unfold(), Transpose()), ((16, 6144, 10752),)),
        ((Transpose(), Split(axis=1)), ((16, 8192, 5120),) * 2),
        ((Split(axis=1),), ((ROWS, ROWS), (ROWS, ROWS))),
        ((PerHead(width=64),), ((ROWS,),) * 3),
    ],
)
@pytest.mark.parametrize("limit", [1 << 20])
def test_tiles_are_small(operations: Operations, after: Shapes, limit: int) -> None:
    for backward in (False, True):
        lowered = lower(operations, after, backward)
        assert lowered.runs is None or len(lowered.runs) > 1
        if lowered.runs is None:
            sizes = [[np.prod([s.stop - s.start for s in r]) for r in tile.outputs] for tile in lowered.tiles(limit)]
            assert sum(map(sum, sizes)) == sum(np.prod(shape) for shape in after)
            assert max(map(sum, sizes)) <= limit


def test_no_published_size_needs_a_large_tile() -> None:
    """Of every family, as it is spelled in files: runs, or tiles of 2 million elements."""
    seen: set[tuple[Operations, Shapes]] = set()
    for dialect in catalog.dialects().values():
        family = catalog.families()[dialect.spec]
        for size in family.published.values():
            try:
                spec = catalog.spec(family.name, **{**dialect.fixed, **size})
                steps = expected(dialect, spec, "")
            except (ArchitectureError, TensorMismatch, UsageError):  # a size that this spelling does not have
                continue
            seen |= {(step.operations, step.target_shapes) for step in steps if step.operations}
    assert len(seen) > 50
    for operations, after in seen:
        for backward in (False, True):
            lowered = lower(operations, after, backward)
            if lowered.runs is None:
                tile = next(lowered.tiles(1 << 21))
                assert sum(np.prod([s.stop - s.start for s in region]) for region in tile.outputs) <= 1 << 21
