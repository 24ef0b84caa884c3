"""The tensors of a checkpoint, whatever files they lie in: headers first, bytes on demand.

`Weights` is a header (`weights[name]` has dtype and shape) with two ways to the bytes: `chunks`, a few MB at a time,
and `array`, one whole tensor as unsigned integers of its width, so that every type passes through unchanged. What is
stored encoded is met here as what it stands for.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from lineage.checkpoint.encoded import Encoded, present
from lineage.checkpoint.files import open_regular, read_json
from lineage.checkpoint.gguf import SUFFIX, read_gguf
from lineage.checkpoint.pickles import DTYPES, read_pickle
from lineage.checkpoint.regions import raw_type, read_region
from lineage.checkpoint.safetensors import BITS, JSON_LIMIT, Tensor, read_header
from lineage.errors import FileDamaged, SourceError, UsageError
from lineage.operations import Array
from lineage.segments import Region

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 22
INDEX = ".index.json"
MAIN = ("model.safetensors", "model.safetensors" + INDEX, "pytorch_model.bin", "pytorch_model.bin" + INDEX)
"""The file that speaks for a checkpoint, the one to prefer first."""
PICKLES = (".bin", ".pt", ".pth")
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Pickled:
    """A tensor of a pickled checkpoint."""

    path: Path
    tensor: "torch.Tensor"

    @property
    def dtype(self) -> str:
        return DTYPES[str(self.tensor.dtype).removeprefix("torch.")]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @cached_property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


Stored = Tensor | Pickled
Entry = Stored | Encoded


class Weights(Mapping[str, Entry]):
    """The tensors of one checkpoint. files: those that hold them; index: the file that lists them, if there is one.

    stamps: what `_stamp` said of the files before they were read.
    """

    def __init__(
        self,
        tensors: Mapping[str, Entry],
        files: tuple[Path, ...],
        index: Path | None = None,
        stamps: Mapping[Path, Stamp] | None = None,
    ) -> None:
        self._tensors = tensors
        self.files = files
        self.index = index
        self.stamps = stamps or {}

    def __getitem__(self, name: str) -> Entry:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def decoded(self, storage: Mapping[str, Any] | None) -> "Weights":
        """The same, with what a config says of their storage undone. Raises TensorMismatch, see `encoded.present`."""
        stored = {name: entry for name, entry in self.items() if not isinstance(entry, Encoded)}
        tensors = present(stored, storage) if storage else self._tensors
        return Weights(tensors, self.files, self.index, self.stamps)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, a few MB at a time. Raises FileDamaged if the file has become shorter."""
        entry = self[name]
        if not isinstance(entry, Encoded):
            yield from _bytes(entry, 0, entry.size)
            return
        parts = tuple(entry.parts.values())
        for place in range(-(-parts[0].shape[0] // entry.steps[0])):
            rows = [_rows(part, place * step, step) for part, step in zip(parts, entry.steps, strict=True)]
            with _held(entry, name):
                piece = entry.decode(*rows)
            yield piece.tobytes()

    def region(self, name: str, region: Region) -> Array:
        """A part of a tensor as unsigned integers of its width. Raises FileDamaged."""
        entry = self[name]
        if not isinstance(entry, Encoded):
            return _region(entry, region)
        with _held(entry, name):
            return entry.region(region, _region)

    def array(self, name: str) -> Array:
        """A whole tensor as unsigned integers of its width, in its shape."""
        entry = self[name]
        whole = np.empty(entry.size, np.uint8)
        done = 0
        for piece in self.chunks(name):
            whole[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        return whole.view(f"<u{BITS[entry.dtype] // 8}").reshape(entry.shape)

    def check_unchanged(self) -> None:
        """Raises FileDamaged if a file is no longer the one whose header was read."""
        for path, stamp in self.stamps.items():
            if _stamp(path) != stamp:
                raise FileDamaged(f"{path.name} changed while it was read", hint="run again when nothing writes to it")

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors have the same type, shape and bytes."""
        a, b = self[one], self[other]
        return (a.dtype, a.shape) == (b.dtype, b.shape) and _digest(self.chunks(one)) == _digest(self.chunks(other))

    def encodings(self, digests: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Of each tensor that is decoded: how, whether that rounds nothing, its parts with their sha256."""
        return {
            name: {"encoding": e.encoding, "exact": e.exact, "from": {part: digests.get(part) for part in e.parts}}
            for name, e in self.items()
            if isinstance(e, Encoded)
        }


@contextlib.contextmanager
def _held(entry: Encoded, name: str) -> Iterator[None]:
    """Raises FileDamaged for what a decoder finds that its type does not hold."""
    try:
        yield
    except ValueError as error:
        raise FileDamaged(f"{entry.path.name}: {name[:200]}: {error}") from None


def _region(entry: Stored, region: Region) -> Array:
    if isinstance(entry, Pickled):
        return _raw(entry).view(raw_type(entry.dtype)).reshape(entry.shape)[region]
    try:
        with open_regular(entry.path) as file:
            return read_region(file.fileno(), entry, region)
    except OSError as error:
        raise FileDamaged(f"{entry.path.name}: cannot be read ({error.strerror})") from error


def _bytes(entry: Stored, start: int, end: int) -> Iterator[bytes]:
    """Some bytes of a tensor as it is stored, at most CHUNK at a time."""
    if isinstance(entry, Pickled):
        data = memoryview(_raw(entry).data).cast("B") if entry.size else memoryview(b"")
        yield from (bytes(data[at : min(at + CHUNK, end)]) for at in range(start, end, CHUNK))
        return
    try:
        with open_regular(entry.path) as file:
            while start < end:
                piece = os.pread(file.fileno(), min(CHUNK, end - start), entry.start + start)
                if not piece:
                    raise FileDamaged(f"{entry.path.name} became shorter while it was read")
                start += len(piece)
                yield piece
    except OSError as error:
        raise FileDamaged(f"{entry.path.name}: cannot be read ({error.strerror})") from error


def _rows(entry: Stored, first: int, count: int) -> Array:
    """Some rows of a tensor as it is stored, as unsigned integers."""
    rows = slice(first, min(first + count, entry.shape[0]))
    return _region(entry, (rows, *(slice(0, size) for size in entry.shape[1:])))


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _raw(entry: Pickled) -> Array:
    import torch

    width = BITS[entry.dtype] // 8
    flat = entry.tensor.detach().contiguous().reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]).numpy()


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def main_file(names: Collection[str], place: str, allow_pickle: bool) -> str:
    """The file of a folder that speaks for its weights: safetensors before pickles, a single file before shards.

    Raises SourceError if there is none, UsageError if there are only pickles and they are not allowed.
    """
    found = next((name for name in MAIN if name in names), None)
    if found is None:
        raise SourceError(f"no weights in {place}", facts=[f"looked for {', '.join(MAIN)}"])
    if not allow_pickle and ".bin" in found:
        bins = sorted(name for name in names if name.startswith("pytorch_model") and name.endswith(".bin"))
        raise _not_allowed(bins or [found])
    return found


def _not_allowed(names: list[str]) -> UsageError:
    return UsageError(
        f"{', '.join(names[:9])}: pickles, which can carry code",
        hint="--allow-pickle reads them with torch's weights-only reader; a safetensors file needs no such care",
    )


def open_weights(directory: Path, allow_pickle: bool = False, file: Path | None = None) -> Weights:
    """The checkpoint in a directory. file: this one alone.

    Raises as `main_file` does, and FileDamaged if a file or the index is.
    """
    if file is not None:
        if file.suffix in PICKLES and not allow_pickle:
            raise _not_allowed([file.name])
        return _open((file,))
    main = directory / main_file([path.name for path in directory.iterdir()], str(directory), allow_pickle)
    return _sharded(main) if main.name.endswith(INDEX) else _open((main,))


def _open(files: tuple[Path, ...], index: Path | None = None) -> Weights:
    tensors: dict[str, Entry] = {}
    stamps = {path: stamp for path in files if (stamp := _stamp(path))}
    for path in files:
        if path.suffix == SUFFIX:
            found: Mapping[str, Entry] = read_gguf(path).tensors
        elif path.suffix in PICKLES:
            found = {n: Pickled(path, t) for n, t in read_pickle(path).items()}
        else:
            found = read_header(path)
        if twice := tensors.keys() & found.keys():
            raise FileDamaged(f"{path.name}: {min(twice)} is in another shard too")
        tensors |= found
    if not tensors:
        raise FileDamaged(f"{files[0].name}: no tensors in it")
    return Weights(tensors, files, index, stamps)


def shards(index: Path) -> Mapping[str, str]:
    """What an index says: tensor -> file beside it. Raises FileDamaged if it is malformed or names any other file."""
    data = read_json(index, JSON_LIMIT)
    places = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(place, str) for place in places.values()):
        raise FileDamaged(f"{index.name}: weight_map is not a map of tensors to files")
    suffix = PurePosixPath(index.name.removesuffix(INDEX)).suffix
    for name in sorted(set(places.values())):
        if PurePosixPath(name).name != name or "\\" in name or not name.endswith(suffix):
            raise FileDamaged(f"{index.name}: shard {json.dumps(name)[:100]} is not a plain {suffix} file beside it")
    return places


def _sharded(index: Path) -> Weights:
    places = shards(index)
    files = tuple(index.parent / name for name in sorted(set(places.values())))
    if missing := [path.name for path in files if not os.path.lexists(path)]:
        raise FileDamaged(
            f"{index.name} names {len(missing)} shards that are missing: {', '.join(missing[:9])}",
            hint="download it again",
        )
    weights = _open(files, index)
    for tensor, place in places.items():
        if tensor not in weights or weights[tensor].path.name != place:
            raise FileDamaged(f"{index.name}: {tensor[:200]} is not in {place}, where the index says")
    if unlisted := [name for name in weights if name not in places]:
        raise FileDamaged(
            f"{index.name} does not list {len(unlisted)} tensors of its shards: {', '.join(unlisted[:5])}"
        )
    return weights
