"""Where a model comes from: a directory, a file, or a repository of the Hugging Face hub.

A hub id is pinned to a commit before anything else is fetched, and its config is fetched before its weights, so that
a model which is refused costs a kilobyte. `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and the cache are the hub
library's own and mean what they mean there.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lineage.errors import AccessError, LineageError, SourceError, UsageError

HUB_ID = re.compile(r"(?:hf://|https://huggingface\.co/)?([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?/?")
SMALL = (
    "config.json", "generation_config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "spiece.model", "sentencepiece*", "source.spm", "target.spm", "chat_template*",
    "LICENSE*", "LICENCE*", "NOTICE*", "README.md", "USE_POLICY*",
)  # fmt: skip
SMALL_LIMIT = 64 << 20  # bytes; a "small file" beyond is not one


@dataclass(frozen=True)
class Access:
    """How a hub may be asked. revision: a branch, tag or commit; offline: the cache alone."""

    revision: str | None = None
    token: str | None = None
    cache_dir: Path | None = None
    offline: bool = False


@dataclass(frozen=True)
class Source:
    """A checkpoint's files at hand. origin: as a person would write it; file: the one weights file that was named."""

    origin: str
    directory: Path
    revision: str | None = None
    file: Path | None = None
    fetch_weights: Callable[[], Any] | None = None

    @property
    def config(self) -> Path:
        return self.directory / "config.json"

    def with_weights(self) -> "Source":
        """The same source with its weights fetched."""
        if self.fetch_weights:
            self.fetch_weights()
        return replace(self, fetch_weights=None)

    def small_files(self) -> list[Path]:
        """The files that travel with the weights: config, tokenizer, licence."""
        files = sorted(path for path in self.directory.iterdir() if any(fnmatch(path.name, form) for form in SMALL))
        return [path for path in files if path.is_file() and path.stat().st_size <= SMALL_LIMIT]


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
        return Source(str(path), path)
    if path.name == "config.json":
        return Source(str(path), path.parent)
    if path.suffix not in (".safetensors", ".bin", ".pt", ".pth"):
        raise UsageError(
            f"{path} is neither a directory nor a weights file", hint="give the folder that holds config.json"
        )
    return Source(str(path), path.parent, file=path)


def _hub(repo: str, access: Access) -> Source:
    options = {"token": access.token, "cache_dir": access.cache_dir, "local_files_only": access.offline}

    def ask(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            raise _explained(error, repo, access) from error

    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    config = Path(ask(hf_hub_download, repo, "config.json", revision=access.revision, **options))
    commit = config.parent.name

    def fetch_weights() -> None:
        wanted = [*SMALL]
        if not (access.offline or constants.HF_HUB_OFFLINE):
            names = ask(HfApi(token=access.token).list_repo_files, repo, revision=commit)
            forms = (
                ("model*.safetensors", "model.safetensors.index.json"),
                ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
            )
            wanted += next((form for form in forms if any(fnmatch(name, form[0]) for name in names)), ())
            if len(wanted) == len(SMALL):
                raise SourceError(f"{repo} holds neither safetensors nor pytorch_model.bin", code="not_found")
            ask(snapshot_download, repo, revision=commit, allow_patterns=wanted, **options)

    return Source(f"hf://{repo}", config.parent, revision=commit, fetch_weights=fetch_weights)


def _explained(error: Exception, repo: str, access: Access) -> LineageError:
    from huggingface_hub import errors

    where = f"{repo}@{access.revision or 'main'}"
    if isinstance(error, errors.GatedRepoError):
        return AccessError(
            f"{repo} needs access you do not have", facts=[f"token  {'sent' if access.token else 'the stored one'}"],
            hint="ask for access on the model's page, then run again", code="gated",
        )  # fmt: skip
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{repo} has no revision {access.revision!r}", code="not_found")
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError(
            f"no repository {repo} on the hub, or it is private",
            hint="check the name; for a private one: --token",
            code="not_found",
        )
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        offline = access.offline or isinstance(error, errors.OfflineModeIsEnabled) or _offline()
        return SourceError(
            f"{where} is not in the cache, and the hub is not to be asked"
            if offline
            else f"cannot reach the hub for {where}",
            hint="with the files elsewhere: lineage convert /path/to/the/files",
            code="offline" if offline else "network",
        )
    if isinstance(error, errors.EntryNotFoundError):
        return SourceError(f"{where} has no config.json", code="not_found")
    if isinstance(error, errors.HFValidationError):
        return UsageError(f"{repo!r} is not a repository's name")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return AccessError(f"the hub refuses {repo} (HTTP {status})", hint="check the token", code="auth")
    return SourceError(
        f"cannot reach the hub for {where} ({type(error).__name__}: {str(error)[:120]})",
        hint="check the network or HF_ENDPOINT; or give a directory", code="network",
    )  # fmt: skip


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
