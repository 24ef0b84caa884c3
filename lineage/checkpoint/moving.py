"""Makes tensors of new files from those of others, by two workers, none of them ever whole in memory.

Ranges of bytes that stay together are copied by the kernel (which shares them where the file system can), others are
passed on a few MB at a time (what is decoded, cast, or lies in very many short runs), and what is rearranged goes tile
by tile.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lineage.checkpoint.casting import cast
from lineage.checkpoint.files import CHUNK
from lineage.checkpoint.outputs import Handles
from lineage.checkpoint.regions import Handle, raw_type, read_into, write_all, write_region
from lineage.checkpoint.safetensors import BITS, PAGE, Tensor
from lineage.checkpoint.tasks import Job, Task, in_order, tile_span, whole_span
from lineage.checkpoint.weights import Weights
from lineage.errors import TensorMismatch
from lineage.later import np
from lineage.operations import Array
from lineage.segments import Lowered, Tile
from lineage.values import Value

WORKERS = 2  # copying is bound by memory: a third adds nothing
SHARED = 1 << 16  # bytes that are worth two more calls
PIECE = 1 << 26  # bytes that are asked of the kernel at a time
TILE = 10 << 20  # bytes that are rearranged at a time: in and out, by each worker
SCATTERED = 1 << 10  # runs of one step that are worth a call each

Tick = Callable[[int], None]


class Move(Value):
    """Tensors of a new file (with their places) that are made from some of a checkpoint."""

    sources: tuple[str, ...]
    targets: tuple[Tensor, ...]
    lowered: Lowered


class _Range(Value):
    """Bytes that stay together."""

    target: Path
    at: int
    source: Path
    start: int
    count: int


class _Stopped(Exception):
    """Another worker failed, or the user has had enough."""


def move(
    moves: Sequence[Move],
    weights: Weights,
    starts: Mapping[Path, bytes],
    finish: Callable[[Path, Tick], None],
    also: Iterable[Callable[[Tick], None]] = (),
    moved: Tick = lambda count: None,
    sync: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Write files. starts: what stands before each one's data. finish: called for each when it is complete, by any
    worker. also: other work for a worker that has nothing to write. moved: told of bytes as they are written. sync:
    force each file to the disk before it is finished, and begin with that while the others are still copied. meanwhile:
    what the caller has to do besides.

    Raises FileDamaged for what cannot be read, TensorMismatch for what cannot be cast, OSError for what cannot be
    written.
    """
    stop, go = threading.Event(), threading.Event()

    def begun(job: Job) -> None:
        go.wait()  # a signal while the workers are started must find nothing begun: it may lose one of them
        tick(0)
        job()

    def tick(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        moved(count)

    sizes = {path: len(start) for path, start in starts.items()}
    for target in (target for one in moves for target in one.targets):
        sizes[target.path] = max(sizes[target.path], target.start + target.size)
    with Handles(starts, sizes, sync) as handles, ThreadPoolExecutor(WORKERS + sync) as pool:
        try:
            flushing = pool.submit(handles.flush, stop) if sync else None
            jobs: dict[Path, list[Job]] = {path: [] for path in starts}
            for path, job in in_order(_Work(weights, handles, tick).tasks(moves), weights.remote):
                jobs[path].append(job)
            ends: list[Future[None]] = []
            last: list[Job] = []  # the end of a file waits for its jobs: it is taken when all workers have another's
            for path, own in jobs.items():
                waiting = [pool.submit(begun, job) for job in own]
                ends += [pool.submit(end) for end in last]
                last = [partial(_finished, handles, path, waiting, partial(finish, path, tick))]
            besides: list[Job] = [partial(one, tick) for one in also]
            ends += [pool.submit(one) for one in (*besides[:1], *last, *besides[1:])]
            go.set()
            meanwhile()
            for end in ends:
                end.result()
            stop.set()
            if flushing:
                flushing.result()
        finally:
            stop.set()
            go.set()
            pool.shutdown(cancel_futures=True)


def _finished(handles: "Handles", path: Path, jobs: list[Future[None]], finish: Job) -> None:
    for job in jobs:  # those not done are another worker's, being taken in the order in which they were handed in
        job.result()  # not `wait`, which never hears of a job that was called off after it was handed in
    handles.done(path)
    finish()


class _Work(Value):
    weights: Weights
    handles: Handles
    tick: Tick

    def tasks(self, moves: Sequence[Move]) -> Iterator[Task]:
        """What is to be done, in any order; begun with the longest."""
        ranges: list[_Range] = []
        rest: list[Task] = []
        for one in moves:
            path, entries = one.targets[0].path, [self.weights[name] for name in one.sources]
            plain = [e for e in entries if isinstance(e, Tensor) and e.dtype == one.targets[0].dtype]
            whole = len(plain) == len(entries)
            if whole and one.lowered.spans is not None:  # nothing need be computed, nor numpy loaded
                ranges += _ranges(one, plain, one.lowered.spans)
            elif (runs := one.lowered.runs) is None:
                width = sum(BITS[kind] for kind in {e.dtype for e in (*entries, *one.targets)}) // 8
                axes = [axis for axis, _ in getattr(entries[0], "cuts", ())]
                axes = axes or [0] * (entries[0].path in self.weights.remote)  # rows lie together
                tiles = one.lowered.tiles(TILE // width, axes)
                rest += (Task(path, partial(self._tile, one, tile), tile_span(entries, tile)) for tile in tiles)
            elif whole and len(runs) <= SCATTERED:
                ranges += _ranges(one, plain, runs.tolist())
            else:
                rest += (Task(path, partial(self._stream, one, i), whole_span(e)) for i, e in enumerate(entries))
        here: dict[Path, list[_Range]] = {}
        for part in _merged(ranges):
            if part.source in self.weights.remote:
                span = part.source, part.start, part.start + part.count
                yield Task(part.target, partial(self._copy, part), span)
            else:
                here.setdefault(part.target, []).append(part)
        for target, parts in here.items():  # by one worker: the system lets no two write to a file at once
            yield Task(target, partial(self._copy, *parts))
        yield from rest

    def _copy(self, *parts: _Range) -> None:
        for one in parts:
            self._copy_one(one)

    def _copy_one(self, one: _Range) -> None:
        target = self.handles(one.target)
        with self.weights.opened(one.source) as source:  # each time: there may be more than a process may hold open
            start, at, left = one.start, one.at, one.count
            while left:
                done = _by_kernel(source, start, target, at, _next(start, at, min(left, PIECE)))
                if not done:  # by hand, which tells whose fault it is
                    piece = memoryview(bytearray(min(left, CHUNK)))
                    read_into(source, piece, start, one.source)
                    write_all(target, piece, at)
                    done = len(piece)
                start, at, left = start + done, at + done, left - done
                self.tick(done)

    def _stream(self, one: Move, place: int) -> None:
        """Hand one source on, a few MB at a time, to where its runs belong."""
        runs, name, at = one.lowered.runs, one.sources[place], 0
        assert runs is not None
        own = runs[runs[:, 0] == place]
        own = own[np.argsort(own[:, 1])]
        ends = own[:, 1] + own[:, 4]
        kind = raw_type(self.weights[name].dtype)
        for chunk in self.weights.chunks(name):
            piece = self._cast(one, np.frombuffer(chunk, kind), name)
            first, last = np.searchsorted(ends, at, "right"), np.searchsorted(own[:, 1], at + len(piece))
            for _, start, target, to, count in own[first:last].tolist():
                begin, end = max(start, at), min(start + count, at + len(piece))
                place_of, width = one.targets[target], piece.itemsize
                data = piece[begin - at : end - at].data.cast("B")
                write_all(self.handles(place_of.path), data, place_of.start + (to + begin - start) * width)
            at += len(piece)
            self.tick(piece.nbytes)

    def _tile(self, one: Move, tile: Tile) -> None:
        parts = [
            self._cast(one, self.weights.region(name, region), name)
            for name, region in zip(one.sources, tile.inputs, strict=True)
        ]
        for target, region, made in zip(one.targets, tile.outputs, one.lowered.made(parts), strict=True):
            write_region(self.handles(target.path), target, region, made)
            self.tick(made.nbytes)

    def _cast(self, one: Move, piece: Array, name: str) -> Array:
        old, new = self.weights[name].dtype, one.targets[0].dtype
        try:
            return cast(piece, old, new)
        except ValueError as error:
            raise TensorMismatch(f"{name[:200]}: {error}", hint="choose another --dtype") from None


def _next(start: int, at: int, left: int) -> int:
    """How much to copy from here: of much, up to a page or whole pages, which file systems that can do so share."""
    if (start - at) % PAGE or left < SHARED:
        return left
    return PAGE - start % PAGE if start % PAGE else left - left % PAGE


def _by_kernel(source: Handle, start: int, target: int, at: int, count: int) -> int:
    """How many bytes the kernel has copied; 0 if it does not do it here."""
    if not isinstance(source, int):
        return 0
    try:
        return os.copy_file_range(source, target, count, start, at)
    except (AttributeError, OSError):
        return 0


def _ranges(one: Move, entries: Sequence[Tensor], runs: Iterable[Sequence[int]]) -> Iterator[_Range]:
    for place, start, target, at, count in runs:
        source, new = entries[place], one.targets[target]
        width = BITS[new.dtype] // 8
        yield _Range(new.path, new.start + at * width, source.path, source.start + start * width, count * width)


def _merged(ranges: list[_Range]) -> Iterator[_Range]:
    """Neighbours that are neighbours on both sides become one; long ones become several, for several workers."""
    ranges.sort(key=lambda one: (one.target, one.at))
    held: _Range | None = None
    for one in ranges:
        near = held and (held.target, held.at + held.count) == (one.target, one.at)
        if held and near and (held.source, held.start + held.count) == (one.source, one.start):
            held = _Range(held.target, held.at, held.source, held.start, held.count + one.count)
            continue
        yield from _pieces(held)
        held = one
    yield from _pieces(held)


def _pieces(one: _Range | None) -> Iterator[_Range]:
    for at in range(0, one.count if one else 0, PIECE):
        assert one
        yield _Range(one.target, one.at + at, one.source, one.start + at, min(PIECE, one.count - at))
