"""Files as strangers left them: only regular ones are opened, and JSON is read strictly."""

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lineage.errors import FileDamaged, SourceError

CHUNK = 1 << 22  # bytes that are read at a time
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_regular(path: Path) -> BinaryIO:
    """Open to read, without ever waiting for it. Raises OSError, or FileDamaged for a FIFO or a device."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileDamaged(f"{path.name}: not a regular file")
    return open(handle, "rb")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file that is read, with nothing else done meanwhile: whatever the system refuses is the file's fault.

    Raises FileDamaged.
    """
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error


def available_memory() -> float:
    """Bytes of memory that are free to use; unlimited where the system does not tell."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024.0
    return float("inf")


def parse_json(raw: bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Strict JSON: UTF-8, no name twice in an object. Raises ValueError."""
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{json.dumps(name)[:60]} stands twice")
        found[name] = value
    return found


def read_json(path: Path, limit: int = 100_000_000) -> Any:
    """A JSON file. limit: bytes. Raises SourceError if it is not there, FileDamaged if it cannot be read or parsed."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            raw = file.read(size if size <= limit else 0)  # which takes as much memory as is asked for
        if size > limit:
            raise ValueError(f"over {limit:,} bytes")
        if raw.startswith(b"version https://git-lfs"):
            raise ValueError("a Git LFS pointer")
        return parse_json(raw)
    except FileNotFoundError:
        raise SourceError(f"no {path.name} in {path.parent}") from None
    except OSError as error:
        raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FileDamaged(f"{path.name}: not JSON as it should be ({str(error)[:100]})") from None


def read(path: Path) -> Iterator[bytes]:
    """The bytes of a file as it lies there. Raises FileDamaged."""
    with opened(path) as file:
        while piece := file.read(CHUNK):
            yield piece


def copy(path: Path, to: Path) -> None:
    """Write a file again, told apart whose fault it is: raises FileDamaged, or OSError for what cannot be written."""
    with open(to, "wb") as out:
        for piece in read(path):
            out.write(piece)


def digest_of(found: Iterable[bytes | memoryview]) -> str:
    """The sha256 of bytes that come in pieces."""
    digest = hashlib.sha256()
    for piece in found:
        digest.update(piece)
    return digest.hexdigest()
