"""GGUF files (llama.cpp, docs/gguf.md, versions 2 and 3): their header read strictly, their tensors told as float32.

In order, little-endian: magic, version, counts of tensors and of keys; keys with typed values; for each tensor its
name, dimensions (the fastest first), type and place; aligned, the data. Whatever a count claims, no more is read than
the file holds, and no header beyond LIMIT.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from lineage.checkpoint.encoded import Encoded
from lineage.checkpoint.files import opened
from lineage.checkpoint.safetensors import Tensor
from lineage.components import Shape
from lineage.errors import ArchitectureError, FileDamaged, UsageError
from lineage.later import np
from lineage.operations import Array
from lineage.values import Value

SUFFIX = ".gguf"
LIMIT = 64 << 20  # bytes of a header; half a million tokens with their merges take a third of it
MOST = 1 << 17  # tensors, and keys: what is parsed takes thirty times the bytes that it has in the file
SLICE = 1 << 21  # numbers decoded at a time
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
BOOL, STRING, ARRAY = 7, 8, 9
KINDS = {
    0: ("F32", 1, 4, True), 1: ("F16", 1, 2, True), 2: ("Q4_0", 32, 18, True), 3: ("Q4_1", 32, 20, False),
    6: ("Q5_0", 32, 22, True), 7: ("Q5_1", 32, 24, False), 8: ("Q8_0", 32, 34, True), 10: ("Q2_K", 256, 84, False),
    11: ("Q3_K", 256, 110, True), 12: ("Q4_K", 256, 144, False), 13: ("Q5_K", 256, 176, False),
    14: ("Q6_K", 256, 210, True), 30: ("BF16", 1, 2, True),
}  # fmt: skip
"""ggml's number of a type -> its name, numbers and bytes of a block, whether float32 holds what it says exactly: a
product of small whole numbers and a half-precision scale does, a sum of two such products is rounded once."""


class Listed(Value):
    """An array among the keys' values; what it holds is the tokenizer's concern."""

    count: int


class Header(Value):
    """What a file says before its data. keys: their bytes as they stand, key_count of them."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor | Encoded]
    version: int
    key_count: int
    keys: bytes

    def config(self) -> dict[str, Any]:
        """The keys that say what the model is, as a config.json would. Raises ArchitectureError for another thing."""
        kind, what = self.metadata.get("general.architecture"), self.metadata.get("general.type", "model")
        if what != "model" or not isinstance(kind, str):
            raise ArchitectureError(
                f"{self.path.name}: general.type is {what!r:.40}, general.architecture {kind!r:.40}"
            )
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        count = {f"{kind}.vocab_size": tokens.count} if isinstance(tokens, Listed) else {}
        return {**count, **self.metadata, "model_type": kind}

    def without_tensors(self) -> bytes:
        """A file of the same keys, tokenizer and all, and of no tensors."""
        return struct.pack("<4sIQQ", b"GGUF", self.version, 0, self.key_count) + self.keys


