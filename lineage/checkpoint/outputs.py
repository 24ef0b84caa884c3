"""New files while they are written: their room is taken at once, and they are forced to the disk meanwhile."""

import ctypes
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from lineage.checkpoint.files import FULL
from lineage.checkpoint.regions import write_all


class Handles:
    """New files, begun with what stands before their data, open until they are done."""

    def __init__(self, starts: Mapping[Path, bytes], sizes: Mapping[Path, int], sync: bool) -> None:
        self._starts, self._sizes, self._sync = starts, sizes, sync
        self._open: dict[Path, int] = {}
        self._lock = threading.Lock()

    def __call__(self, path: Path) -> int:
        with self._lock:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
                _allocate(self._open[path], self._sizes[path])
                write_all(self._open[path], self._starts[path], 0)
            return self._open[path]

    def done(self, path: Path) -> None:
        handle = self(path)  # a file without tensors begins here
        if self._sync:
            os.fsync(handle)
        with self._lock:
            os.close(self._open.pop(path))

    def flush(self, stop: threading.Event) -> None:
        """Keep the disk busy meanwhile. Raises OSError: the system tells a failure of the disk only once."""
        while not stop.wait(0.02):
            with self._lock:
                handles = [os.dup(handle) for handle in self._open.values()]
            try:
                for handle in handles:
                    os.fdatasync(handle)
            finally:
                for handle in handles:
                    os.close(handle)

    def __enter__(self) -> "Handles":
        return self

    def __exit__(self, *error: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _allocate(handle: int, size: int) -> None:
    """Take the room at once, where the file system can: that is told in time, and written faster. Raises OSError."""
    allocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if size and allocate and allocate(handle, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
        code = ctypes.get_errno()
        if code in FULL:
            raise OSError(code, os.strerror(code))
