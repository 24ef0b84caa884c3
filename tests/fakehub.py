"""A hub on the loopback for the real hub library to talk to: it counts what is asked, and can say no in every way."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    """asked: method, path and token of every request so far. down: the status of all answers."""

    repositories: dict[str, Repository]
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    down: int | None = None
    url: str = ""

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


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            path, token = urlsplit(self.path).path, self.headers.get("Authorization")
            hub.asked.append((self.command, path, token))
            status, headers, body = hub.answer(path, token)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

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
