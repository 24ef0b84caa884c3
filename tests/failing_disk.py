"""A folder as on a disk with a bad place: what is read there fails with EIO, the rest is as it is. Linux, as root.

    python tests/failing_disk.py FOLDER MOUNT NAME PLACE

speaks the kernel's protocol of files in user space (linux/fuse.h) over /dev/fuse, so it needs no library; it ends when
MOUNT is unmounted. Plain files in one folder, to read only.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from pathlib import Path

LOOKUP, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 3, 14, 15, 17, 18, 25, 26
OPENDIR, READDIR, RELEASEDIR = 27, 28, 29
SILENT = (2, 36, 42)  # forget, interrupt and forget many have no answer
PROTOCOL = (7, 31)
DIRECT = 1  # past the system's cache: a read that fails is the one that was asked for
BAD = 4096  # bytes that cannot be read


class Disk:
    """The answers. Node 1 is the folder, the files in it follow by name."""

    def __init__(self, folder: Path, bad: str, place: int) -> None:
        self.nodes = [folder, *sorted(folder.iterdir())]
        self.bad, self.place = bad, place

    def answer(self, kind: int, node: int, body: bytes) -> bytes:
        """What a request is answered. Raises OSError."""
        if kind == INIT:
            return struct.pack("<4I2H2I2H2I24x", *PROTOCOL, 1 << 17, 0, 1, 1, 1 << 17, 1, 32, 0, 0, 0)
        if kind == LOOKUP:
            names = [path.name for path in self.nodes]
            name = os.fsdecode(body.rstrip(b"\0"))
            if name not in names[1:]:
                raise OSError(errno.ENOENT, "")
            found = names.index(name, 1) + 1
            return struct.pack("<4Q2I", found, 0, 0, 0, 0, 0) + self.attributes(found)
        if kind == GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + self.attributes(node)
        if kind in (OPEN, OPENDIR):
            return struct.pack("<Q2I", 0, DIRECT * (kind == OPEN), 0)
        if kind in (READ, READDIR):
            _, at, count = struct.unpack_from("<2QI", body)
            return self.listed(at) if kind == READDIR else self.read(node, at, count)
        if kind == STATFS:
            return struct.pack("<5Q4I24x", 1, 0, 0, 1, 0, 4096, 255, 4096, 0)
        if kind in (RELEASE, RELEASEDIR, FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "")

    def attributes(self, node: int) -> bytes:
        status = self.nodes[node - 1].stat()
        second, part = divmod(status.st_mtime_ns, 10**9)
        times = (second, second, second, part, part, part)
        return struct.pack("<6Q10I", node, status.st_size, 1, *times, status.st_mode, 1, 0, 0, 0, 4096, 0)

    def listed(self, at: int) -> bytes:
        names = [os.fsencode(path.name) for path in self.nodes[1:]]
        entries = [
            struct.pack("<2Q2I", n + 2, n + 1, len(name), stat.S_IFREG >> 12) + name + bytes(-len(name) % 8)
            for n, name in enumerate(names)
        ]
        return b"".join(entries[at:])

    def read(self, node: int, at: int, count: int) -> bytes:
        path = self.nodes[node - 1]
        if path.name == self.bad and at < self.place + BAD and at + count > self.place:
            raise OSError(errno.EIO, "")
        with path.open("rb") as file:
            file.seek(at)
            return file.read(count)


def main() -> None:
    folder, mount, bad, place = sys.argv[1:]
    disk, handle = Disk(Path(folder), bad, int(place)), os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={handle},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"failing", os.fsencode(mount), b"fuse", 0, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(handle, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.ENOENT, errno.EINTR):  # who asked has given up
                continue
            raise
        _, kind, unique, node = struct.unpack_from("<2I2Q", request)
        if kind in SILENT:
            continue
        try:
            code, body = 0, disk.answer(kind, node, request[40:])
        except OSError as error:
            code, body = -(error.errno or errno.EIO), b""
        os.write(handle, struct.pack("<IiQ", 16 + len(body), code, unique) + body)


if __name__ == "__main__":
    main()
