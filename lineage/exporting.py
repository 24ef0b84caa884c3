"""The way back: a converted directory in the original's files, bit for bit where the source was written so.

A file of safetensors is its header, kept beside the small files, and its tensors in the order of their places, each of
which is made again by the plan undone (`lineage.original`). Where that cannot be the original's bytes (a pickle, an
encoded tensor, a dropped one that was no constant) the same tensors are written in a file of today's form, and it is
said.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from lineage.checkpoint import target
from lineage.checkpoint.files import digest_of, read, read_json
from lineage.checkpoint.gguf import SUFFIX
from lineage.checkpoint.safetensors import BITS, HEADER, read_kept, start_of
from lineage.checkpoint.weights import INDEX
from lineage.errors import ArchitectureError, FileDamaged, UsageError
from lineage.original import Original, open_original
from lineage.record import SOURCE, cast_text, read_manifest
from lineage.values import Value

METADATA = {"format": "pt"}
FORMS = ("hf",)


class Layout(Value):
    """A file of tensors. start: what stands before the data; names: its tensors, in order. exact: as the original."""

    start: bytes
    names: tuple[str, ...]
    exact: bool = False


class Draft(Value):
    """An export in the making. files: name -> a file to copy, what is to stand in it, or tensors of the original."""

    original: Original
    files: Mapping[str, Path | bytes | Layout]
    notes: tuple[str, ...] = ()

    def size(self) -> int:
        """Bytes that it takes, but for the small files'."""
        layouts = [file for file in self.files.values() if isinstance(file, Layout)]
        return sum(len(one.start) + sum(self.original[name].size for name in one.names) for one in layouts)


class Written(Value):
    """A file of an export. same: whether it is the original's to the bit; None if the original has no such file, or
    the record does not say."""

    name: str
    size: int
    sha256: str
    same: bool | None


