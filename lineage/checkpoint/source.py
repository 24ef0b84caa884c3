"""Where a model comes from: a directory, a file, or a repository of the Hugging Face hub.

A hub id is pinned to a commit before anything else is fetched, and its config is fetched before its weights, so that
a model which is refused costs a kilobyte. `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and the cache are the hub
library's own and mean what they mean there.
"""

import glob
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lineage.checkpoint.files import FULL
from lineage.checkpoint.gguf import SUFFIX
from lineage.checkpoint.weights import INDEX, MAIN, PICKLES, main_file, shards
from lineage.errors import AccessError, LineageError, ResourceError, SourceError, UsageError

HUB_ID = re.compile(r"(?:hf://|https://huggingface\.co/)?([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?/?")
SMALL = (
    "config.json", "generation_config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "spiece.model", "sentencepiece*", "source.spm", "target.spm", "chat_template*",
    "LICENSE*", "LICENCE*", "NOTICE*", "README.md", "USE_POLICY*",
)  # fmt: skip
CODE = (".py", ".pkl", ".sh", ".so")
SMALL_LIMIT = 64 << 20  # bytes; a "small file" beyond is not one


@dataclass(frozen=True)
class Access:
    """How a hub may be asked. revision: a branch, tag or commit; local_files_only: the cache alone."""

    revision: str | None = None
    token: str | None = None
    cache_dir: Path | None = None
    local_files_only: bool = False


@dataclass(frozen=True)
class Source:
    """A checkpoint's files at hand. origin: as a person would write it; file: the one weights file that was named."""

    origin: str
    directory: Path
    revision: str | None = None
    file: Path | None = None
    fetch_weights: Callable[[bool, bool], None] | None = None

    @property
    def config(self) -> Path:
        """The file that says what the model is."""
        return self.file if self.file and self.file.suffix == SUFFIX else self.directory / "config.json"

    @property
    def folder(self) -> Path:
        """Where nothing is written: the folder of the files, or the one file that needs no other."""
        return Path(self.origin) if self.config == self.file else self.directory

    def with_weights(self, allow_pickle: bool = False, fetch: bool = True) -> "Source":
        """The same source with its weights fetched. fetch: if not, they must be in the cache."""
        if self.fetch_weights:
            self.fetch_weights(allow_pickle, fetch)
        return replace(self, fetch_weights=None)

    def small_files(self) -> list[Path]:
        """The files that travel with the weights, config, tokenizer, licence; none with a file that holds these."""
        if self.config == self.file:
            return []
        files = sorted(path for path in self.directory.iterdir() if is_small(path.name))
        return [path for path in files if path.is_file() and path.stat().st_size <= SMALL_LIMIT]


def is_small(name: str) -> bool:
    """Whether a file of this name travels with the weights; code never does."""
    return "/" not in name and not name.endswith(CODE) and any(fnmatch(name, form) for form in SMALL)


def locate(model: str, access: Access) -> Source:
    """Find a model by what the user calls it; of a hub's, only the config is fetched yet.

    Raises UsageError, SourceError or AccessError.
    """
    path = Path(model)
    try:
        exists = path.exists()
    except OSError as error:
        raise UsageError(f"{model[:80]!r} is not a path ({error.strerror})") from None
    if exists and not model.startswith("hf://"):
        return _local(path)
    found = HUB_ID.fullmatch(model)
    if found is None or model.startswith((".", "/", "~")):
        raise SourceError(f"{model!r}: no such file or directory", hint="a hub id is ORG/NAME or ORG/NAME@REVISION")
    if found[2] and access.revision and found[2] != access.revision:
        raise UsageError(f"two revisions: {found[2]} in the name and {access.revision} as an option")
    return _hub(found[1], replace(access, revision=found[2] or access.revision))


def _local(path: Path) -> Source:
    if path.is_dir():
        return Source(str(path), path, file=whole_file(path))
    if path.name == "config.json":
        return Source(str(path), path.parent)
    if path.suffix not in (".safetensors", SUFFIX, *PICKLES):
        raise UsageError(
            f"{path} is neither a directory nor a weights file", hint="give the folder that holds config.json"
        )
    return Source(str(path), path.parent, file=path)


def whole_file(directory: Path) -> Path | None:
    """The file that is the whole checkpoint, config and all, where a folder has no weights of the usual names.

    Raises UsageError if there are several. Of a file, itself if it is such.
    """
    if not directory.is_dir():
        return directory if directory.suffix == SUFFIX else None
    names = [path.name for path in directory.iterdir()]
    found = sorted(name for name in names if name.endswith(SUFFIX))
    if set(names) & {*MAIN} or not found:
        return None
    if len(found) > 1:
        raise UsageError(f"{directory} holds {len(found)} models: {', '.join(found[:9])}", hint="name one of the files")
    return directory / found[0]


def _hub(repo: str, access: Access) -> Source:
    repository = _Repository(repo, access).reached()
    config = repository.download("config.json")
    pinned = replace(repository, access=replace(access, revision=config.parent.name))
    return Source(
        f"hf://{repo}",
        config.parent,
        revision=config.parent.name,
        fetch_weights=lambda allow_pickle, fetch: (pinned if fetch else pinned.asleep()).fetch(
            config.parent, allow_pickle
        ),
    )


@dataclass(frozen=True)
class _Repository:
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

    def reached(self) -> "_Repository":
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

    def asleep(self) -> "_Repository":
        """The same, of which nothing more is fetched."""
        why = f"the weights of {self.name} are not in the cache, and a dry run fetches nothing but the config"
        return replace(self, away=SourceError(why, hint="lineage params reads a config alone", code="offline"))

    def download(self, file: str) -> Path:
        """One file, as it lies in the cache."""
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        if not self.away:
            return Path(self.ask(hf_hub_download, file, token=self.access.token, cache_dir=self.access.cache_dir))
        found = try_to_load_from_cache(self.name, file, self.access.cache_dir, self.access.revision)
        if not isinstance(found, str):
            raise self.away
        return Path(found)

    def fetch(self, cache: Path, allow_pickle: bool) -> None:
        """Bring the weights and the small files beside the config. If all weights lie there, no hub is needed."""
        from huggingface_hub import HfApi, snapshot_download

        cached = set(os.listdir(cache))
        names = cached if self.away else set(self.ask(HfApi(token=self.access.token).list_repo_files))
        try:
            main = main_file(names, self.name, allow_pickle)
        except SourceError as error:
            raise self.away or error from None
        wanted = {main, *(shards(self.download(main)).values() if main.endswith(INDEX) else ())}
        if self.away:
            if not wanted <= cached:
                raise self.away
            return
        wanted |= {name for name in names if is_small(name)}
        if not wanted <= cached:
            exactly = [glob.escape(name) for name in wanted]
            options = {"token": self.access.token, "cache_dir": self.access.cache_dir}
            self.ask(snapshot_download, allow_patterns=exactly, **options)


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
        f"cannot reach the hub for {where}", facts=[f"{type(cause).__name__}: {'' if 'Bearer' in detail else detail}"],
        hint="check the network or HF_ENDPOINT; with the files elsewhere: lineage convert /path/to/the/files",
        code="network",
    )  # fmt: skip


def _no_repository(response: Any) -> bool:
    """A hub that does not say so may only be hiding a private one, which it does by 401."""
    code = response.headers.get("X-Error-Code") if response is not None else ""
    return code == "RepoNotFound" or (code is None and response.status_code == 404)
