"""The headers of safetensors files, read strictly, with the byte range of each tensor.

The `safetensors` library gives tensors, not byte ranges, and takes some files that the format forbids; converting by
ranges and refusing what is malformed needs the header itself. Format: 8 bytes of length N (little endian), N bytes of
JSON {name: {dtype, shape, data_offsets}}, then the data, without holes or overlaps.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lineage.checkpoint.files import opened, parse_json
from lineage.checkpoint.remote import Remote
from lineage.components import Shape
from lineage.errors import FileDamaged
from lineage.fields import RANK_LIMIT
from lineage.values import Value

HEADER_LIMIT = 100_000_000  # bytes; the format's own cap
JSON_LIMIT = 25_000_000  # bytes without padding, 300,000 tensors: what is longer costs gigabytes to parse
PAGE = 4096  # bytes of memory that the system handles as one
HEADER = ".header"  # after the name of a file whose header is kept without its data, or an index without its files
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class Tensor(Value):
    """Where a tensor lies. start: its first byte in the file."""

    path: Path
    dtype: str
    shape: Shape
    start: int
    size: int


def read_header(path: Path, far: Remote | None = None) -> dict[str, Tensor]:
    """The tensors of one file. far: what stands for it. Raises FileDamaged, saying what is wrong with it."""
    start, size = read_start(path, far)
    tensors = _parsed(path, start[8:].rstrip(b" "), len(start))
    _check_coverage(path, tensors, len(start), size)
    return tensors


def read_start(path: Path, far: Remote | None = None) -> tuple[bytes, int]:
    """What stands before the data, length and header as they are; and the file's size. Raises FileDamaged."""
    if far:
        if not far.start:
            first = far.read(0, 8)
            far.start = first + far.read(8, _header_length(path, far.size, first))
        return far.start, far.size
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(8)
        return first + file.read(_header_length(path, size, first)), size


def read_kept(path: Path) -> tuple[bytes, dict[str, Tensor]]:
    """The start of a file that was kept without its data, and its tensors by place. Raises FileDamaged."""
    start, size = read_start(path)
    tensors = _parsed(path, start[8:].rstrip(b" "), len(start))
    _check_coverage(path, tensors, len(start), max((t.start + t.size for t in tensors.values()), default=len(start)))
    if size != len(start):
        raise FileDamaged(f"{path.name}: {size - len(start):,} bytes after the header")
    return start, dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)))


def start_of(tensors: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str], place: int | None = None) -> bytes:
    """What stands before the data of tensors (name -> type and shape) that lie in this order.

    place: where in a page of memory the data should begin, a multiple of 8: blanks after the header see to that.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8 if place is None else (place - 8 - len(text)) % PAGE)
    return len(text).to_bytes(8, "little") + text


def _parsed(path: Path, raw: bytes, data: int) -> dict[str, Tensor]:
    if not raw.startswith(b"{"):
        raise FileDamaged(f"{path.name}: the header does not begin with an object")
    if len(raw) > JSON_LIMIT:
        raise FileDamaged(f"{path.name}: a header of {len(raw):,} bytes, over {JSON_LIMIT:,}")
    try:
        header = parse_json(raw, _no_constant)
    except ValueError as error:
        raise FileDamaged(f"{path.name}: the header is not JSON ({str(error)[:100]})") from None
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FileDamaged(f"{path.name}: __metadata__ is not a map of strings")
    return {name: _tensor(path, name, entry, data) for name, entry in header.items()}


def _header_length(path: Path, size: int, first: bytes) -> int:
    if len(first) < 8:
        raise FileDamaged(f"{path.name} is cut short: {size} bytes, and a safetensors header alone takes 8")
    if first.startswith(b"version "):
        raise FileDamaged(
            f"{path.name} is a Git LFS pointer ({size} bytes), not weights",
            hint="git lfs pull   — or —   hf download ORG/MODEL --local-dir DIR",
        )
    length = int.from_bytes(first, "little")
    if not 2 <= length <= HEADER_LIMIT:
        raise FileDamaged(f"{path.name}: not a safetensors file (a header of {length:,} bytes)")
    if length > size - 8:
        raise FileDamaged(f"{path.name} is cut short: a header of {length:,} bytes, a file of {size:,}")
    return length


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _tensor(path: Path, name: str, entry: Any, data: int) -> Tensor:
    def wrong(what: str) -> FileDamaged:
        return FileDamaged(f"{path.name}: {json.dumps(name)[:200]}: {what}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong("an entry needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f"dtype {json.dumps(dtype)[:40]} is not known")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise wrong("shape is not a list of whole numbers")
    if len(shape) > RANK_LIMIT:
        raise wrong(f"{len(shape):,} dimensions, over {RANK_LIMIT}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
        raise wrong("data_offsets are not two whole numbers")
    bits = (0 if 0 in shape else math.prod(shape)) * BITS[dtype]
    if bits != 8 * (offsets[1] - offsets[0]):
        raise wrong(f"{dtype} {json.dumps(shape)[:80]} does not take the {offsets[1] - offsets[0]:,} bytes of its span")
    return Tensor(path, dtype, tuple(shape), data + offsets[0], offsets[1] - offsets[0])


def _check_coverage(path: Path, tensors: Mapping[str, Tensor], data: int, size: int) -> None:
    end = data
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start != end:
            kind = "overlaps another" if tensor.start < end else "leaves unused bytes before it"
            raise FileDamaged(f"{path.name}: tensor {json.dumps(name)[:200]} {kind}")
        end = tensor.start + tensor.size
    if end > size:
        raise FileDamaged(
            f"{path.name} is cut short", facts=[f"header promises {end:,} bytes, file has {size:,} ({size / end:.1%})"]
        )
    if end < size:
        raise FileDamaged(f"{path.name}: {size - end:,} bytes after the last tensor")