class Export(Value):
    """What was exported, or would be. output: None if nothing was written. family: as which it is spelled, if not as
    the source. same: whether it is the original, every file to the bit; None if the record cannot tell. notes: why not.
    """

    output: Path | None
    origin: str
    family: str | None
    files: tuple[Written, ...]
    same: bool | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The export as `--json` prints it."""
        place = None if self.output is None else str(self.output)
        return {"schema": "lineage.export/1", **asdict(self), "output": place}


def export(
    directory: str | Path,
    output: str | Path | None = None,
    *,
    to: str = "hf",
    family: str | None = None,
    check: bool = False,
    force: bool = False,
) -> Export:
    """Write a converted directory in the layout that it came from, or as another family spells the same function.

    output: else `NAME-hf`. family: a public model type or a spec's name, see `lineage.respelled`. check: only tell
    whether it is the original; nothing is written unless an output is named. force: replace an output that holds this
    same export. The output appears whole or not at all.

    Raises FileDamaged if the directory is not what was converted, ArchitectureError if the family cannot say the model.
    """
    if to not in FORMS or (check and family):
        raise UsageError(f"no form {to!r}; known: {', '.join(FORMS)}" if to not in FORMS else
                         "check is about the original's own spelling, not another family's")  # fmt: skip
    place = Path(directory)
    manifest = read_manifest(place)
    lacking = [name for name, entry in manifest["source"]["files"].items() if "sha256" not in entry]
    if check and lacking:
        raise UsageError(f"the record has no sha256 of {', '.join(lacking[:5])}", hint="convert again, with --hash")
    if family:
        from lineage.respelled import respelled

        draft = respelled(place, manifest, family)
    elif any(name.endswith(SUFFIX) for name in manifest["source"]["weights"]):
        raise ArchitectureError(
            f"{manifest['source']['origin']} is a {SUFFIX} file: no config, no safetensors, and it is not written back",
            hint="--as FAMILY writes its tensors in that family's spelling",
        )
    else:
        draft = draft_of(place, manifest)
    if check and output is None:
        return _done(None, family, manifest, _written(place, draft, manifest, None), draft.notes)
    final = Path(output) if output else Path(f"{place.resolve().name.removesuffix('-lineage')}-hf")
    made = dict.fromkeys(draft.files, "")

    def allowed() -> None:
        target.check_output(final, place, force, lambda there: _foreign(there, made))

    allowed()
    target.check_space(final, draft.size())
    with target.staged(final, allowed) as partial:
        files = _written(place, draft, manifest, partial)
        made |= {file.name: file.sha256 for file in files}
    return _done(final, family, manifest, files, draft.notes)


def _done(
    output: Path | None, family: str | None, manifest: Mapping[str, Any], files: list[Written], notes: tuple[str, ...]
) -> Export:
    said, found = manifest["source"]["files"], {file.name: file.same for file in files}
    unknown = all(found[name] or "sha256" not in said[name] for name in found.keys() & said.keys())
    same = all(found.values()) or (None if unknown and not notes else False)
    return Export(
        output, manifest["source"]["origin"], family, tuple(files), same and found.keys() == said.keys(), notes
    )


def _foreign(there: Path, made: Mapping[str, str]) -> Iterator[str]:
    """The files of a directory that are not the ones that this export writes; content counts once it is known."""
    for path in there.rglob("*"):
        name, plain = path.relative_to(there).as_posix(), path.is_file() and not path.is_symlink()
        if not plain or name not in made or (made[name] and digest_of(read(path)) != made[name]):
            yield name


def draft_of(directory: Path, manifest: Mapping[str, Any]) -> Draft:
    """The original's own layout. Raises FileDamaged if what was kept of it is not as it was."""
    source = manifest["source"]
    original, lost = open_original(directory, manifest)
    notes = [f"{name} was dropped and is no constant: it is lost" for name in lost]
    small = small_files(directory, manifest)
    files: dict[str, Path | bytes | Layout] = {**small}
    pickled = any(not name.endswith(".safetensors") for name in source["weights"])
    if encoded := source.get("encoded"):
        notes += [f"{len(encoded)} tensors are written decoded", "config.json is written without quantization_config"]
        settings = read_json(directory / SOURCE / "config.json") if "config.json" in files else {}
        files["config.json"] = as_json({k: v for k, v in settings.items() if k != "quantization_config"})
    heads = [directory / SOURCE / (name + HEADER) for name in source["weights"]]
    if cast := manifest.get("cast"):
        notes.append(f"the tensors are {cast_text(cast)}, and so they are written")
    if encoded or pickled or cast or not all(path.is_file() for path in heads):
        if not (encoded or cast):
            why = "the source is a pickle" if pickled else "the headers of its files were not kept"
            notes.append(f"{why}: the same tensors, in safetensors")
        files = {name: file for name, file in files.items() if not name.endswith(INDEX)}
        return Draft(original, files | laid_out(original, len(heads)), tuple(notes))
    files |= {path.name.removesuffix(HEADER): _kept(original, path, set(lost)) for path in heads}
    held = {name for file in files.values() if isinstance(file, Layout) for name in file.names}
    if missing := sorted(original.keys() - held):
        raise FileDamaged(f"{directory / SOURCE}: no header has {', '.join(missing[:5])}")
    files |= {name: _index(file, set(lost)) for name, file in small.items() if name.endswith(INDEX)}
    return Draft(original, files, tuple(notes))


def small_files(directory: Path, manifest: Mapping[str, Any]) -> dict[str, Path]:
    """The original's files that hold no tensors, by name. Raises FileDamaged if one is not as it was."""
    said, held = manifest["source"]["files"], manifest["source"]["weights"]
    places = {n: directory / SOURCE / n for n in said if n not in held}  # an index too, in conversions of before
    places |= {n: kept for n in places if n.endswith(INDEX) and (kept := directory / SOURCE / (n + HEADER)).is_file()}
    for name, path in places.items():
        if not path.is_file() and not name.endswith(INDEX):  # older conversions kept none
            raise FileDamaged(f"{SOURCE}/{name} is gone", code="checksum")
        if path.is_file() and (digest := said[name].get("sha256")) and digest_of(read(path)) != digest:
            raise FileDamaged(f"{SOURCE}/{name} is not what was written", code="checksum")
    return {name: path for name, path in places.items() if path.is_file()}


