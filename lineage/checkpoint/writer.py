"""Writes a plan's tensors as safetensors: where each will lie is settled first, then the data go there.

Files are as the source's, or of a size that is asked for. Hashes are of what lies on the disk in the end, read back.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from lineage.checkpoint.encoded import Encoded
from lineage.checkpoint.files import CHUNK, opened
from lineage.checkpoint.journal import Journal
from lineage.checkpoint.moving import Move, Tick, move
from lineage.checkpoint.regions import read_into
from lineage.checkpoint.safetensors import BITS, PAGE, Tensor, start_of
from lineage.checkpoint.weights import Entry, Weights
from lineage.later import np
from lineage.operations import Array
from lineage.plan import Plan, Step
from lineage.segments import lower
from lineage.values import Value

HEADER_METADATA = {"format": "pt"}
LARGE = 1 << 20  # bytes that are worth up to a page of blanks
K = TypeVar("K")
INDEX = "model.safetensors.index.json"


class Layout(Value):
    """Where everything will lie. starts: file -> what stands before its data; places: a tensor's name -> its place.

    steps: what makes each file's tensors. Files are named without a folder.
    """

    starts: Mapping[str, bytes]
    places: Mapping[str, Tensor]
    steps: Mapping[str, tuple[Step, ...]]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.size for tensor in self.places.values())

    def of(self, file: str) -> dict[str, Tensor]:
        """The tensors of one file."""
        return {name: tensor for name, tensor in self.places.items() if tensor.path.name == file}


class Written(Value):
    """What was written and read; what was not hashed has no sha256, or None.

    files: name -> sha256; tensors, sources: a tensor's name, in our spelling and in the source's -> what it is;
    weights: the source's files -> sha256; parts: those of encoded tensors -> sha256.
    """

    files: dict[str, str | None]
    tensors: dict[str, dict[str, object]]
    sources: dict[str, dict[str, object]]
    weights: dict[str, str]
    parts: dict[str, str]


def lay_out(plan: Plan, weights: Weights, dtype: str | None = None, limit: int | None = None) -> Layout:
    """Plan the files of a conversion. dtype: of all tensors, if not each one's own. limit: bytes of a file, beyond
    which only a step goes that is larger by itself; else the files are the source's.

    In a file the widest types come first, so that all stay aligned, and the order is the source's, so that it is read
    from front to back and neighbours stay neighbours. They lie in pages of memory as they do in the source, as far as
    can be: whole pages are copied twice as fast.
    """
    rank = {path: place for place, path in enumerate(weights.files)}

    def kind(step: Step) -> str:
        return dtype or weights[step.sources[0]].dtype

    def origin(step: Step) -> tuple[int, int]:
        first = weights[step.sources[0]]
        return rank[first.path], _start(first)

    groups: list[list[Step]] = []
    filled, file = 0, -1
    for step in sorted(plan.steps, key=origin):
        size = sum(map(prod, step.target_shapes)) * BITS[kind(step)] // 8
        if not groups or (filled + size > limit if limit else file != origin(step)[0]):
            groups.append([])
            filled, file = 0, origin(step)[0]
        groups[-1].append(step)
        filled += size
    form = "model.safetensors" if len(groups) == 1 else "model-{:05}-of-{:05}.safetensors"
    files = {form.format(number, len(groups)): tuple(group) for number, group in enumerate(groups, start=1)}
    starts: dict[str, bytes] = {}
    places: dict[str, Tensor] = {}
    for name, group in files.items():
        steps = sorted(group, key=lambda step: -BITS[kind(step)])
        held = {t: (kind(step), s) for step in steps for t, s in zip(step.targets, step.target_shapes, strict=True)}
        origins = [(kind(step), weights[step.sources[0]]) for step in steps]
        starts[name] = start_of(held, HEADER_METADATA, _place(steps, origins))
        at = len(starts[name])
        for target, (its, shape) in held.items():
            places[target] = Tensor(Path(name), its, shape, at, prod(shape) * BITS[its] // 8)
            at += places[target].size
    return Layout(starts, places, files)


def _place(steps: Sequence[Step], origins: Sequence[tuple[str, Entry]]) -> int | None:
    """Where in a page a file's data should begin, that most of them lie as in the source, and most is worth it.

    origins: of each step its type, and the first tensor that it is made from.
    """
    at, places = 0, Counter[int]()
    for step, (kind, first) in zip(steps, origins, strict=True):
        size = sum(map(prod, step.target_shapes)) * BITS[kind] // 8
        if isinstance(first, Tensor) and first.dtype == kind:
            places[(first.start - at) % PAGE] += size
        at += size
    place, size = max(places.items(), key=itemgetter(1), default=(0, 0))
    return place if size >= LARGE and place % 8 == 0 else None


def _start(entry: Entry) -> int:
    if isinstance(entry, Encoded):
        return min(_start(part) for part in entry.parts.values())
    return entry.start if isinstance(entry, Tensor) else 0


def work(layout: Layout, weights: Weights, hashes: bool) -> int:
    """Bytes to write and to hash, for a progress bar."""
    read = 0 if weights.remote else sum(size for _, size, _ in weights.stamps.values())
    return layout.size * (1 + hashes) + hashes * read


def write_weights(
    directory: Path,
    weights: Weights,
    layout: Layout,
    journal: Journal,
    hashes: bool,
    tick: Tick,
    sync: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> Written:
    """Write the files of a layout that the journal does not know as finished, and the index of several.

    tick: told of bytes that are written, and that are hashed. sync, meanwhile: as for `move`. Raises as `move` does.
    """
    places = {name: Tensor(directory / t.path, t.dtype, t.shape, t.start, t.size) for name, t in layout.places.items()}
    left = [file for file in layout.starts if file not in journal.finished]

    def finish(path: Path, told: Tick) -> None:
        whole, each = digests(path, layout.of(path.name), told) if hashes else (None, {})
        journal.finish(path, {"sha256": whole, "tensors": each})

    moves = [
        Move(step.sources, tuple(places[name] for name in step.targets), lower(step.operations, step.target_shapes))
        for file in left
        for step in layout.steps[file]
    ]
    tick(sum(t.size for t in layout.places.values() if t.path.name in journal.finished) * (1 + hashes))
    read = _Read(weights, layout, {}, {}, {})
    starts = {directory / file: layout.starts[file] for file in left}
    move(moves, weights, starts, finish, read.jobs() if hashes and not weights.remote else (), tick, sync, meanwhile)
    files = {file: journal.finished[file]["sha256"] for file in layout.starts}
    hashed = {name: sha for said in journal.finished.values() for name, sha in said["tensors"].items()}
    if len(files) > 1:
        index = {
            "metadata": {"total_size": layout.size},
            "weight_map": {n: t.path.name for n, t in layout.places.items()},
        }
        text = json.dumps(index, indent=2) + "\n"
        (directory / INDEX).write_text(text)
        files[INDEX] = hashlib.sha256(text.encode()).hexdigest()
    stays = [step for steps in layout.steps.values() for step in steps if not read.changed(step)]
    same = {step.sources[0]: hashed[step.targets[0]] for step in stays if hashes}
    told = planned(layout, weights)
    sources = _hashed(told.sources, read.tensors | same)
    return Written(files, _hashed(told.tensors, hashed), sources, read.files, read.parts)


def planned(layout: Layout, weights: Weights) -> Written:
    """What will be written, before it is: nothing is hashed."""
    sources = {name: weights[name] for steps in layout.steps.values() for step in steps for name in step.sources}
    return Written(dict.fromkeys(layout.starts), _entries(layout.places), _entries(sources), {}, {})


def _entries(tensors: Mapping[str, Entry]) -> dict[str, dict[str, object]]:
    return {name: {"dtype": tensor.dtype, "shape": list(tensor.shape)} for name, tensor in tensors.items()}


def _hashed(entries: dict[str, dict[str, object]], found: Mapping[str, str]) -> dict[str, dict[str, object]]:
    return {name: entry | ({"sha256": found[name]} if name in found else {}) for name, entry in entries.items()}


class _Read(Value):
    """The source's hashes, filled by `jobs`. A part of an encoded tensor may have the name of the whole."""

    weights: Weights
    layout: Layout
    files: dict[str, str]
    tensors: dict[str, str]
    parts: dict[str, str]

    def changed(self, step: Step) -> bool:
        """Whether the source's bytes are not those of one of ours."""
        return bool(step.operations) or self._cast(step)

    def _cast(self, step: Step) -> bool:
        return self.weights[step.sources[0]].dtype != self.layout.places[step.targets[0]].dtype

    def jobs(self) -> Iterator[Callable[[Tick], None]]:
        """Hash each file with those of its tensors that ours do not repeat; and tensors that it holds otherwise."""
        steps = [step for steps in self.layout.steps.values() for step in steps if not self._cast(step)]
        wanted = {name: self.weights[name] for step in steps if self.changed(step) for name in step.sources}
        parts = {n: p for e in self.weights.values() if isinstance(e, Encoded) for n, p in e.parts.items()}
        places = [(self.tensors, n, e) for n, e in wanted.items()] + [(self.parts, n, e) for n, e in parts.items()]
        for path in self.weights.files:
            inside = [(found, n, e) for found, n, e in places if isinstance(e, Tensor) and e.path == path]
            yield partial(self._file, path, inside)
        yield from (partial(self._tensor, name) for name, e in wanted.items() if not isinstance(e, Tensor))

    def _file(self, path: Path, inside: Sequence[tuple[dict[str, str], str, Tensor]], tick: Tick) -> None:
        self.files[path.name], each = digests(path, {place: e for place, (_, _, e) in enumerate(inside)}, tick)
        for place, digest in each.items():
            inside[place][0][inside[place][1]] = digest

    def _tensor(self, name: str, tick: Tick) -> None:
        digest = hashlib.sha256()
        for piece in self.weights.chunks(name):
            digest.update(piece)
            tick(0)
        self.tensors[name] = digest.hexdigest()


