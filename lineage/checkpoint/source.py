"""Where a model comes from: a directory, a file, or a repository of the Hugging Face hub.

A hub id is pinned to a commit before anything else is fetched, and its config is fetched before its weights, so that
a model which is refused costs a kilobyte. `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and the cache are the hub
library's own and mean what they mean there.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from pathlib import Path

from lineage.checkpoint.gguf import SUFFIX
from lineage.checkpoint.hub import Access as Access  # what others find a source by, too
from lineage.checkpoint.hub import Fetch, Repository, is_small
from lineage.checkpoint.remote import Remote
from lineage.checkpoint.weights import MAIN, PICKLES
from lineage.errors import SourceError, UsageError
from lineage.values import Value

HUB_ID = re.compile(r"(?:hf://|https://huggingface\.co/)?([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?/?")
SMALL_LIMIT = 64 << 20  # bytes; a "small file" beyond is not one


class Source(Value):
    """A checkpoint's files at hand. origin: as a person would write it; file: the one weights file that was named.

    remote: files that are read where they are; fetch_weights: takes `Fetch`, and returns these.
    """

    origin: str
    directory: Path
    revision: str | None = None
    file: Path | None = None
    remote: Mapping[Path, Remote] = field(default_factory=dict)
    fetch_weights: Callable[[Fetch], Mapping[Path, Remote]] | None = None

    @property
    def config(self) -> Path:
        """The file that says what the model is."""
        return self.file if self.file and self.file.suffix == SUFFIX else self.directory / "config.json"

    @property
    def folder(self) -> Path:
        """Where nothing is written: the folder of the files, or the one file that needs no other."""
        return Path(self.origin) if self.config == self.file else self.directory

    def with_weights(self, how: Fetch | None = None) -> "Source":
        """The same source with its weights fetched, or what stands for them."""
        remote = self.fetch_weights(how or Fetch()) if self.fetch_weights else {}
        return replace(self, fetch_weights=None, remote=remote)

    def small_files(self) -> list[Path]:
        """The files that travel with the weights, config, tokenizer, licence; none with a file that holds these."""
        if self.config == self.file:
            return []
        files = sorted(path for path in self.directory.iterdir() if is_small(path.name))
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
    repository = Repository(repo, access).reached()
    config = repository.download("config.json")
    pinned = replace(repository, access=replace(access, revision=config.parent.name))
    return Source(
        f"hf://{repo}",
        config.parent,
        revision=config.parent.name,
        fetch_weights=partial(pinned.fetch, config.parent),
    )