def as_json(data: Any) -> bytes:
    """A file of JSON as configs are written."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def _kept(original: Original, path: Path, lost: set[str]) -> Layout:
    """A file of the source by its kept header, less the tensors that are lost."""
    start, tensors = read_kept(path)
    for name, tensor in tensors.items():
        made = original.get(name)
        if name not in lost and (made is None or (made.dtype, made.shape) != (tensor.dtype, tensor.shape)):
            raise FileDamaged(f"{path.name}: {name[:200]} is not what the record says")
    held = tuple(name for name in tensors if name not in lost)
    if len(held) < len(tensors):
        metadata = json.loads(start[8:]).get("__metadata__") or {}
        start = start_of({name: (original[name].dtype, original[name].shape) for name in held}, metadata)
    return Layout(start, held, len(held) == len(tensors))


def _index(path: Path, lost: set[str]) -> Path | bytes:
    data = read_json(path)
    if not lost & data["weight_map"].keys():
        return path
    return as_json(
        {**data, "weight_map": {name: file for name, file in data["weight_map"].items() if name not in lost}}
    )


def laid_out(original: Original, count: int) -> dict[str, bytes | Layout]:
    """All tensors in at most so many files of about one size, widest types first; and the index of several."""
    names = sorted(original, key=lambda name: (-BITS[original[name].dtype], name))
    total = sum(original[name].size for name in names)
    parts: list[list[str]] = [[]]
    filled = 0
    for name in names:
        if filled >= -(-total // count) and len(parts) < count:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += original[name].size
    form = "model.safetensors" if len(parts) == 1 else "model-{:05}-of-{:05}.safetensors"
    files: dict[str, bytes | Layout] = {}
    for number, part in enumerate(parts, start=1):
        start = start_of({name: (original[name].dtype, original[name].shape) for name in part}, METADATA)
        files[form.format(number, len(parts))] = Layout(start, tuple(part))
    if len(parts) > 1:
        places = {name: file for file, one in files.items() if isinstance(one, Layout) for name in one.names}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        files["model.safetensors" + INDEX] = as_json(index)
    return files


def _written(directory: Path, draft: Draft, manifest: Mapping[str, Any], folder: Path | None) -> list[Written]:
    """Write the files, or only go through their bytes. Raises FileDamaged if one is not what it must be."""
    written = []
    for name, file in draft.files.items():
        digest, size = hashlib.sha256(), 0
        with open(folder / name, "xb", buffering=0) if folder else contextlib.nullcontext() as out:
            for piece in pieces(draft.original, file):
                digest.update(piece)
                size += len(piece)
                if out:
                    put(out, piece)
        said = manifest["source"]["files"].get(name, {}).get("sha256")
        written.append(Written(name, size, digest.hexdigest(), None if said is None else said == digest.hexdigest()))
        if isinstance(file, Layout) and file.exact and written[-1].same is False:
            from lineage.integrity import damaged

            raise FileDamaged(
                f"{name} does not come out as it was: {directory} is not what was converted",
                facts=damaged(directory, manifest)[:20], code="checksum",
            )  # fmt: skip
    return written


def pieces(original: Original, file: Path | bytes | Layout) -> Iterator[bytes | memoryview]:
    """A file's bytes, a few MB at a time."""
    if isinstance(file, Path):
        yield from read(file)
        return
    yield file.start if isinstance(file, Layout) else file
    for name in file.names if isinstance(file, Layout) else ():
        yield from original.chunks(name)


def put(file: BinaryIO, piece: bytes | memoryview) -> None:
    """Write all of a piece to a file without a buffer."""
    view = memoryview(piece)
    while view:
        view = view[file.write(view) or 0 :]
