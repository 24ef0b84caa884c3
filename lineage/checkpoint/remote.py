"""Files of the hub read by ranges, in place: nothing of them is kept on the disk.

A stream is one request, read front to back, and taken up again at the byte where a connection broke. Every answer must
be of the file whose header was read: of its size, and of its tag where the hub tells one.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lineage.errors import FileDamaged, LineageError, SourceError

GAP = 1 << 16  # bytes that are sooner read and forgotten than left out by a request of their own
WAITS = (0.25, 0.5, 1, 2, 4, 8, 0)  # seconds before each further try, until one brings a byte


class Remote:
    """A file at one commit, read by any number of threads. Reading raises SourceError, AccessError, FileDamaged.

    tag: what the hub calls its content. headers: of every request. explain: what a library's error means. start: what
    stands before its data, once it was read.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], size: int, tag: str, explain: Callable[[Exception], LineageError]
    ) -> None:
        self.url, self.headers, self.size, self.tag, self.explain = url, headers, size, tag, explain
        self.name, self.start = url.rpartition("/")[2], b""
        self._own = threading.local()

    @contextlib.contextmanager
    def ahead(self, start: int, stop: int) -> Iterator[None]:
        """Meanwhile this thread reads these bytes, mostly front to back: they are asked for at once."""
        streams = self._streams
        if any(one.has(start, stop) for one in streams):
            yield
            return
        with _Stream(self, start, stop) as one:
            streams.append(one)
            try:
                yield
            finally:
                streams.remove(one)

    def into(self, view: memoryview, start: int) -> None:
        """Fill a buffer from a place in the file."""
        stop = start + len(view)
        for one in self._streams:
            if one.has(start, stop):
                one.into(view, start)
                return
        with _Stream(self, start, stop) as one:
            one.into(view, start)

    def read(self, start: int, count: int) -> bytes:
        """Some bytes, as far as there are any."""
        piece = bytearray(max(0, min(count, self.size - start)))
        self.into(memoryview(piece), start)
        return bytes(piece)

    @property
    def sha256(self) -> str | None:
        """The hub's word for it: what it calls large files is their sha256."""
        return self.tag if re.fullmatch("[0-9a-f]{64}", self.tag) else None

    @property
    def _streams(self) -> "list[_Stream]":
        return self._own.__dict__.setdefault("streams", [])


class _Stream:
    def __init__(self, file: Remote, start: int, stop: int) -> None:
        self._file, self._at, self._stop = file, start, stop
        self._answer = contextlib.ExitStack()
        self._pieces: Iterator[bytes] | None = None
        self._left = memoryview(b"")

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *error: object) -> None:
        self._answer.close()

    def has(self, start: int, stop: int) -> bool:
        """Whether these bytes are soon to come."""
        return self._at <= start <= self._at + GAP and stop <= self._stop

    def into(self, view: memoryview, start: int) -> None:
        while self._at < start:
            self._take(start - self._at)
        while view:
            piece = self._take(len(view))
            view[: len(piece)] = piece
            view = view[len(piece) :]

    def _take(self, count: int) -> memoryview:
        """At most so many of the next bytes, at least one."""
        if not self._left:
            self._left = memoryview(self._next())
        piece, self._left = self._left[:count], self._left[count:]
        self._at += len(piece)
        return piece

    def _next(self) -> bytes:
        for wait in WAITS:
            try:
                self._pieces = self._pieces or self._ask()
                if piece := next(self._pieces, b""):
                    return piece
                error: Exception = ConnectionError("the answer ended early")
            except LineageError:
                raise
            except Exception as broken:  # which of its two HTTP libraries' depends on the hub library's version
                error = broken
            self._answer.close()
            self._pieces = None
            time.sleep(wait)
        raise self._file.explain(error) from error

    def _ask(self) -> Iterator[bytes]:
        from huggingface_hub import constants, errors
        from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]

        headers = {**self._file.headers, "Range": f"bytes={self._at}-{self._stop - 1}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        try:  # a server that fails or is too busy is asked again in there; a broken line is our caller's
            request = http_stream_backoff(
                "GET", self._file.url, headers=headers, timeout=timeout, retry_on_exceptions=()
            )
            response = self._answer.enter_context(request)
            if response.status_code != 416:
                hf_raise_for_status(response)
        except errors.HfHubHTTPError as error:
            raise self._file.explain(error) from error
        self._check(response)
        return response.iter_bytes()

    def _check(self, response: Any) -> None:
        name, found = self._file.name, response.headers.get("Content-Range", "")
        if response.status_code not in (206, 416):
            raise SourceError(
                f"{name}: the server does not give a part of a file (HTTP {response.status_code} to a range)",
                hint="convert without --stream", code="network",
            )  # fmt: skip
        told = [one.headers["X-Linked-ETag"] for one in (*response.history, response) if "X-Linked-ETag" in one.headers]
        if not response.history:  # another server has tags of its own
            told += [response.headers[name] for name in ("ETag",) if not told and name in response.headers]
        wanted = f"bytes {self._at}-{self._stop - 1}/{self._file.size}"
        if found != wanted or (told and bare(told[0]) != self._file.tag):
            raise FileDamaged(
                f"{name} changed while it was read", facts=[f"asked   {wanted}, {self._file.tag[:64]}",
                f"got     {found or 'nothing'}, {bare(told[0])[:64] if told else 'no tag'}"], hint="run again",
            )  # fmt: skip


def bare(tag: str) -> str:
    """An entity tag without its quotes."""
    return tag.removeprefix("W/").strip('"')
