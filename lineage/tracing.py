"""`lineage trace`: of which bytes of the source, by which operations, a tensor or a part of it was made.

A part is told by its elements; where the plan keeps them together in runs, runs are cut, and where it rearranges them,
numbered tiles are sent through the same operations. What is found are ranges of bytes, in the source's own file where
its header was kept.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lineage import graph
from lineage.checkpoint.safetensors import BITS, HEADER, Tensor, read_kept
from lineage.components import Shape
from lineage.errors import UsageError
from lineage.operations import Array, spell
from lineage.plan import Step, step_from_json
from lineage.record import SOURCE, cast_text, converted_weights, read_manifest
from lineage.segments import Lowered, Region, lower
from lineage.values import Value

TILE = 1 << 21  # elements that are sent through at a time
MOST = 1 << 22  # ranges; what is more scattered is told of a smaller part
SHOWN = 8
NUMBER = "-?[0-9]{1,18}"
ITEM = re.compile(rf"\.\.\.|{NUMBER}|({NUMBER})?(:({NUMBER})?){{1,2}}")


class Place(Value):
    """Bytes of one tensor. file: where they lie; None if that is not known, and ranges are within the tensor.

    ranges: [N, 2] of first byte and the one after the last, in order.
    """

    tensor: str
    file: str | None
    ranges: Array

    def to_dict(self) -> dict[str, Any]:
        """As JSON; of very many ranges the first thousand."""
        count, size = len(self.ranges), int((self.ranges[:, 1] - self.ranges[:, 0]).sum())
        return {"tensor": self.tensor, "file": self.file, "bytes": size, "range_count": count,
                "ranges": self.ranges[:1000].tolist()}  # fmt: skip

    def lines(self) -> Iterator[str]:
        """As text; ranges of one length and distance are told in a line."""
        yield f"{self.tensor}   in {self.file or 'its own data (no header was kept)'}"
        starts, sizes = self.ranges[:, 0], self.ranges[:, 1] - self.ranges[:, 0]
        apart = np.diff(starts)
        if len(starts) > 2 and len(np.unique(sizes)) == 1 == len(np.unique(apart)):
            yield f"  {len(starts):,} ranges of {sizes[0]:,} bytes, {apart[0]:,} apart, the first at {starts[0]:,}"
            return
        yield from (f"  bytes {first:,} to {end:,}   ({end - first:,})" for first, end in self.ranges[:SHOWN].tolist())
        if len(starts) > SHOWN:
            yield f"  and {len(starts) - SHOWN:,} more ranges, {sizes.sum():,} bytes in all"


class Traced(Value):
    """A tensor's part, where it lies in ours, what it was made of, and how."""

    name: str
    part: str
    shape: Shape
    dtype: str
    ours: Place
    sources: tuple[Place, ...]
    operations: tuple[str, ...]
    origin: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "schema": "lineage.trace/1", "tensor": self.name, "part": self.part, "shape": list(self.shape),
            "dtype": self.dtype, "ours": self.ours.to_dict(), "origin": self.origin,
            "sources": [place.to_dict() for place in self.sources], "operations": list(self.operations),
            "notes": list(self.notes),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """As text."""
        told = [f"tensor   {self.name}{self.part}   {self.dtype} {list(self.shape)}"]
        told += [f"{'ours' if i == 0 else '':8} {line}" for i, line in enumerate(self.ours.lines())]
        lines = [line for place in self.sources for line in place.lines()] or ["nothing: the part is empty"]
        told += [f"{'source' if i == 0 else '':8} {line}" for i, line in enumerate(lines)]
        told.append(f"by       {', '.join(self.operations) or 'its name alone'}, from {self.origin}")
        return told + [f"note     {note}" for note in self.notes]


