"""All or nothing: an output directory is built beside its place and moved there when complete.

A lock that dies with its process keeps two conversions to one place apart. What a killed run left is ours by its
name and its marker, and the next run removes it; nothing else is ever deleted.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lineage.errors import LineageError, ResourceError, UsageError

MARKER = ".lineage-partial"
MANIFEST = "lineage.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(output: Path, source: Path, force: bool) -> None:
    """Refuse a place that cannot or must not be written. Raises UsageError."""
    parent = output.parent
    if not parent.is_dir():
        raise UsageError(f"{parent} does not exist", hint="make the folder first, or choose another -o")
    real, origin = output.resolve(), source.resolve()
    if real == origin or origin in real.parents:
        raise UsageError(f"{output} lies in the source; nothing is ever written there", hint="choose another -o")
    if output.is_symlink():
        raise UsageError(f"{output} is a link; refusing to replace it", hint="name the folder itself")
    if not output.exists():
        return
    if not output.is_dir() or (any(output.iterdir()) and not (output / MANIFEST).is_file()):
        raise UsageError(
            f"{output} exists and was not made by lineage", hint="choose another -o; --force does not touch it"
        )
    if (output / MANIFEST).exists() and not force:
        raise UsageError(f"{output} exists", hint="--force replaces it when the new one is complete")


def check_space(output: Path, need: int) -> None:
    """Raises ResourceError if the disk holds less than `need` bytes."""
    free = shutil.disk_usage(output.parent).free
    if need > free:
        raise ResourceError(
            "not enough disk",
            facts=[f"need   {need:,} bytes", f"free   {free:,} bytes on {output.parent}"],
            hint="choose another -o",
        )


@contextlib.contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A directory to fill; on a clean exit it becomes `output`, on any other it vanishes.

    Raises UsageError if another process is at it, ResourceError if the disk fills.
    """
    stem = output.name[:200]
    partial = output.parent / f".{stem}.partial"
    try:
        with _locked(output.parent / f".{stem}.lock", output):
            _clear(partial)
            partial.mkdir()
            (partial / MARKER).touch()
            try:
                yield partial
                (partial / MARKER).unlink()
                _settle(partial)
                _move(partial, output)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise _explained(error, output) from error


def _explained(error: OSError, output: Path) -> LineageError:
    if error.errno in _FULL:
        return ResourceError(f"the disk is full: {error.strerror}", hint="nothing was left behind; choose another -o")
    return UsageError(f"cannot write {output}: {error.strerror or error}", hint="check the permissions of its folder")


def _clear(partial: Path) -> None:
    if not partial.exists():
        return
    if not (partial / MARKER).exists() and any(partial.iterdir()):
        raise UsageError(f"{partial} is in the way and was not made by lineage", hint="move it away")
    shutil.rmtree(partial)


@contextlib.contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UsageError(
                f"another conversion is writing {output}", hint="wait for it, or choose another -o"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break  # else its holder removed it between our two calls: take a new one
        os.close(handle)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def sync(path: Path) -> None:
    """Force a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _settle(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        sync(path)


def _move(partial: Path, output: Path) -> None:
    if output.exists() and any(output.iterdir()):
        _exchange(partial, output)
        shutil.rmtree(partial)
    else:
        os.rename(partial, output)
    sync(output.parent)


def _exchange(one: Path, other: Path) -> None:
    """Swap two directories in one step where the system can, in two where not."""
    libc = ctypes.CDLL(None, use_errno=True)
    at, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 and renameat2(at, os.fsencode(one), at, os.fsencode(other), exchange) == 0:
        return
    aside = one.with_name(one.name + ".old")
    os.rename(other, aside)
    os.rename(one, other)
    os.rename(aside, one)
