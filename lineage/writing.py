"""What a conversion writes: the weights, the source's small files, the record, a card."""

import contextlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lineage
from lineage import catalog, graph
from lineage.checkpoint import target, writer
from lineage.checkpoint.casting import rounds
from lineage.checkpoint.files import copy
from lineage.checkpoint.gguf import SUFFIX, read_gguf
from lineage.checkpoint.journal import Journal
from lineage.checkpoint.safetensors import BITS
from lineage.checkpoint.weights import Weights
from lineage.constants import is_constant
from lineage.errors import FileDamaged, TensorMismatch
from lineage.installed import version
from lineage.plan import Dropped
from lineage.provenance import card
from lineage.record import SCHEMA, SOURCE, cast_text, digest, keep
from lineage.values import Value

if TYPE_CHECKING:
    from lineage.conversion import Checkpoint

Progress = Callable[[int, int], None]


class Options(Value):
    """How to write. dtype: of all tensors, by safetensors' name; limit: bytes of a file; None leaves the source's.

    sync: whether to wait until all lies on the disk.
    """

    dtype: str | None = None
    hashes: bool = True
    limit: int | None = None
    sync: bool = True


class Work(Value):
    """A conversion to be written."""

    checkpoint: "Checkpoint"
    options: Options

    @cached_property
    def layout(self) -> writer.Layout:
        """Where all tensors will lie."""
        return writer.lay_out(self.checkpoint.plan, self.checkpoint.weights, self.options.dtype, self.options.limit)

    @cached_property
    def journal(self) -> Journal:
        """The journal of this conversion: of another source, plan or form it would have another key."""
        stamps = sorted((str(path.resolve()), stamp) for path, stamp in self.checkpoint.weights.stamps.items())
        starts = {name: start.hex() for name, start in self.layout.starts.items()}
        key = lineage.__version__, stamps, starts, self.checkpoint.plan.to_json(), self.options.hashes
        return Journal(*key, far=bool(self.checkpoint.weights.remote))

    def needed(self) -> int:
        """Bytes that are still to be written: tensors, small files, and a little for headers and record."""
        small = sum(path.stat().st_size for path in self.checkpoint.source.small_files())
        there = sum(t.size for t in self.layout.places.values() if t.path.name in self.journal.finished)
        return self.layout.size - there + small + 1000 * len(self.checkpoint.weights)

    @property
    def cast(self) -> dict[str, Any] | None:
        """What was done to the numbers, if anything: to which type, and whether it can have changed one."""
        kinds = {self.checkpoint.weights[name].dtype for step in self.checkpoint.plan.steps for name in step.sources}
        new = self.options.dtype
        if new is None or kinds == {new}:
            return None
        return {"dtype": new, "from": sorted(kinds), "exact": not any(rounds(old, new) for old in kinds)}

    def write(self, directory: Path, progress: Progress) -> dict[str, Any]:
        """Fill a directory. Returns the record. Raises the project's errors, and OSError for what cannot be written."""
        checkpoint = self.checkpoint
        _check_copies(checkpoint)
        dropped = [_dropped(drop, checkpoint.weights) for drop in checkpoint.plan.dropped]
        (directory / SOURCE).mkdir()
        small, keys = checkpoint.source.small_files(), checkpoint.source.config
        keep(directory / SOURCE, checkpoint.weights)
        if keys.suffix == SUFFIX:
            (directory / SOURCE / keys.name).write_bytes(read_gguf(keys).without_tensors())
        elif keys not in small:
            raise FileDamaged("config.json is gone")
        for path in small:
            copy(path, directory / SOURCE / path.name)
        written = writer.write_weights(
            directory, checkpoint.weights, self.layout, self.journal, self.options.hashes, self._ticker(progress),
            self.options.sync, lambda: self._facts,
        )  # fmt: skip
        manifest = self._manifest(dropped, written)
        (directory / target.MANIFEST).write_bytes(dump(manifest))
        (directory / target.CARD).write_bytes(card(directory, manifest).encode("utf-8", "backslashreplace"))
        return manifest

    def preview(self, output: Path) -> tuple[dict[str, Any], dict[str, int]]:
        """The record that `write` would write, without hashes; and bytes to fetch, write, free, and for a comparison in
        single precision, which double precision doubles. Of what is not here nothing is fetched: what should be a
        constant is taken for one.
        """
        weights, remote = self.checkpoint.weights, self.checkpoint.weights.remote
        dropped = [_dropped(drop, weights, not remote) for drop in self.checkpoint.plan.dropped]
        manifest = self._manifest(dropped, writer.planned(self.layout, weights))
        free = shutil.disk_usage(output.parent).free
        fetches = sum(one.size for one in remote.values())
        return manifest, {
            "fetches": fetches, "writes": self.needed(), "free": free, "comparison": 8 * manifest["parameters"],
        }  # fmt: skip

    def _ticker(self, progress: Progress) -> Callable[[int], None]:
        total = writer.work(self.layout, self.checkpoint.weights, self.options.hashes)
        done, lock = 0, threading.Lock()

        def tick(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                progress(done, total)

        return tick

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What a record says that does not depend on what was written: small files, tables, the spec, the plan."""
        checkpoint, source = self.checkpoint, self.checkpoint.source
        spec = graph.to_json(checkpoint.plan.model)
        return {
            "small": writer.file_digests((*source.small_files(), *filter(None, (checkpoint.weights.index,)))),
            "versions": versions(),
            "rules": catalog.sources(checkpoint.dialect),
            "arguments": {name: graph.to_json(value) for name, value in checkpoint.resolved.arguments.items()},
            "spec": spec,
            "spec_sha256": digest(spec),
            "parameters": graph.parameters(checkpoint.plan.model),
            "plan": checkpoint.plan.to_json(),
        }

    def _manifest(self, dropped: list[dict[str, Any]], written: writer.Written) -> dict[str, Any]:
        checkpoint, source, weights = self.checkpoint, self.checkpoint.source, self.checkpoint.weights
        facts, cast = self._facts, self.cast
        told = {path: one.sha256 for path, one in weights.remote.items()}
        return {
            "schema": SCHEMA,
            "versions": facts["versions"],
            "rules": facts["rules"],
            "source": {
                "origin": source.origin if source.revision else (source.file or source.directory.resolve()).name,
                "revision": source.revision,
                "model_type": checkpoint.model_type,
                "files": facts["small"]
                | {
                    path.name: {"size": weights.stamps[path][1]}
                    | _hash(written.weights.get(path.name) or told.get(path))
                    for path in weights.files
                },
                "weights": [path.name for path in weights.files],
                "tensors": written.sources,
                "encoded": weights.encodings(written.parts),
            },
            "family": checkpoint.dialect.spec,
            **{name: facts[name] for name in ("arguments", "spec", "spec_sha256", "parameters")},
            "plan": facts["plan"] | {"dropped": dropped},
            **({"cast": cast} if cast else {}),
            "notes": [*checkpoint.notes, *filter(None, [cast_text(cast)])],
            "files": written.files,
            "tensors": written.tensors,
            "parity": None,
        }


def _hash(known: str | None) -> dict[str, Any]:
    return {"sha256": known} if known else {}


@contextlib.contextmanager
def reading(source: Path) -> Iterator[None]:
    """Raises FileDamaged where it is the source that cannot be read, and not the output that cannot be written."""
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        if path and error.filename2 is None and source in (path, path.parent):
            raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error
        raise


def dump(data: Mapping[str, Any]) -> bytes:
    """A record as it is written."""
    return json.dumps(data, indent=1, ensure_ascii=True).encode() + b"\n"  # a path need not be Unicode


def _check_copies(checkpoint: "Checkpoint") -> None:
    conflicts = [
        f"{c.name} differs from {c.of}" for c in checkpoint.plan.copied if not checkpoint.weights.same(c.name, c.of)
    ]
    if conflicts:
        raise TensorMismatch(
            "tensors that the model shares differ in the file", facts=conflicts, context={"problems": conflicts}
        )


def holds(weights: Weights, name: str, value: str) -> bool:
    """Whether a tensor of the file is exactly a constant."""
    entry = weights[name]
    plain = entry.size > 0 and BITS[entry.dtype] >= 8
    return plain and is_constant(value, weights.array(name), entry.dtype)


def _dropped(drop: Dropped, weights: Weights, look: bool = True) -> dict[str, Any]:
    entry = weights[drop.name]
    restorable = drop.value is not None and (not look or holds(weights, drop.name, drop.value))
    return {
        "name": drop.name, "dtype": entry.dtype, "shape": list(entry.shape), "why": drop.why,
        "value": drop.value if restorable else None, "lossy": not restorable,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """What this was made with."""
    found = {"lineage": lineage.__version__, "python": sys.version.split()[0]}
    for name in ("torch", "transformers", "safetensors", "huggingface-hub", "numpy", "gguf"):
        if known := version(name):
            found[name] = known
    return found