def traced(directory: Path, what: str) -> Traced:
    """Trace a tensor, or a part of it, given as ``NAME[1:3, ::2]``, in numpy's notation of integers and slices.

    Raises UsageError for a name or a part that is not there, FileDamaged for a directory that is not as it was.
    """
    manifest = read_manifest(directory)
    weights, shapes = converted_weights(directory, manifest), graph.tensors(graph.model_from_json(manifest["spec"]))
    name, bracket, inner = what.partition("[")
    steps = [one for one in manifest["plan"]["steps"] if name in one["to"]]
    if name not in shapes or name not in weights or not steps:
        raise _unknown(name, manifest)
    entry, step = weights[name], step_from_json(steps[0], shapes)
    assert isinstance(entry, Tensor)
    part, chosen = _chosen(bracket + inner, entry.shape)
    kept, source = _kept(directory, manifest), manifest["source"]
    sources = []
    for place, runs in sorted(_through(step, name, chosen).items()):
        made_of = step.sources[place]
        there = kept.get(made_of)
        width = BITS[source["tensors"].get(made_of, {}).get("dtype", entry.dtype)] // 8
        file = there.path.name.removesuffix(HEADER) if there else None
        sources.append(Place(made_of, file, _bytes(runs, width, there.start if there else 0)))
    ours = Place(name, entry.path.name, _bytes(_runs(entry.shape, chosen), BITS[entry.dtype] // 8, entry.start))
    origin = source["origin"] + (f"@{source['revision']}" if source["revision"] else "")
    spelled = tuple(spell(operation) for operation in step.operations)
    notes = _notes(manifest, step)
    return Traced(name, bracket + inner, part, entry.dtype, ours, tuple(sources), spelled, origin, notes)


def _unknown(name: str, manifest: Mapping[str, Any]) -> UsageError:
    made = next((", ".join(one["to"]) for one in manifest["plan"]["steps"] if name in one["from"]), None)
    if made:
        return UsageError(f"{name} is a name of the source's", hint=f"it became {made}")
    near = difflib.get_close_matches(name, manifest["tensors"], n=1)
    told = f". Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"no tensor {name[:200]!r}{told}", hint="lineage show DIR --tensors lists them")


def _kept(directory: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the source's files, as far as their headers were kept."""
    heads = [directory / SOURCE / (name + HEADER) for name in manifest["source"]["weights"]]
    return {name: tensor for head in heads if head.is_file() for name, tensor in read_kept(head)[1].items()}


def _notes(manifest: Mapping[str, Any], step: Step) -> tuple[str, ...]:
    copies = [f"{name} repeats {of}" for name, of in manifest["plan"]["copies"].items() if of in step.sources]
    coded = manifest["source"].get("encoded", {})
    decoded = [
        f"{name} is decoded ({coded[name]['encoding']}) from {', '.join(coded[name]['from'])}; bytes are of the result"
        for name in step.sources
        if name in coded
    ]
    return (*copies, *decoded, *filter(None, [cast_text(manifest.get("cast"))]))


def _chosen(part: str, shape: Shape) -> tuple[Shape, list[Array]]:
    """A part as the shape that it has, and along each axis the indices that are meant. Raises UsageError."""

    def wrong(what: str) -> UsageError:
        return UsageError(f"{part[:80]}: {what}", hint=f"the tensor is {list(shape)}; a part of it is [3, 1:5, ::2]")

    if not part:
        return shape, [np.arange(size) for size in shape]
    items = [item.strip() for item in part[1:-1].split(",")]
    if not part.endswith("]") or not all(map(ITEM.fullmatch, items)):
        raise wrong("not a part in numpy's notation")
    if items.count("...") > 1 or len(items) - items.count("...") > len(shape):
        raise wrong(f"more indices than the {len(shape)} axes")
    if "..." not in items:
        items.append("...")
    at = items.index("...")
    items[at : at + 1] = [":"] * (len(shape) - len(items) + 1)
    left, chosen = [], []
    for item, size in zip(items, shape, strict=True):
        if ":" not in item:
            if not -size <= int(item) < size:
                raise wrong(f"index {item} of an axis of {size:,}")
            chosen.append(np.array([int(item) % size]))
            continue
        bounds = [int(number) if number else None for number in item.split(":")]
        if bounds[2:] == [0]:
            raise wrong("a step of nothing")
        chosen.append(np.sort(np.arange(size)[slice(*bounds)]))
        left.append(len(chosen[-1]))
    return tuple(left), chosen


def _runs(shape: Shape, chosen: Sequence[Array]) -> Array:
    """What is chosen of a tensor, as runs [N, 2] of first element and length. Raises UsageError for too many."""
    cut = max((axis for axis, size in enumerate(shape) if len(chosen[axis]) != size), default=None)
    if cut is None or 0 in map(len, chosen):
        return np.array([[0, math.prod(shape)]] * (0 not in (*shape, *map(len, chosen))), np.int64).reshape(-1, 2)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    last = _joined(chosen[cut]) * strides[cut]
    _check(math.prod(len(axis) for axis in chosen[:cut]) * len(last))
    starts = np.zeros(1, np.int64)
    for axis in range(cut):
        starts = (starts[:, None] + chosen[axis] * strides[axis]).ravel()
    every = (starts[:, None] + last[:, 0]).ravel()
    return np.stack([every, np.tile(last[:, 1], len(starts))], 1)


def _check(count: int) -> None:
    if count > MOST:
        raise UsageError(f"the part lies in {count:,} pieces, over {MOST:,}", hint="name a smaller part")


def _joined(ids: Array) -> Array:
    """Numbers in ascending order as runs [N, 2] of first and length."""
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    first = np.concatenate([[0], breaks]) if len(ids) else breaks
    return np.stack([ids[first], np.diff(np.append(first, len(ids)))], 1)


def _through(step: Step, name: str, chosen: Sequence[Array]) -> dict[int, Array]:
    """What is chosen of one of a step's tensors: the runs of each source that it was made of."""
    place = step.targets.index(name)
    wanted = _runs(step.target_shapes[place], chosen)
    if not step.operations or not len(wanted):
        return {0: wanted} if len(wanted) else {}
    lowered = lower(step.operations, step.target_shapes)
    starts = np.cumsum([0, *map(math.prod, lowered.inputs)])
    found = _cut(lowered.runs[lowered.runs[:, 2] == place], wanted, starts) if lowered.runs is not None else None
    if found is None:
        found = np.concatenate([np.zeros((0, 2), np.int64), *_tiled(lowered, place, chosen, starts)])
    found = found[np.argsort(found[:, 0])]
    owner = np.searchsorted(starts, found[:, 0], side="right") - 1
    return {int(i): _merged(found[owner == i] - [starts[i], 0]) for i in np.unique(owner)}


def _merged(runs: Array) -> Array:
    """Runs in order, with those that touch made one."""
    first = np.concatenate([[0], np.flatnonzero(runs[1:, 0] != runs[:-1, 0] + runs[:-1, 1]) + 1])
    return np.stack([runs[first, 0], np.add.reduceat(runs[:, 1], first)], 1)


def _cut(rows: Array, wanted: Array, starts: Array) -> Array:
    """The runs of all inputs, numbered through, that wanted runs of an output lie in. rows: its table of runs."""
    rows = rows[np.argsort(rows[:, 3])]
    first = np.searchsorted(rows[:, 3], wanted[:, 0], side="right") - 1
    after = np.searchsorted(rows[:, 3], wanted.sum(1), side="left")
    _check(int((after - first).sum()))
    which = np.repeat(np.arange(len(wanted)), after - first)
    row = rows[np.arange(len(which)) - np.repeat(np.cumsum(after - first) - after, after - first)]
    low = np.maximum(wanted[which, 0], row[:, 3])
    high = np.minimum(wanted[which].sum(1), row[:, 3] + row[:, 4])
    return np.stack([starts[row[:, 0]] + row[:, 1] + low - row[:, 3], high - low], 1)


def _tiled(lowered: Lowered, place: int, chosen: Sequence[Array], starts: Array) -> Iterator[Array]:
    """The same where elements are rearranged: numbered tiles go through the operations."""
    count = 0
    for tile in lowered.tiles(TILE):
        region = tile.outputs[place]
        local = [a[(a >= r.start) & (a < r.stop)] - r.start for a, r in zip(chosen, region, strict=True)]
        if 0 in map(len, local):
            continue
        inputs = zip(starts, lowered.inputs, tile.inputs, strict=False)
        made = lowered.made([start + _numbers(shape, cut) for start, shape, cut in inputs])[place]
        runs = _joined(np.sort(made[np.ix_(*local)], axis=None))
        count += len(runs)
        _check(count)
        yield runs


def _numbers(shape: Shape, region: Region) -> Array:
    """The flat numbers of a region's elements."""
    axes = [np.arange(r.start, r.stop) * math.prod(shape[axis + 1 :]) for axis, r in enumerate(region)]
    return sum(np.ix_(*axes), np.zeros((), np.int64))


def _bytes(runs: Array, width: int, start: int) -> Array:
    """Runs of elements as ranges of bytes."""
    return np.stack([runs[:, 0], runs.sum(1)], 1) * width + start
