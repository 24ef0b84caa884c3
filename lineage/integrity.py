"""Whether a converted directory is still what was written: every byte of it against its record, without the source.

Neither torch nor transformers is needed, and no network. Our files are hashed, the small files, and the source's files
as they are made again; where one is not as it was, or cannot be compared as a whole, each of its tensors.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lineage.checkpoint.files import digest_of, read
from lineage.errors import FileDamaged
from lineage.exporting import Draft, Layout, draft_of, pieces
from lineage.original import open_original
from lineage.record import digest


def damaged(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """What is not as it was recorded, each by name: spec, files, tensors."""
    problems = list(_ours(directory, manifest))
    if manifest.get("spec_sha256", digest(manifest["spec"])) != digest(manifest["spec"]):
        problems.append("the spec in the record is not the one that was written")
    try:
        draft = draft_of(directory, manifest)
    except FileDamaged as error:
        return [*problems, error.message, *error.facts]
    return [*problems, *_theirs(manifest, draft)]


def _ours(directory: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    original, _ = open_original(directory, manifest)
    whole = {path.name for path in original.weights.files}
    for name, said in manifest["files"].items():
        if not (directory / name).is_file():
            yield f"{name} is gone"
        elif said and digest_of(read(directory / name)) == said:
            whole.discard(name)
        elif said:
            yield f"{name} is not what was written"
    for name, entry in manifest["tensors"].items():
        if original.weights[name].path.name in whole and _differs(entry, original.weights.chunks(name)):
            yield f"{name} in {original.weights[name].path.name} is not what was written"


def _theirs(manifest: Mapping[str, Any], draft: Draft) -> Iterator[str]:
    source = manifest["source"]
    for name, file in draft.files.items():
        if not isinstance(file, Layout):
            continue
        said = source["files"].get(name, {}) if file.exact else {}
        if "sha256" in said and not _differs(said, pieces(draft.original, file)):
            continue
        if "sha256" in said:
            yield f"{name} of the source does not come out as it was"
        for tensor in file.names:
            if _differs(source["tensors"].get(tensor, {}), draft.original.chunks(tensor)):
                yield f"{tensor}, made again, is not the source's"


def _differs(entry: Mapping[str, Any], found: Iterable[bytes | memoryview]) -> bool:
    """Whether bytes are not those whose sha256 an entry has; one that has none tells nothing."""
    return "sha256" in entry and digest_of(found) != entry["sha256"]