def digests(path: Path, tensors: Mapping[K, Tensor], tick: Tick = lambda count: None) -> tuple[str, dict[K, str]]:
    """The sha256 of a file and of some tensors in it, in one pass. Raises FileDamaged."""
    whole, found, at = hashlib.sha256(), {}, 0
    buffer = memoryview(bytearray(CHUNK))
    with opened(path) as file:
        end = path.stat().st_size

        def feed(stop: int, *digesters: "hashlib._Hash") -> None:
            nonlocal at
            while at < stop:
                piece = buffer[: min(CHUNK, stop - at)]
                read_into(file.fileno(), piece, at, path)
                for digester in digesters:
                    digester.update(piece)
                at += len(piece)
                tick(len(piece))

        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
            feed(tensor.start, whole)
            own = hashlib.sha256()
            feed(tensor.start + tensor.size, whole, own)
            found[name] = own.hexdigest()
        feed(end, whole)
    return whole.hexdigest(), found


def digest_of(array: Array) -> str:
    """The sha256 of an array's bytes."""
    data = memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")
    return hashlib.sha256(data).hexdigest()


def file_digests(files: Iterable[Path]) -> dict[str, dict[str, object]]:
    """Size and sha256 of whole files, by name."""
    return {path.name: {"sha256": digests(path, {})[0], "size": path.stat().st_size} for path in files}
