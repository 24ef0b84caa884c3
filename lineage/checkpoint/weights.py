"""The tensors of a checkpoint, whatever files they lie in: headers first, bytes on demand.

`Weights` is a header (`weights[name]` has dtype and shape) with two ways to the bytes: `chunks`, a few MB at a time,
and `array`, one whole tensor as unsigned integers of its width, so that every type passes through unchanged.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lineage.checkpoint.pickles import DTYPES, read_pickle
from lineage.checkpoint.safetensors import BITS, Tensor, read_header
from lineage.errors import FileDamaged, SourceError, UsageError
from lineage.operations import Array

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 23
FORMS: tuple[tuple[str, Literal["safetensors", "pickle"]], ...] = (
    ("model.safetensors", "safetensors"),
    ("pytorch_model.bin", "pickle"),
)


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


class Weights(Mapping[str, Tensor | Pickled]):
    """The tensors of one checkpoint. files: those that hold them; index: the file that lists them, if there is one."""

    def __init__(
        self, tensors: Mapping[str, Tensor | Pickled], files: tuple[Path, ...], index: Path | None = None
    ) -> None:
        self._tensors = tensors
        self.files = files
        self.index = index

    def __getitem__(self, name: str) -> Tensor | Pickled:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, at most CHUNK at a time. Raises FileDamaged if the file has become shorter."""
        entry = self[name]
        if isinstance(entry, Pickled):
            data = memoryview(_raw(entry).data).cast("B") if entry.size else memoryview(b"")
            yield from (bytes(data[at : at + CHUNK]) for at in range(0, entry.size, CHUNK))
            return
        with open(entry.path, "rb", buffering=0) as file:
            done = 0
            while done < entry.size:
                piece = os.pread(file.fileno(), min(CHUNK, entry.size - done), entry.start + done)
                if not piece:
                    raise FileDamaged(f"{entry.path.name} became shorter while it was read")
                done += len(piece)
                yield piece

    def array(self, name: str) -> Array:
        """A whole tensor as unsigned integers of its width, in its shape."""
        entry = self[name]
        width = BITS[entry.dtype] // 8
        flat = np.frombuffer(b"".join(self.chunks(name)), dtype=f"<u{width}")
        return flat.reshape(entry.shape)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors have the same type, shape and bytes."""
        a, b = self[one], self[other]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return all(x == y for x, y in zip(self.chunks(one), self.chunks(other), strict=True))


def _raw(entry: Pickled) -> Array:
    import torch

    width = BITS[entry.dtype] // 8
    flat = entry.tensor.detach().contiguous().reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]).numpy()


def open_weights(directory: Path, allow_pickle: bool = False, file: Path | None = None) -> Weights:
    """The checkpoint in a directory: safetensors before pickles, a single file before shards.

    file: this one alone. Raises SourceError if there is none, UsageError if there are only pickles and they are not
    allowed, FileDamaged if a file or the index is.
    """
    if file is not None:
        return _open((file,), "pickle" if file.suffix in (".bin", ".pt", ".pth") else "safetensors", allow_pickle)
    for name, form in FORMS:
        single, index = directory / name, directory / f"{name}.index.json"
        if single.exists() or single.is_symlink():
            return _open((single,), form, allow_pickle)
        if index.exists():
            return _sharded(directory, index, form, allow_pickle)
    raise SourceError(
        f"no weights in {directory}", facts=[f"looked for {', '.join(name for name, _ in FORMS)} and their .index.json"]
    )


def _open(files: tuple[Path, ...], form: str, allow_pickle: bool) -> Weights:
    tensors: dict[str, Tensor | Pickled] = {}
    if form == "pickle" and not allow_pickle:
        raise UsageError(
            f"{files[0].name} is a pickle, which can carry code",
            hint="--allow-pickle reads it with torch's weights-only reader; a safetensors file needs no such care",
        )
    for path in files:
        if form == "pickle":
            found: Mapping[str, Tensor | Pickled] = {n: Pickled(path, t) for n, t in read_pickle(path).items()}
        else:
            found = read_header(path)
        if twice := tensors.keys() & found.keys():
            raise FileDamaged(f"{path.name}: {min(twice)} is in another shard too")
        tensors |= found
    if not tensors:
        raise FileDamaged(f"{files[0].name}: no tensors in it")
    return Weights(tensors, files)


def _sharded(directory: Path, index: Path, form: str, allow_pickle: bool) -> Weights:
    places = _weight_map(index)
    names = sorted(set(places.values()))
    suffix = ".safetensors" if form == "safetensors" else ".bin"
    for name in names:
        plain = PurePosixPath(name)
        if plain.name != name or "\\" in name or not name.endswith(suffix):
            raise FileDamaged(f"{index.name}: shard {json.dumps(name)[:100]} is not a plain {suffix} file beside it")
        if not (directory / name).exists():
            raise FileDamaged(f"{index.name} names a shard that is missing: {name}", hint="download it again")
    weights = _open(tuple(directory / name for name in names), form, allow_pickle)
    for tensor, place in places.items():
        if tensor not in weights or weights[tensor].path.name != place:
            raise FileDamaged(f"{index.name}: {tensor[:200]} is not in {place}, where the index says")
    if unlisted := [name for name in weights if name not in places]:
        raise FileDamaged(
            f"{index.name} does not list {len(unlisted)} tensors of its shards: {', '.join(unlisted[:5])}"
        )
    return Weights(weights, weights.files, index)


def _weight_map(index: Path) -> Mapping[str, str]:
    data = read_json(index)
    places = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(place, str) for place in places.values()):
        raise FileDamaged(f"{index.name}: weight_map is not a map of tensors to files")
    return places


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def read_json(path: Path, limit: int = 200_000_000) -> Any:
    """A JSON file, read strictly. Raises FileDamaged: not there, not UTF-8, not JSON, a key twice, too large."""
    try:
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
        if len(raw) > limit:
            raise ValueError(f"over {limit:,} bytes")
        if raw.startswith(b"version https://git-lfs"):
            raise ValueError("a Git LFS pointer")
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise FileDamaged(f"{path.name}: nested too deep") from None
    except OSError as error:
        raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FileDamaged(f"{path.name}: not JSON as it should be ({str(error)[:80]})") from None
