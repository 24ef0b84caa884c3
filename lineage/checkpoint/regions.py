"""Parts of tensors in files, read and written in place: what lies together goes in one call."""

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from lineage.checkpoint.remote import Remote
from lineage.checkpoint.safetensors import BITS, Tensor
from lineage.components import Shape
from lineage.errors import FileDamaged
from lineage.later import np
from lineage.operations import Array
from lineage.segments import Region

LINE = 64  # bytes that the processor fetches at a time
MOST = 1 << 22  # bytes that are put in order at a time
Handle = int | Remote  # of an open file, or what stands for one elsewhere
PIECE = 1 << 18  # bytes of one write: Linux looks long for room for larger ones in its cache


def raw_type(dtype: str) -> Any:
    """The unsigned integers that stand for the elements of a type."""
    return np.dtype(f"<u{BITS[dtype] // 8}")


def read_region(handle: Handle, tensor: Tensor, region: Region) -> Array:
    """A part of a tensor as unsigned integers. handle: of its open file. Raises FileDamaged."""
    kind = raw_type(tensor.dtype)
    part = np.empty([s.stop - s.start for s in region], kind)
    view = part.reshape(-1).data.cast("B")
    for at, start, count in _spans(tensor.shape, region, kind.itemsize):
        read_into(handle, view[at : at + count], tensor.start + start, tensor.path)
    return part


def write_region(handle: int, tensor: Tensor, region: Region, part: Array) -> None:
    """Put a part of a tensor where it belongs. Raises OSError."""
    if not part.flags.c_contiguous and part.nbytes > MOST and len(part) > 1:  # what is put in order takes room
        first, half = region[0].start, len(part) // 2
        write_region(handle, tensor, (slice(first, first + half), *region[1:]), part[:half])
        write_region(handle, tensor, (slice(first + half, region[0].stop), *region[1:]), part[half:])
        return
    view = _contiguous(part).reshape(-1).data.cast("B")
    for at, start, count in _spans(tensor.shape, region, part.dtype.itemsize):
        write_all(handle, view[at : at + count], tensor.start + start)


def _contiguous(part: Array) -> Array:
    """The same, row by row in memory; of a turned array as much at a time as is fetched and written in one piece."""
    if part.flags.c_contiguous or part.ndim < 2:
        return np.ascontiguousarray(part)
    whole, strip = np.empty(part.shape, part.dtype), LINE // part.itemsize
    for at in range(0, part.shape[-1], strip):
        whole[..., at : at + strip] = part[..., at : at + strip]
    return whole


def _spans(shape: Shape, region: Region, width: int) -> Iterator[tuple[int, int, int]]:
    """What lies together: its byte in the part and in the tensor, and how many bytes it has."""
    cut = max((axis for axis, size in enumerate(shape) if region[axis] != slice(0, size)), default=0)
    strides = [prod(shape[axis + 1 :]) * width for axis in range(len(shape))]
    starts = np.zeros(1, np.int64)
    for axis in range(cut):
        starts = (starts[:, None] + np.arange(region[axis].start, region[axis].stop) * strides[axis]).ravel()
    if shape:
        starts = starts + region[cut].start * strides[cut]
    count = (region[cut].stop - region[cut].start) * strides[cut] if shape else width
    yield from ((place * count, start, count) for place, start in enumerate(starts.tolist()) if count)


def read_into(handle: Handle, view: memoryview, start: int, path: Path) -> None:
    """Fill a buffer from a place in an open file. Raises FileDamaged, with the file's name."""
    if not isinstance(handle, int):
        return handle.into(view, start)
    try:
        while view:
            got = os.preadv(handle, [view], start)
            if not got:
                raise FileDamaged(f"{path.name} became shorter while it was read")
            view, start = view[got:], start + got
    except OSError as error:
        raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error


def write_all(handle: int, view: memoryview | bytes, start: int) -> None:
    """Write a buffer at a place in an open file. Raises OSError."""
    view = memoryview(view)
    while view:
        done = os.pwrite(handle, view[:PIECE], start)
        view, start = view[done:], start + done
