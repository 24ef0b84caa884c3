"""The hub: what of a repository is fetched, what is read in place, and what its library's errors mean."""

import glob
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from lineage.checkpoint.files import FULL
from lineage.checkpoint.remote import Remote
from lineage.checkpoint.weights import INDEX, main_file, shards
from lineage.errors import AccessError, LineageError, ResourceError, SourceError, UsageError
from lineage.values import Value

SMALL = (
    "config.json", "generation_config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "spiece.model", "sentencepiece*", "source.spm", "target.spm", "chat_template*",
    "LICENSE*", "LICENCE*", "NOTICE*", "README.md", "USE_POLICY*",
)  # fmt: skip
CODE = (".py", ".pkl", ".sh", ".so")


class Access(Value):
    """How a hub may be asked. revision: a branch, tag or commit; local_files_only: the cache alone."""

    revision: str | None = None
    token: str | None = None
    cache_dir: Path | None = None
    local_files_only: bool = False


class Fetch(Value):
    """What of a hub's repository is to be fetched, if it is not in the cache.

    stream: weights are not, they are read where they are; look: nor the small files. beside: a folder that is to take
    as much as the weights do.
    """

    allow_pickle: bool = False
    stream: bool = False
    look: bool = False
    beside: Path | None = None


def is_small(name: str) -> bool:
    """Whether a file of this name travels with the weights; code never does."""
    return "/" not in name and not name.endswith(CODE) and any(fnmatch(name, form) for form in SMALL)


