"""The source's tensors, made again from a converted directory's: the plan undone, copies and constants included.

`Original` is a header like any other (a name has dtype and shape), with the bytes on demand, a few MB at a time. It
needs the record alone: neither the source nor its converter.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lineage import graph
from lineage.checkpoint.safetensors import BITS
from lineage.checkpoint.weights import CHUNK, Weights
from lineage.components import Shape
from lineage.constants import CONSTANTS, stored
from lineage.errors import FileDamaged
from lineage.operations import Array, invert
from lineage.plan import Step, step_from_json
from lineage.record import converted_weights

SLACK = 1 << 26  # bytes that a constant may take beyond those of all tensors together: none is larger than its model


@dataclass(frozen=True)
class Made:
    """A tensor of the source. step and place: where it comes from; value: the constant that it is instead."""

    dtype: str
    shape: Shape
    step: Step | None = None
    place: int = 0
    value: str | None = None

    @property
    def size(self) -> int:
        return prod(self.shape) * BITS[self.dtype] // 8


class Original(Mapping[str, Made]):
    """What a plan's steps, undone, give of a model's tensors. Tensors that the model lacks are zeros.

    copies: a name -> the one that it repeats. constants: a name -> what it is.
    """

    def __init__(
        self,
        weights: Weights,
        steps: Iterable[Step],
        copies: Mapping[str, str] | None = None,
        constants: Mapping[str, Made] | None = None,
    ) -> None:
        self.weights = weights
        self._made: dict[str, Made] = {}
        for step in steps:
            dtype = next((weights[name].dtype for name in step.targets if name in weights), weights[min(weights)].dtype)
            for place, (name, shape) in enumerate(zip(step.sources, step.source_shapes, strict=True)):
                self._made[name] = Made(dtype, shape, step, place)
        self._made |= {name: self._made[of] for name, of in (copies or {}).items()}
        self._made |= constants or {}
        self._last: tuple[Step, list[Array]] | None = None

    def __getitem__(self, name: str) -> Made:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def chunks(self, name: str) -> Iterator[bytes | memoryview]:
        """The bytes of a tensor, a few MB at a time. Raises FileDamaged if ours can no longer be read."""
        made = self[name]
        if made.value is not None:
            try:
                array = stored(CONSTANTS[made.value](made.shape), made.dtype)
            except (TypeError, ValueError, IndexError):
                array = None
            if array is None:
                raise FileDamaged(f"{name[:200]}: no {made.dtype} {list(made.shape)} is the constant {made.value!r}")
            yield from _pieces(array)
        elif made.step is not None and not made.step.operations and made.step.targets[0] in self.weights:
            yield from self.weights.chunks(made.step.targets[0])
        elif made.step is not None:
            yield from _pieces(self._undone(made.step)[made.place])

    def _undone(self, step: Step) -> list[Array]:
        """A step's tensors; the last one's are kept, since they are asked for one after the other."""
        if self._last is None or self._last[0] is not step:
            self._last = None
            arrays = [self._array(name, shape) for name, shape in zip(step.targets, step.target_shapes, strict=True)]
            self._last = step, invert(step.operations, arrays)
        return self._last[1]

    def _array(self, name: str, shape: Shape) -> Array:
        return self.weights.array(name) if name in self.weights else np.zeros(shape, np.uint8)


def _pieces(array: Array) -> Iterator[memoryview]:
    data = memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")
    yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))


def open_original(directory: Path, manifest: Mapping[str, Any]) -> tuple[Original, list[str]]:
    """A converted directory's source, and the names of its tensors that are lost. Raises FileDamaged."""
    weights = converted_weights(directory, manifest)
    plan, shapes = manifest["plan"], graph.tensors(graph.model_from_json(manifest["spec"]))
    if said := sorted(shapes.keys() ^ weights.keys()):
        raise FileDamaged(f"{directory}: the tensors are not those of the spec", facts=said[:20])
    steps = [step_from_json(step, shapes) for step in plan["steps"]]
    names = Counter(name for step in steps for name in step.sources)
    given = Counter(name for step in steps for name in step.targets)
    odd = [name for name, count in (names + given).items() if max(names[name], given[name]) > 1]
    odd += [name for name, of in plan["copies"].items() if of not in names or name in names] + [*shapes.keys() - given]
    room = sum(weights[name].size for name in weights) + SLACK
    kept = {d["name"]: Made(d["dtype"], tuple(d["shape"]), value=d["value"]) for d in plan["dropped"] if not d["lossy"]}
    for name, made in kept.items():
        if made.value not in CONSTANTS or made.dtype not in BITS or name in names or made.size > room:
            odd.append(name)
    if odd:
        raise FileDamaged(f"{directory}: the plan does not give the source back", facts=sorted(odd)[:20])
    return Original(weights, steps, plan["copies"], kept), [d["name"] for d in plan["dropped"] if d["lossy"]]
