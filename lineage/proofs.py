"""The proof that operations lose and double nothing: they are run on unique ids, there and back."""

import math
from functools import lru_cache

from lineage.fields import RANK_LIMIT
from lineage.later import np
from lineage.operations import Operations, Shapes, apply, invert, stages

PROOF_SIZE = 1 << 17  # elements on which a bijection is proved; larger shapes are first divided by common factors


@lru_cache(maxsize=4096)
def prove(operations: Operations, after: Shapes) -> bool:
    """Whether the operations fit these shapes, and carry each element to exactly one place and back.

    Run on unique ids: every id must arrive once, in the shapes the model wants, and return to where it was. Where all
    operations keep elements in order, that is so if none is left over.
    """
    if not operations:
        return True
    if all(operation.in_order for operation in operations):
        try:
            every = stages(operations, after)
            axes = max(len(shape) for shapes in every for shape in shapes)
            sizes = {sum(map(math.prod, shapes)) for shapes in every}
            return len(sizes) == 1 and 0 not in sizes and axes <= RANK_LIMIT
        except (ValueError, IndexError):
            return False
    shapes = reduced(after, math.lcm(*(operation.grain for operation in operations)) or 1)
    try:
        return _carries(operations, shapes)
    except (ValueError, IndexError, ZeroDivisionError):  # numpy's way to say that a shape does not fit
        return False


def _carries(operations: Operations, shapes: Shapes) -> bool:
    before = stages(operations, shapes)[0]
    counts = [math.prod(shape) for shape in before]
    starts = np.cumsum([0, *counts])
    ids = [np.arange(n, dtype=np.int64).reshape(s) + o for n, s, o in zip(counts, before, starts[:-1], strict=True)]
    there = apply(operations, ids, shapes)
    if tuple(array.shape for array in there) != shapes:
        return False
    arrived = np.sort(np.concatenate([array.ravel() for array in there]))
    back = invert(operations, there)
    return bool(np.array_equal(arrived, np.arange(starts[-1]))) and all(map(np.array_equal, ids, back))


def reduced(shapes: Shapes, grain: int, keep: int | None = None) -> Shapes:
    """The same shapes, their longest axes divided by factors common to all, to a size on which a proof is quick.

    grain: what the rows that are left must be a multiple of. keep: an axis that stays as it is.
    """
    axes = range(len(shapes[0])) if len({len(shape) for shape in shapes}) == 1 else ()
    for axis in sorted((a for a in axes if a != keep), key=lambda a: -shapes[0][a]):
        common = math.gcd(*(shape[axis] for shape in shapes)) // (
            1 if axis else math.gcd(grain, *(s[0] for s in shapes))
        )
        over = sum(map(math.prod, shapes)) / PROOF_SIZE
        if over > 1:
            factors = [n for n in range(1, common + 1) if common % n == 0]
            factor = next((n for n in factors if n >= over), max(factors))
            shapes = tuple((*s[:axis], s[axis] // factor, *s[axis + 1 :]) for s in shapes)
    return shapes