class _Cursor:
    """Reads on, never past the file's end or the limit."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.size = os.fstat(file.fileno()).st_size
        self.place = 0

    def take(self, count: int) -> bytes:
        end = self.place + count
        if end > LIMIT and end <= self.size:
            raise self.wrong(f"a header over {LIMIT:,} bytes")
        raw = self.file.read(count) if end <= self.size else b""
        if len(raw) != count:
            raise self.wrong(f"cut short: the header goes on beyond its {self.size:,} bytes")
        self.place = end
        return raw

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> bytes:
        return self.take(self.number("<Q"))

    def name(self) -> str:
        try:
            return self.text().decode("utf-8")
        except UnicodeDecodeError:
            raise self.wrong("a name that is not UTF-8") from None

    def wrong(self, what: str) -> FileDamaged:
        return FileDamaged(f"{self.path.name}: {what}")


def read_gguf(path: Path) -> Header:
    """The header of a file. Raises FileDamaged, ArchitectureError for types of tensors that are not decoded here, and
    UsageError if the `gguf` package is needed for them and missing."""
    with opened(path) as file:
        return _read(_Cursor(path, file))


def _read(cursor: _Cursor) -> Header:
    magic, version = cursor.take(4), cursor.number("<I")
    if magic != b"GGUF":
        pointer = magic == b"vers"
        raise cursor.wrong("a Git LFS pointer, not weights" if pointer else "not a GGUF file")
    if version not in (2, 3):
        raise cursor.wrong(f"GGUF version {version:,}; understood: 2 and 3, little-endian")
    tensor_count, key_count = cursor.number("<Q"), cursor.number("<Q")
    if max(tensor_count, key_count) > MOST:
        raise cursor.wrong(f"{tensor_count:,} tensors and {key_count:,} keys, over {MOST:,}")
    start, metadata = cursor.place, {}
    for _ in range(key_count):
        key = cursor.name()
        if key in metadata:
            raise cursor.wrong(f"{key[:100]!r} stands twice")
        metadata[key] = _value(cursor, cursor.number("<I"))
    end = cursor.place
    tensors = _tensors(cursor, tensor_count, metadata.get("general.alignment", 32))
    cursor.file.seek(start)
    return Header(cursor.path, metadata, tensors, version, key_count, cursor.file.read(end - start))


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind in SCALARS:
        value = cursor.number(SCALARS[kind])
        if kind == BOOL and value > 1:
            raise cursor.wrong(f"a truth value of {value}")
        return bool(value) if kind == BOOL else value
    if kind == STRING:
        return cursor.text().decode("utf-8", "replace")
    inner, count = (cursor.number("<I"), cursor.number("<Q")) if kind == ARRAY else (kind, 0)
    if inner in SCALARS:
        cursor.take(count * struct.calcsize(SCALARS[inner]))
    elif inner == STRING:
        for _ in range(count):
            cursor.text()
    else:
        raise cursor.wrong(f"a value of type {inner}")
    return Listed(count)


def _tensors(cursor: _Cursor, count: int, alignment: Any) -> dict[str, Tensor | Encoded]:
    if type(alignment) is not int or not 1 <= alignment <= LIMIT or alignment & (alignment - 1):
        raise cursor.wrong(f"general.alignment is {alignment!r:.40}, not a power of two")
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name, rank = cursor.name(), cursor.number("<I")
        if name in entries or not 1 <= rank <= 4:
            raise cursor.wrong(
                f"tensor {name[:100]!r} " + ("stands twice" if name in entries else f"of {rank} dimensions")
            )
        sizes = tuple(cursor.number("<Q") for _ in range(rank))
        entries[name] = sizes, cursor.number("<I"), cursor.number("<Q")
    if odd := [f"{name[:100]} is of ggml's type {kind}" for name, (_, kind, _) in entries.items() if kind not in KINDS]:
        known = ", ".join(name for name, *_ in KINDS.values())
        raise ArchitectureError(f"{cursor.path.name}: {len(odd)} tensors are stored as what is not decoded here",
                                facts=[*odd[:9], f"understood: {known}"])  # fmt: skip
    packed = next((name for name, (_, kind, _) in entries.items() if KINDS[kind][1] > 1), None)
    if packed and find_spec("gguf") is None:
        raise UsageError(f"{cursor.path.name}: {packed[:100]} is quantised, and the gguf package is not installed",
                         hint="pip install 'lineage-models[gguf]'")  # fmt: skip
    data = -(-cursor.place // alignment) * alignment
    parts = {name: _part(cursor, name, *entry, data, alignment) for name, entry in entries.items()}
    _check_coverage(cursor, parts, data, alignment)
    return {name: _told(name, parts[name], sizes[::-1], kind) for name, (sizes, kind, _) in entries.items()}


def _part(
    cursor: _Cursor, name: str, sizes: tuple[int, ...], kind: int, offset: int, data: int, alignment: int
) -> Tensor:
    """A tensor as it lies in the file: rows of bytes."""
    encoding, numbers, width, _ = KINDS[kind]
    if 0 in sizes or sizes[0] % numbers or offset % alignment:
        raise cursor.wrong(f"tensor {name[:100]!r}: {encoding} {list(sizes)} at {offset:,} does not take whole blocks")
    rows, row = math.prod(sizes[1:]), sizes[0] // numbers * width
    return Tensor(cursor.path, "U8", (rows, row), data + offset, rows * row)


def _told(name: str, part: Tensor, shape: Shape, kind: int) -> Tensor | Encoded:
    encoding, _, _, exact = KINDS[kind]
    if encoding == "F32":
        return replace(part, dtype="F32", shape=shape)
    step = max(1, SLICE // shape[-1])
    return Encoded(f"gguf {encoding}", exact, "F32", shape, {name: part}, (step,), partial(_floats, kind))


def _floats(kind: int, raw: Array) -> Array:
    """Rows of bytes -> float32."""
    if KINDS[kind][0] == "F16":
        return raw.view("<f2").astype("<f4")
    if KINDS[kind][0] == "BF16":
        return raw.view("<u2").astype("<u4") << 16
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(over="ignore", invalid="ignore"):
        return dequantize(raw, GGMLQuantizationType(kind))


def _check_coverage(cursor: _Cursor, parts: Mapping[str, Tensor], data: int, alignment: int) -> None:
    """One after the other, with no more between them than brings the next to its place."""
    if not parts:  # then nothing need be aligned
        return
    end = data
    for name, part in sorted(parts.items(), key=lambda item: item[1].start):
        if not end <= part.start < end + alignment:
            raise cursor.wrong(f"tensor {name[:100]!r} overlaps another, or leaves unused bytes before it")
        end = part.start + part.size
    if end > cursor.size:
        share = f"its tensors end at {end:,}, the file at {cursor.size:,} ({cursor.size / end:.1%})"
        raise FileDamaged(f"{cursor.path.name} is cut short", facts=[share])
    if cursor.size >= end + alignment:
        raise cursor.wrong(f"{cursor.size - end:,} bytes after the last tensor")
