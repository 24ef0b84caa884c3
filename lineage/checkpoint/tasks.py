"""Pieces of work on new files, put together such that what is far away is read in few requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lineage.checkpoint.remote import GAP, Remote
from lineage.checkpoint.safetensors import Tensor
from lineage.checkpoint.weights import Entry
from lineage.segments import Tile
from lineage.values import Value

MOST = 1 << 26  # bytes that are asked for at a time: a request costs a tenth of a second
Job = Callable[[], None]
Span = tuple[Path, int, int]


class Task(Value):
    """Work on a new file. span: what it reads, if that is bytes of one file, front to back: which, first, end."""

    target: Path
    do: Job
    span: Span | None = None


def in_order(tasks: Iterable[Task], remote: Mapping[Path, Remote]) -> Iterator[tuple[Path, Job]]:
    """Jobs, each with the file that it is on. What reads neighbouring bytes of a remote file becomes one of them."""
    far: list[tuple[Path, Span, Job]] = []
    for task in tasks:
        if task.span and task.span[0] in remote:
            far.append((task.target, task.span, task.do))
        else:
            yield task.target, task.do
    group: list[tuple[Path, Span, Job]] = []
    for one in sorted(far, key=lambda one: one[:2]):
        target, (path, start, stop), _ = one
        if group:
            last, (source, first, _), _ = group[0]
            near = 0 <= start - group[-1][1][2] <= GAP and stop - first <= MOST
            if (last, source) != (target, path) or not near:
                yield _joined(group, remote)
                group = []
        group.append(one)
    if group:
        yield _joined(group, remote)


def _joined(group: list[tuple[Path, Span, Job]], remote: Mapping[Path, Remote]) -> tuple[Path, Job]:
    (target, (path, start, _), _), (_, (_, _, stop), _) = group[0], group[-1]

    def do() -> None:
        with remote[path].ahead(start, stop):
            for _, _, job in group:
                job()

    return target, do


def whole_span(entry: Entry) -> Span | None:
    """Where a tensor lies, if it lies somewhere."""
    return (entry.path, entry.start, entry.start + entry.size) if isinstance(entry, Tensor) else None


def tile_span(entries: Sequence[Entry], tile: Tile) -> Span | None:
    """The bytes that a tile is made of, if they are whole rows of one tensor."""
    entry, region = entries[0], tile.inputs[0]
    rows = all(part == slice(0, size) for part, size in zip(region[1:], entry.shape[1:], strict=True))
    if not isinstance(entry, Tensor) or len(entries) > 1 or not rows or not region:
        return None
    row = entry.size // entry.shape[0]
    return entry.path, entry.start + region[0].start * row, entry.start + region[0].stop * row
