"""What of an interrupted conversion is finished: a line of JSON for each file, after one that says of what.

The first line is the key: whatever else the output hangs on (source files by size, time and inode, layout, options).
A file counts as finished if its line was written, which is after it was forced to the disk, and if its inode, size and
time are still as the line says: nobody has written to it since.
"""

import hashlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

LEAST = 1 << 28  # bytes that are worth waiting for a run that goes on; fewer are sooner written than looked after


class Journal:
    """The journal of one run. finished: file -> what was said of it. far: whether to fetch the source takes long."""

    def __init__(self, *key: Any, far: bool = False) -> None:
        self.far = far
        text = json.dumps(key, sort_keys=True, default=repr)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.finished: dict[str, dict[str, Any]] = {}
        self._path: Path | None = None
        self._lock = threading.Lock()

    def begin(self, path: Path) -> None:
        """Start a new one."""
        self._path = path
        path.write_bytes(self._line({"key": self.key}))

    def resume(self, path: Path, folder: Path) -> bool:
        """Go on with one that an interrupted run of the same kind left, if its files are as they were."""
        lines = path.read_bytes().splitlines() if path.is_file() else []
        try:
            said = [json.loads(line) for line in lines]
        except ValueError:  # cut short by a lost power supply
            return False
        if not said or said[0] != {"key": self.key} or not folder.is_dir():
            return False
        self._path = path
        kept = [one for one in said[1:] if _stamp(folder / one["file"]) == one["stamp"]]
        self.finished = {one["file"]: one["said"] for one in kept}
        self.trim(folder)
        path.write_bytes(b"".join(map(self._line, [said[0], *kept])))
        return bool(kept)

    def finish(self, path: Path, said: dict[str, Any]) -> None:
        """Note a file that lies on the disk. said: what a run that goes on shall know of it. Raises OSError."""
        with self._lock:
            if self._path:
                line = self._line({"file": path.name, "stamp": _stamp(path), "said": said})
                with open(self._path, "ab", buffering=0) as file:
                    file.write(line)
            self.finished[path.name] = said

    def worth(self, folder: Path) -> bool:
        """Whether what is finished shall wait for a run that goes on."""
        sizes = [(folder / name).stat().st_size for name in self.finished]
        return bool(sizes) and (self.far or sum(sizes) >= LEAST)

    def trim(self, folder: Path) -> None:
        """Remove what is not finished."""
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in self.finished:
                path.unlink()

    @staticmethod
    def _line(data: dict[str, Any]) -> bytes:
        return json.dumps(data).encode() + b"\n"


def _stamp(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_ino, status.st_size, status.st_mtime_ns]
