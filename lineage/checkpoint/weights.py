"""The tensors of a checkpoint, whatever files they lie in: headers first, bytes on demand.

`Weights` is a header (`weights[name]` has dtype and shape) with two ways to the bytes: `chunks`, a few MB at a time,
and `array`, one whole tensor as unsigned integers of its width, so that every type passes through unchanged. What is
stored encoded is met here as what it stands for.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lineage.checkpoint.encoded import Encoded, present
from lineage.checkpoint.files import CHUNK, digest_of, open_regular, read_json
from lineage.checkpoint.gguf import SUFFIX, read_gguf
from lineage.checkpoint.pickles import Pickled, read_pickle
from lineage.checkpoint.regions import Handle, read_into, read_region
from lineage.checkpoint.remote import Remote
from lineage.checkpoint.safetensors import BITS, JSON_LIMIT, Tensor, read_header
from lineage.errors import FileDamaged, SourceError, UsageError
from lineage.later import np
from lineage.operations import Array
from lineage.segments import Region

INDEX = ".index.json"
MAIN = ("model.safetensors", "model.safetensors" + INDEX, "pytorch_model.bin", "pytorch_model.bin" + INDEX)
"""The file that speaks for a checkpoint, the one to prefer first."""
PICKLES = (".bin", ".pt", ".pth")
Stamp = tuple[int | str, int, int | str]


NOWHERE: Mapping[Path, Remote] = {}
_NOTHING = contextlib.nullcontext()
Stored = Tensor | Pickled
Entry = Stored | Encoded


class Weights(Mapping[str, Entry]):
    """The tensors of one checkpoint. files: those that hold them; index: the file that lists them, if there is one.

    stamps: what `_stamp` said of the files before they were read. remote: what stands for those that are not here.
    """

    def __init__(
        self,
        tensors: Mapping[str, Entry],
        files: tuple[Path, ...],
        index: Path | None = None,
        stamps: Mapping[Path, Stamp] | None = None,
        remote: Mapping[Path, Remote] | None = None,
    ) -> None:
        self._tensors = tensors
        self.files = files
        self.index = index
        self.stamps = stamps or {}
        self.remote = remote or {}
        self._alike: dict[tuple[str, str], bool] = {}

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
        return Weights(tensors, self.files, self.index, self.stamps, self.remote)

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[Handle]:
        """One of the files, to read. Raises FileDamaged."""
        if path in self.remote:
            yield self.remote[path]
            return
        try:
            file = open_regular(path)
        except OSError as error:
            raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error
        with file:
            yield file.fileno()

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, a few MB at a time. Raises FileDamaged if the file has become shorter."""
        entry = self[name]
        if not isinstance(entry, Encoded):
            yield from self._bytes(entry)
            return
        parts = tuple(entry.parts.values())
        with contextlib.ExitStack() as stack:
            for part in parts:
                stack.enter_context(self._ahead(part))
            for place in range(-(-parts[0].shape[0] // entry.steps[0])):
                rows = [self._rows(part, place * step, step) for part, step in zip(parts, entry.steps, strict=True)]
                with _held(entry, name):
                    piece = entry.decode(*rows)
                yield piece.tobytes()

    def _ahead(self, entry: Stored) -> contextlib.AbstractContextManager[None]:
        far = self.remote.get(entry.path)
        return far.ahead(entry.start, entry.start + entry.size) if far and isinstance(entry, Tensor) else _NOTHING

    def region(self, name: str, region: Region) -> Array:
        """A part of a tensor as unsigned integers of its width. Raises FileDamaged."""
        entry = self[name]
        if not isinstance(entry, Encoded):
            return self._region(entry, region)
        with _held(entry, name):
            return entry.region(region, self._region)

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
            if path not in self.remote and _stamp(path) != stamp:
                raise FileDamaged(f"{path.name} changed while it was read", hint="run again when nothing writes to it")

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors have the same type, shape and bytes."""
        a, b, pair = self[one], self[other], (one, other)
        if pair not in self._alike:
            alike = (a.dtype, a.shape) == (b.dtype, b.shape)
            self._alike[pair] = alike and digest_of(self.chunks(one)) == digest_of(self.chunks(other))
        return self._alike[pair]

    def _region(self, entry: Stored, region: Region) -> Array:
        if isinstance(entry, Pickled):
            return entry.raw[region]
        with self.opened(entry.path) as file:
            return read_region(file, entry, region)

    def _rows(self, entry: Stored, first: int, count: int) -> Array:
        """Some rows of a tensor as it is stored, as unsigned integers."""
        rows = slice(first, min(first + count, entry.shape[0]))
        return self._region(entry, (rows, *(slice(0, size) for size in entry.shape[1:])))

    def _bytes(self, entry: Stored) -> Iterator[bytes]:
        if isinstance(entry, Pickled):
            data = memoryview(entry.raw.reshape(-1).data).cast("B") if entry.size else memoryview(b"")
            yield from (bytes(data[at : at + CHUNK]) for at in range(0, entry.size, CHUNK))
            return
        with self.opened(entry.path) as file, self._ahead(entry):
            for at in range(0, entry.size, CHUNK):
                piece = bytearray(min(CHUNK, entry.size - at))
                read_into(file, memoryview(piece), entry.start + at, entry.path)
                yield bytes(piece)

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


def open_weights(
    directory: Path, allow_pickle: bool = False, file: Path | None = None, remote: Mapping[Path, Remote] | None = None
) -> Weights:
    """The checkpoint in a directory. file: this one alone. remote: files that are not there, but can be read as well.

    Raises as `main_file` does, and FileDamaged if a file or the index is.
    """
    if file is not None:
        if file.suffix in PICKLES and not allow_pickle:
            raise _not_allowed([file.name])
        return _open((file,))
    far = remote or {}
    names = [path.name for path in (*directory.iterdir(), *far)]
    main = directory / main_file(names, str(directory), allow_pickle)
    return _sharded(main, far) if main.name.endswith(INDEX) else _open((main,), far)


def _open(files: tuple[Path, ...], remote: Mapping[Path, Remote] = NOWHERE, index: Path | None = None) -> Weights:
    tensors: dict[str, Entry] = {}
    stamps = {path: stamp for path in files if (stamp := _stamp(path))}
    stamps |= {path: (one.tag, one.size, one.url) for path, one in remote.items()}
    for path in files:
        if path.suffix == SUFFIX:
            found: Mapping[str, Entry] = read_gguf(path).tensors
        elif path.suffix in PICKLES:
            found = {n: Pickled(path, t) for n, t in read_pickle(path).items()}
        else:
            found = read_header(path, remote.get(path))
        if twice := tensors.keys() & found.keys():
            raise FileDamaged(f"{path.name}: {min(twice)} is in another shard too")
        tensors |= found
    if not tensors:
        raise FileDamaged(f"{files[0].name}: no tensors in it")
    return Weights(tensors, files, index, stamps, remote)


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


def _sharded(index: Path, remote: Mapping[Path, Remote]) -> Weights:
    places = shards(index)
    files = tuple(index.parent / name for name in sorted(set(places.values())))
    if missing := [path.name for path in files if path not in remote and not os.path.lexists(path)]:
        raise FileDamaged(
            f"{index.name} names {len(missing)} shards that are missing: {', '.join(missing[:9])}",
            hint="download it again",
        )
    weights = _open(files, remote, index)
    for tensor, place in places.items():
        if tensor not in weights or weights[tensor].path.name != place:
            raise FileDamaged(f"{index.name}: {tensor[:200]} is not in {place}, where the index says")
    if unlisted := [name for name in weights if name not in places]:
        raise FileDamaged(
            f"{index.name} does not list {len(unlisted)} tensors of its shards: {', '.join(unlisted[:5])}"
        )
    return weights
