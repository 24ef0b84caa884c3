"""The source's tensors, made again from a converted directory's: the plan undone, copies and constants included.

`Original` is a header like any other (a name has dtype and shape), with the bytes on demand, a few MB at a time. It
needs the record alone: neither the source nor its converter.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lineage import graph
from lineage.checkpoint.files import CHUNK, opened
from lineage.checkpoint.regions import read_into, read_region
from lineage.checkpoint.safetensors import BITS, Tensor
from lineage.checkpoint.weights import Weights
from lineage.components import Shape
from lineage.constants import CONSTANTS, stored
from lineage.errors import FileDamaged
from lineage.operations import Array
from lineage.plan import Step, step_from_json
from lineage.record import converted_weights
from lineage.segments import Region, lower
from lineage.values import Value

TILE = 1 << 21  # elements that are rearranged at a time
SLACK = 1 << 26  # bytes that a constant may take beyond those of all tensors together: none is larger than its model


class Made(Value):
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
            beside = [f"{name.rpartition('.')[0]}.weight" for name in step.targets]  # of a bias that the model lacks
            dtype = next(weights[name].dtype for name in (*step.targets, *beside, *weights) if name in weights)
            for place, (name, shape) in enumerate(zip(step.sources, step.source_shapes, strict=True)):
                self._made[name] = Made(dtype, shape, step, place)
        self._made |= {name: self._made[of] for name, of in (copies or {}).items()}
        self._made |= constants or {}

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
            data = memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")
            yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))
        elif made.step is not None:
            yield from self._undone(made, made.step)

    def _undone(self, made: Made, step: Step) -> Iterator[bytes | memoryview]:
        """One of a step's tensors: the runs that it is made of; or its rows, rearranged some at a time."""
        if not step.operations and step.targets[0] in self.weights:
            yield from self.weights.chunks(step.targets[0])
            return
        lowered = lower(step.operations, step.target_shapes, True)
        with contextlib.ExitStack() as stack:
            held = [self.weights[name] for name in step.targets if name in self.weights]
            handles = {e.path: stack.enter_context(opened(e.path)).fileno() for e in held}
            if lowered.runs is not None:
                rows = lowered.runs[lowered.runs[:, 2] == made.place]
                yield from self._joined(step, rows, BITS[made.dtype] // 8, handles)
                return
            total = sum(map(prod, step.target_shapes))
            cuts = [step.target_shapes[0][axis.model] for axis in lowered.free if axis.file == 0]
            for tile in lowered.tiles(max(TILE, -(-total // max(cuts, default=1))), axes=(0,)):  # whole rows, in order
                arrays = [self._part(n, r, made, handles) for n, r in zip(step.targets, tile.inputs, strict=True)]
                yield np.ascontiguousarray(lowered.made(arrays)[made.place]).data.cast("B")

    def _part(self, name: str, region: Region, made: Made, handles: Mapping[Path, int]) -> Array:
        if name not in self.weights:
            return np.zeros([part.stop - part.start for part in region], f"<u{BITS[made.dtype] // 8}")
        entry = self._entry(name)
        return read_region(handles[entry.path], entry, region)

    def _joined(self, step: Step, rows: Array, width: int, handles: Mapping[Path, int]) -> Iterator[memoryview]:
        """The bytes of runs, one after the other, as much at a time as a buffer holds."""
        buffer, filled = memoryview(bytearray(CHUNK)), 0
        for place, start, _, _, length in rows.tolist():
            name, at, left = step.targets[place], start * width, length * width
            while left:
                count = min(left, CHUNK - filled)
                if name in self.weights:
                    entry = self._entry(name)
                    read_into(handles[entry.path], buffer[filled : filled + count], entry.start + at, entry.path)
                else:
                    buffer[filled : filled + count] = bytes(count)
                filled, at, left = filled + count, at + count, left - count
                if filled == CHUNK:
                    yield buffer
                    filled = 0
        yield buffer[:filled]

    def _entry(self, name: str) -> Tensor:
        entry = self.weights[name]
        assert isinstance(entry, Tensor)
        return entry


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