class Repository(Value):
    """A repository of the hub at one revision. away: why the hub cannot be asked, and the cache must do."""

    name: str
    access: Access
    away: SourceError | None = None

    def ask(self, call: Callable[..., Any], *arguments: str, **keywords: Any) -> Any:
        """Call a function of the hub's library; its errors become ours."""
        try:
            return call(self.name, *arguments, revision=self.access.revision, **keywords)
        except Exception as error:
            raise _explained(error, self.name, self.access, *arguments) from error

    def reached(self) -> "Repository":
        """The same, or away. The library would ask again and again for minutes before it says so."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        def look(repo: str, file: str, revision: str | None) -> None:
            get_hf_file_metadata(hf_hub_url(repo, file, revision=revision), token=self.access.token)

        if self.access.local_files_only:
            return replace(self, away=_offline(self.name, self.access))
        try:
            self.ask(look, "config.json")
            return self
        except SourceError as error:
            if error.code == "not_found":
                raise
            return replace(self, away=error)

    def download(self, file: str) -> Path:
        """One file, as it lies in the cache."""
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        if not self.away:
            return Path(self.ask(hf_hub_download, file, token=self.access.token, cache_dir=self.access.cache_dir))
        found = try_to_load_from_cache(self.name, file, self.access.cache_dir, self.access.revision)
        if not isinstance(found, str):
            raise self.away
        return Path(found)

    def fetch(self, cache: Path, how: Fetch) -> Mapping[Path, Remote]:
        """Bring the weights and the small files beside the config. If all weights lie there, no hub is needed."""
        from huggingface_hub import snapshot_download

        cached = set(os.listdir(cache))
        sizes = dict.fromkeys(cached, 0) if self.away else self._sizes()
        try:
            main = main_file(sizes, self.name, how.allow_pickle)
        except SourceError as error:
            raise self.away or error from None
        index = {main} if main.endswith(INDEX) else set()
        weights = {*shards(self.download(main)).values()} if index else {main}
        if self.away:
            if not weights | index <= cached:
                raise self.away
            return {}
        stream = (how.stream or how.look) and not weights <= cached
        if stream and ".bin" in main:
            raise UsageError(f"{self.name}: pickles cannot be read by parts", hint="leave out --stream and --dry-run")
        wanted = index if stream else weights | index
        wanted |= {name for name in sizes if is_small(name) and not how.look}
        if not wanted <= cached:
            exactly = [glob.escape(name) for name in wanted]
            options = {"token": self.access.token, "cache_dir": self.access.cache_dir}
            if not stream:
                _check_room(cache, sum(sizes.get(name, 0) for name in wanted - cached), how.beside)
            self.ask(snapshot_download, allow_patterns=exactly, **options)
        if not stream:
            return {}
        with ThreadPoolExecutor(8) as pool:
            return dict(zip((cache / name for name in weights), pool.map(self._remote, weights), strict=True))

    def _sizes(self) -> dict[str, int]:
        """The files of the repository, and how many bytes each has."""
        from huggingface_hub import HfApi

        def listed(repo: str, revision: str) -> Iterable[object]:
            return list(HfApi(token=self.access.token).list_repo_tree(repo, revision=revision, recursive=True))

        return {one.path: one.size for one in self.ask(listed) if hasattr(one, "size")}

    def _remote(self, name: str) -> Remote:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        def look(repo: str, file: str, revision: str) -> Remote:
            url = hf_hub_url(repo, file, revision=revision)
            said = get_hf_file_metadata(url, token=self.access.token)
            if said.size is None or not said.etag:
                raise ValueError(f"size and tag of {file} are not told")
            headers = build_hf_headers(token=self.access.token)
            return Remote(url, headers, said.size, said.etag, partial(_explained, repo=repo, access=self.access))

        return self.ask(look, name)


def _check_room(cache: Path, need: int, beside: Path | None) -> None:
    """Whether there is room for what is to be fetched, and for as much again beside it. Raises ResourceError."""
    free = shutil.disk_usage(cache).free
    shared = beside is not None and cache.stat().st_dev == beside.stat().st_dev
    if need * (1 + shared) <= free:
        return
    room = beside is not None and need <= shutil.disk_usage(beside).free
    facts = [f"need   {need:,} bytes to fetch" + ", and about as many to write on the same disk" * shared]
    raise ResourceError(
        "not enough disk", facts=[*facts, f"free   {free:,} bytes on {cache}"],
        hint="choose another --cache-dir or -o" + f"; --stream keeps no source: {need:,} bytes" * room,
    )  # fmt: skip


def _offline(repo: str, access: Access) -> SourceError:
    return SourceError(
        f"{repo}@{access.revision or 'main'} is not in the cache, and the hub is not to be asked",
        hint="with the files elsewhere: lineage convert /path/to/the/files", code="offline",
    )  # fmt: skip


def _explained(error: Exception, repo: str, access: Access, file: str = "such file") -> LineageError:
    from huggingface_hub import errors, get_token

    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    response = getattr(cause, "response", None)
    status, where = getattr(response, "status_code", None), f"{repo}@{access.revision or 'main'}"
    if cause is None or isinstance(cause, errors.OfflineModeIsEnabled):
        return _offline(repo, access)
    if isinstance(cause, errors.GatedRepoError):
        token = "sent" if access.token or get_token() else "none"
        return AccessError(
            f"{repo} needs access you do not have", facts=[f"token  {token}"],
            hint="ask for access on the model's page, then run again", code="gated",
        )  # fmt: skip
    if isinstance(cause, errors.RevisionNotFoundError):
        return SourceError(f"{repo} has no revision {access.revision!r}")
    if _no_repository(response):
        return SourceError(
            f"no repository {repo} on the hub, and no directory of that name here",
            hint="check the name; a private repository is hidden from those it does not know: --token",
        )
    if status in (401, 403):
        return AccessError(
            f"the hub does not show {repo} (HTTP {status}): private, or another token is needed",
            hint="check the name, and the token: --token, HF_TOKEN or `hf auth login`", code="auth",
        )  # fmt: skip
    if isinstance(cause, errors.EntryNotFoundError):
        return SourceError(f"{where} has no {file}")
    if isinstance(cause, errors.HFValidationError):
        return UsageError(f"{repo!r} is not a repository's name")
    if isinstance(cause, OSError) and (cause.errno in FULL or cause.filename):
        kind = ResourceError if cause.errno in FULL else UsageError
        return kind(f"cannot write the hub's cache: {cause}", hint="--cache-dir names another")
    detail = " ".join(str(cause).split())[:160]
    return SourceError(
        f"cannot reach the hub for {where}; no file or directory of that name is here",
        facts=[f"{type(cause).__name__}: {'' if 'Bearer' in detail else detail}"],
        hint="check the network or HF_ENDPOINT; with the files elsewhere: lineage convert /path/to/the/files",
        code="network",
    )  # fmt: skip


def _no_repository(response: Any) -> bool:
    """A hub that does not say so may only be hiding a private one, which it does by 401."""
    code = response.headers.get("X-Error-Code") if response is not None else ""
    return code == "RepoNotFound" or (code is None and response.status_code == 404)
