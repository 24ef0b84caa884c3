"""All or nothing: an output directory is built beside its place and moved there when complete.

A lock that dies with its process keeps two conversions to one place apart. What a killed run left is ours by its
name and its marker; the next run goes on with what is finished of it, or removes it. Nothing else is ever deleted.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lineage.checkpoint.files import FULL, read_json
from lineage.checkpoint.journal import Journal
from lineage.checkpoint.safetensors import HEADER
from lineage.errors import LineageError, ResourceError, UsageError

MARKER = ".lineage-partial"
MANIFEST = "lineage.json"
CARD = "README.md"
PASSING = (SystemExit, KeyboardInterrupt, OSError, MemoryError, ResourceError)  # what may be over the next time
Foreign = Callable[[Path], Iterable[str]]


def check_output(output: Path, source: Path, force: bool, foreign: Foreign | None = None) -> None:
    """Refuse a place that cannot or must not be written. foreign: which of its files are not ours, if it is no
    converted directory. Raises UsageError.
    """
    try:
        _check_output(output, source, force, foreign)
    except OSError as error:
        raise _explained(error, output) from error


def _check_output(output: Path, source: Path, force: bool, foreign: Foreign | None) -> None:
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} does not exist", hint="make the folder first, or choose another -o")
    real, origin = output.resolve(), source.resolve()
    if real == origin or origin in real.parents:
        raise UsageError(f"{output} lies in the source; nothing is ever written there", hint="choose another -o")
    if output.is_symlink():
        raise UsageError(f"{output} is a link; refusing to replace it", hint="name the folder itself")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        fixed = os.statvfs(output.parent).f_flag & os.ST_RDONLY
        code = errno.EROFS if fixed else errno.EACCES
        raise OSError(code, os.strerror(code), str(output.parent))
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if foreign is None and not (output / MANIFEST).is_file():
        raise UsageError(
            f"{output} exists and was not made by lineage", hint="choose another -o; --force does not touch it"
        )
    if not force:
        raise UsageError(f"{output} exists", hint="--force replaces it when the new one is complete")
    if strange := sorted((foreign or _foreign)(output)):
        raise UsageError(
            f"{output} holds {len(strange)} files that lineage did not write: {', '.join(strange[:5])}",
            hint="move them away, or choose another -o; --force does not touch them",
        )


def _foreign(output: Path) -> Iterable[str]:
    """The files in a directory that no record of ours in it accounts for."""
    try:
        manifest = read_json(output / MANIFEST)
        kept = (f"{name}{end}" for name in manifest["source"]["files"] for end in ("", HEADER))
        ours = {MANIFEST, CARD, *manifest["files"], *(f"source/{name}" for name in kept)}
    except (LineageError, LookupError, TypeError):
        ours = set()
    every = (path for path in output.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(output).as_posix() for path in every} - ours


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
def staged(
    output: Path, check: Callable[[], None], journal: Journal | None = None, sync: bool = True
) -> Iterator[Path]:
    """A directory to fill; on a clean exit it becomes `output`, on any other it vanishes. But where what ended it may
    be over the next time, the files that the journal calls finished wait for a run that goes on, if they are worth it.

    check: `check_output`, asked again at either end, since other processes do not wait. sync: wait until all lies on
    the disk, so that a loss of power changes nothing. Raises what it raises,
    UsageError if another process is at work there, ResourceError if the disk fills.
    """
    stem = os.fsdecode(os.fsencode(output.name)[:200])
    partial = output.parent / f".{stem}.partial"
    try:
        with _locked(output.parent / f".{stem}.lock", output):
            resumed = _clear(partial, output, journal)
            try:
                check()
                if not resumed:
                    partial.mkdir()
                    journal.begin(partial / MARKER) if journal else (partial / MARKER).touch()
                    (partial / "new").mkdir()
                yield partial / "new"
                if sync:
                    _settle(partial / "new")
                check()
                _move(partial, output)
            except BaseException as error:
                passing = isinstance(error, PASSING) and (partial / "new").is_dir()
                if journal and passing and journal.worth(partial / "new"):
                    journal.trim(partial / "new")
                    error.add_note(f"{len(journal.finished)} finished files wait in {partial} for the same command")
                    raise
                _discard(partial)
                raise
            _discard(partial)
    except OSError as error:
        explained = _explained(error, output)
        for note in getattr(error, "__notes__", ()):
            explained.add_note(note)
        raise explained from error


def _discard(partial: Path) -> None:
    with contextlib.suppress(OSError):
        _remove(partial)


def _explained(error: OSError, output: Path) -> LineageError:
    if error.errno in FULL:
        return ResourceError(f"the disk is full: {error.strerror}", hint="make room, or choose another -o")
    return UsageError(f"cannot write {output}: {error}", hint="check the permissions of its folder")


def _clear(partial: Path, output: Path, journal: Journal | None) -> bool:
    """Remove what a killed run left, once an earlier output that it had set aside is back in its place.

    Whether there is something to go on with: then that stays.
    """
    if not os.path.lexists(partial):
        return False
    if not (partial / MARKER).exists() and any(partial.iterdir()):
        raise UsageError(f"{partial} is in the way and was not made by lineage", hint="move it away")
    if (partial / "old").exists() and not os.path.lexists(output):
        os.rename(partial / "old", output)
    if journal and journal.resume(partial / MARKER, partial / "new"):
        return True
    _remove(partial)
    return False


def _remove(partial: Path) -> None:
    """The marker goes last, so that what a kill leaves of this is still known as ours."""
    for path in partial.iterdir():
        if path.name != MARKER:
            shutil.rmtree(path)
    (partial / MARKER).unlink(missing_ok=True)
    partial.rmdir()


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


def _sync(path: Path) -> None:
    """Force a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _settle(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _sync(path)


def _move(partial: Path, output: Path) -> None:
    if output.exists() and any(output.iterdir()):
        _exchange(partial / "new", output, partial / "old")
    else:
        os.rename(partial / "new", output)
    _sync(output.parent)


def _exchange(one: Path, other: Path, aside: Path) -> None:
    """Swap two directories in one step where the system can, in two where not."""
    libc = ctypes.CDLL(None, use_errno=True)
    at, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    renameat2 = getattr(libc, "renameat2", None)
    if renameat2 and renameat2(at, os.fsencode(one), at, os.fsencode(other), exchange) == 0:
        return
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except BaseException:
        os.rename(aside, other)
        raise
