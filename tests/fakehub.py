"""A hub on the loopback for the real hub library to talk to: it counts what is asked, and can say no in every way."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_key"


@dataclass
class Repository:
    """commits: hash -> its files; branches and tags: name -> hash. gated and private open to the token alone."""

    commits: dict[str, dict[str, bytes]]
    names: dict[str, str]
    gated: bool = False
    private: bool = False


@dataclass
class Hub:
    """asked: method, path and token of every request so far. down: the status of all answers.

    sent: the bytes of each file that went out. elsewhere: files are behind a redirect to another name of this server,
    which has tags of its own. wrong: what is to happen to the answer to a request for a part of a file.
    """

    repositories: dict[str, Repository]
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    down: int | None = None
    url: str = ""
    sent: Counter[str] = field(default_factory=Counter)
    elsewhere: bool = False
    wrong: "Callable[[Part], None] | None" = None

    def files(self, method: str = "GET") -> list[str]:
        """The files that were asked for, in order."""
        return [
            path.split("/resolve/")[1].split("/", 1)[1]
            for m, path, _ in self.asked
            if m == method and "/resolve/" in path
        ]

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        if self.down:
            return self.down, {}, b""
        resolve = "/resolve/" in path
        name, _, rest = path.partition("/resolve/" if resolve else "/tree/")
        name = name.removeprefix("/").removeprefix("api/models/")
        repository = self.repositories.get(name)
        if token not in (None, f"Bearer {TOKEN}"):
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b""
        if repository is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if repository.private and not token:
            return 401, {"X-Error-Message": "Invalid username or password."}, b""
        if repository.gated and not token:
            return 401, {"X-Error-Code": "GatedRepo"}, b""
        revision, _, file = rest.partition("/")
        commit = repository.names.get(unquote(revision), revision)
        if commit not in repository.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        files = repository.commits[commit]
        if not resolve:
            listed: list[dict[str, Any]] = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return 200, {"Content-Type": "application/json"}, json.dumps(listed).encode()
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        tag = hashlib.sha256(files[file]).hexdigest()
        return 200, {"ETag": f'"{tag}"', "X-Repo-Commit": commit}, files[file]


@dataclass
class Part:
    """An answer in the making. cut: bytes after which the line goes dead."""

    file: str
    first: int
    status: int
    headers: dict[str, str]
    body: bytes
    cut: int | None = None


def part(file: str, asked: str, headers: dict[str, str], body: bytes) -> Part:
    """What `Range: bytes=FIRST-LAST` is answered."""
    first, last = map(int, asked.removeprefix("bytes=").split("-"))
    if first >= len(body):
        return Part(file, first, 416, {"Content-Range": f"bytes */{len(body)}"}, b"")
    told = {"Content-Range": f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}"}
    return Part(file, first, 206, headers | told, body[first : last + 1])


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            path, token = urlsplit(self.path).path, self.headers.get("Authorization")
            hub.asked.append((self.command, path, token))
            status, headers, body = hub.answer(
                path.removeprefix("/elsewhere"), f"Bearer {TOKEN}" if path.startswith("/elsewhere") else token
            )
            asked, cut = self.headers.get("Range"), None
            file = path.split("/resolve/")[-1].partition("/")[2]
            large = status == 200 and file.endswith(".safetensors")
            if large and hub.elsewhere and not path.startswith("/elsewhere"):
                there = f"{hub.url.replace('127.0.0.1', 'localhost')}/elsewhere{path}"
                told = {"X-Linked-Size": str(len(body)), "X-Linked-ETag": headers["ETag"], "Location": there}
                status, headers, body = 302, headers | told, b""
            elif large and hub.elsewhere:
                assert not token, "a token went to another server"
                headers = {"ETag": '"another"'}
            if status == 200 and asked:
                one = part(file, asked, headers, body)
                if hub.wrong:
                    hub.wrong(one)
                status, headers, body, cut = one.status, one.headers, one.body, one.cut
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                hub.sent[file] += len(body[:cut])
                with suppress(ConnectionError):  # who asked may have been killed
                    self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

        do_GET = do_HEAD = handle_any

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
