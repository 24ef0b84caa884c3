"""A step of a plan as what is to be moved: long runs of elements that stay together, or tiles that are rearranged.

Nothing here knows an operation. What an operation does is seen by running it on numbered pieces of real or smaller
tensors, so that copying, tracing and the way back (`backward`) follow from the one definition in `operations`.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, product

from lineage.components import Shape
from lineage.later import np
from lineage.operations import Array, Operations, Shapes, apply, invert, stages
from lineage.proofs import PROOF_SIZE, reduced
from lineage.values import Value

LONG = 256  # elements in a run, on average, that make it worth moving by itself
WRITE = 3  # reads that a write costs: it begins and ends in half a page
MOST = 1 << 19  # numbered pieces at a time: a few such arrays are 20 MB
Region = tuple[slice, ...]


class Free(Value):
    """An axis along which inputs and outputs may be cut alike: one place of a model's tensor, `block` of a file's."""

    model: int
    file: int
    block: int


class Tile(Value):
    """A part of every input from which the same part of every output is made."""

    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]


class Lowered(Value):
    """The operations of a step for given shapes, in one direction.

    after: the shapes on the model's side, whichever the direction.
    """

    operations: Operations
    after: Shapes
    backward: bool
    inputs: Shapes
    outputs: Shapes

    __eq__, __hash__ = object.__eq__, object.__hash__

    @cached_property
    def spans(self) -> list[tuple[int, int, int, int, int]] | None:
        """The rows of `runs`, found without numpy where elements keep their order; None where they do not."""
        return _spans(self.inputs, self.outputs) if all(one.in_order for one in self.operations) else None

    @cached_property
    def runs(self) -> Array | None:
        """An array [N, 5] of (input, start in it, output, start in it, length), in elements, in the order of the
        outputs, each as long as can be; None if the elements do not stay together in long ones: then `tiles` says how
        to go about it in little memory. Exact: leading axes are run at their real size. Takes memory for the pieces
        that stay together, not for elements.
        """
        if self.spans is not None:
            return np.array(self.spans, np.int64).reshape(-1, 5)
        return _runs(self.operations, self.after, self.outputs if self.backward else self.inputs, self.backward)

    @cached_property
    def free(self) -> tuple[Free, ...]:
        """The axes along which tiles are cut."""
        whole = self.runs is not None
        return (
            () if whole else tuple(_free(self.operations, self.after, self.outputs if self.backward else self.inputs))
        )

    def made(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs of these inputs, whole ones or those of a tile."""
        if self.backward:
            return invert(self.operations, arrays)
        cut = [axis for axis in self.free if arrays[0].shape[axis.file] != self.inputs[0][axis.file]]
        after = self.after
        for axis in cut:
            after = _resized(after, axis.model, arrays[0].shape[axis.file] // axis.block)
        return apply(self.operations, arrays, after)

    def tiles(self, elements: int, axes: Sequence[int] = ()) -> Iterator[Tile]:
        """Cover the step with tiles of at most so many elements, where its free axes allow it.

        axes: of the inputs, those to cut alone, if that will do. Cuts are such that reading and writing take few calls.
        """
        sizes = {axis: self.after[0][axis.model] for axis in self.free}
        extents = self._extents(sizes, elements, [a for a in sizes if a.file in axes])
        spans = [[(at, min(at + extents[a], sizes[a])) for at in range(0, sizes[a], extents[a])] for a in sizes]
        for place in product(*spans):
            cuts = dict(zip(sizes, place, strict=True))
            model = tuple(_region(shape, {a.model: span for a, span in cuts.items()}) for shape in self.after)
            files = {a.file: (span[0] * a.block, span[1] * a.block) for a, span in cuts.items()}
            file = tuple(_region(shape, files) for shape in (self.outputs if self.backward else self.inputs))
            yield Tile(model, file) if self.backward else Tile(file, model)

    def _extents(self, sizes: dict[Free, int], elements: int, first: Sequence[Free]) -> dict[Free, int]:
        """How far a tile goes along each free axis. first: axes to cut alone, if that will do."""
        total = sum(map(math.prod, self.after))

        def calls(extents: dict[Free, int]) -> float:
            """For an element of a tile; a write counts as several reads."""
            read, written = ({a.file: extents[a] * a.block for a in sizes}, {a.model: extents[a] for a in sizes})
            if self.backward:
                read, written = written, read
            return (_pieces(self.inputs[0], read) + WRITE * _pieces(self.outputs[0], written)) / math.prod(
                extents.values()
            )

        for chosen in (first, tuple(sizes)) if first else (tuple(sizes),):
            halves = [sorted({max(1, -(-sizes[a] >> k)) for k in range(sizes[a].bit_length() + 1)}) for a in chosen]
            tried = [sizes | dict(zip(chosen, place, strict=True)) for place in product(*halves)]
            small = [e for e in tried if total * math.prod(e[a] / sizes[a] for a in sizes) <= elements]
            if small:
                return min(small, key=calls)
        return dict.fromkeys(sizes, 1)


def _pieces(shape: Shape, extents: dict[int, int]) -> int:
    """How many stretches of memory a part of an array takes that is cut along some axes."""
    last = max((axis for axis, extent in extents.items() if extent < shape[axis]), default=0)
    return math.prod(extents.get(axis, shape[axis]) for axis in range(last))


def _region(shape: Shape, cuts: dict[int, tuple[int, int]]) -> Region:
    return tuple(slice(*cuts.get(axis, (0, size))) for axis, size in enumerate(shape))


@lru_cache(maxsize=1024)
def lower(operations: Operations, after: Shapes, backward: bool = False) -> Lowered:
    """What the operations move, for tensors of these shapes on the model's side, whose plan is proved.

    backward: from the model's tensors to the file's.
    """
    before = stages(operations, after)[0]
    inputs, outputs = (after, before) if backward else (before, after)
    return Lowered(operations, after, backward, inputs, outputs)


def _spans(inputs: Shapes, outputs: Shapes) -> list[tuple[int, int, int, int, int]]:
    ends = [list(accumulate(map(math.prod, shapes), initial=0)) for shapes in (inputs, outputs)]
    found = []
    for at, end in pairwise(sorted({*ends[0], *ends[1]})):
        source, target = bisect(ends[0], at) - 1, bisect(ends[1], at) - 1
        found.append((source, at - ends[0][source], target, at - ends[1][target], end - at))
    return found


def _runs(operations: Operations, after: Shapes, before: Shapes, backward: bool) -> Array | None:
    every = after + before
    for depth in range(min(map(len, every)), -1, -1):
        trailing = after[0][len(after[0]) - depth :]
        heads = tuple(shape[: len(shape) - depth] for shape in after)
        alike = all(shape[len(shape) - depth :] == trailing for shape in every)
        if not alike or sum(map(math.prod, heads)) << depth > (MOST if depth else MOST // 8):
            continue
        thin = _numbered(operations, tuple((*head, *(1,) * depth) for head in heads), backward)
        wide = _numbered(operations, tuple((*head, *(2,) * depth) for head in heads), backward)
        if thin and wide and all(_doubled(a, b, depth) for a, b in zip(thin, wide, strict=True)):
            unit = math.prod(trailing)
            table = _joined(thin, [math.prod(s) // max(unit, 1) for s in (after if backward else before)]) * [
                1, unit, 1, unit, unit,
            ]  # fmt: skip
            return table if len(table) <= len(every) or table[:, 4].mean() >= LONG else None
    return None


def _doubled(thin: Array, wide: Array, depth: int) -> bool:
    """Whether two places along each of the last axes stand where one stood, in their order."""
    inner = np.arange(1 << depth).reshape((2,) * depth)
    whole = thin.shape[thin.ndim - depth :] == (1,) * depth
    return whole and np.array_equal((thin << depth) + inner, wide)


def _numbered(operations: Operations, after: Shapes, backward: bool) -> list[Array] | None:
    """The outputs where the inputs' elements are numbered through; None if the operations do not take such shapes."""
    try:
        inputs = after if backward else stages(operations, after)[0]
        starts = np.cumsum([0, *map(math.prod, inputs)])
        ids = [np.arange(a, b).reshape(s) for a, b, s in zip(starts[:-1], starts[1:], inputs, strict=True)]
        return invert(operations, ids) if backward else apply(operations, ids, after)
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def _joined(outputs: Sequence[Array], counts: Sequence[int]) -> Array:
    """Numbered pieces as runs. counts: of the pieces of each input."""
    starts = np.cumsum([0, *counts])
    rows = []
    for place, output in enumerate(outputs):
        ids = np.ascontiguousarray(output).ravel()
        owner = np.searchsorted(starts, ids, side="right") - 1
        breaks = np.flatnonzero((np.diff(ids) != 1) | (np.diff(owner) != 0)) + 1
        first = np.concatenate([[0], breaks]) if len(ids) else breaks
        lengths = np.diff(np.append(first, len(ids)))
        rows.append(
            np.stack([owner[first], ids[first] - starts[owner[first]], np.full_like(first, place), first, lengths], 1)
        )
    return np.concatenate(rows)


def _free(operations: Operations, after: Shapes, before: Shapes) -> Iterator[Free]:
    for model, file in product(range(min(map(len, after))), range(min(map(len, before)))):
        sizes = {shape[model] for shape in after}, {shape[file] for shape in before}
        (size, *others), (long, *rest) = sizes
        if others or rest or size < 2 or long % size:  # one place need not be cut
            continue
        if _cuts(operations, after, model, file, long // size):
            yield Free(model, file, long // size)


def _cuts(operations: Operations, after: Shapes, model: int, file: int, block: int) -> bool:
    """Whether each place along one axis is made of a block along the other, and of nothing else."""
    try:
        two = reduced(_resized(after, model, 2), math.lcm(*(o.grain for o in operations)), keep=model)
        one = _resized(two, model, 1)
        before = stages(operations, two)[0]
        if sum(map(math.prod, two)) > PROOF_SIZE * 4 or any(shape[file] % 2 for shape in before):
            return False
        made = _numbered(operations, two, False)
        starts = np.cumsum([0, *map(math.prod, before)])
        ids = [np.arange(a, b).reshape(s) for a, b, s in zip(starts[:-1], starts[1:], before, strict=True)]
        for place in (0, 1):
            halves = [np.split(array, 2, axis=file)[place] for array in ids]
            parts = apply(operations, halves, one)
            if not all(map(np.array_equal, parts, (array.take([place], model) for array in made or ()))):
                return False
        return made is not None
    except (ValueError, IndexError, ZeroDivisionError):
        return False


def _resized(shapes: Shapes, axis: int, size: int) -> Shapes:
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for shape in shapes)
