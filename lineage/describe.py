"""What a name or a path stands for, as a spec: for `show` and all that reads architectures without their weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lineage import catalog, config, graph
from lineage.checkpoint.files import read_json
from lineage.checkpoint.source import Access
from lineage.checkpoint.target import MANIFEST
from lineage.components import Model
from lineage.config import brief
from lineage.conversion import SCHEMA, Checkpoint, open_checkpoint, read_config
from lineage.errors import ArchitectureError, FileDamaged, UsageError
from lineage.rules import Dialect


@dataclass(frozen=True)
class Described:
    """An architecture and where it was found. checkpoint: if it was found with weights."""

    name: str
    family: str
    model: Model
    origin: str
    checkpoint: Checkpoint | None = None

    def to_dict(self) -> dict[str, Any]:
        """The facts, and the spec in its canonical form."""
        model = self.model
        return {
            "schema": "lineage.show/1",
            "name": self.name,
            "family": self.family,
            "origin": self.origin,
            "parameters": graph.parameters(model),
            "layers": len(model.blocks),
            "width": model.embed.width,
            "vocab": model.embed.vocab,
            "tensors": {name: list(shape) for name, shape in graph.tensors(model).items()},
            "spec": graph.to_json(model),
        }


def describe(what: str, access: Access, allow_pickle: bool = False) -> Described:
    """A spec's name, a converted directory, a public checkpoint or its config.json alone.

    ``spec:NAME`` and ``hf://NAME`` say which is meant where both exist. Raises the project's errors.
    """
    name = what.removeprefix("spec:")
    if name in catalog.published():
        return Described(name, catalog.published()[name][0].name, catalog.spec(name), "spec")
    path = Path(what)
    if what.startswith("spec:") or not ("/" in what or os.path.exists(path)):
        raise catalog.unknown(name, catalog.published())
    if os.path.isfile(path / MANIFEST):  # pathlib's own question raises for a name that is too long
        manifest = _manifest(path / MANIFEST)
        return Described(path.resolve().name, manifest["family"], graph.model_from_json(manifest["spec"]), "converted")
    if path.name == "config.json" and os.path.isfile(path):
        dialect, reading, _ = read_config(path)
        return Described(str(path), dialect.spec, _from_config(dialect, reading.arguments, path), "config.json")
    checkpoint = open_checkpoint(what, access, allow_pickle=allow_pickle)
    return Described(checkpoint.source.origin, checkpoint.dialect.spec, checkpoint.plan.model, "checkpoint", checkpoint)


def _manifest(path: Path) -> dict[str, Any]:
    manifest = read_json(path)
    kept = isinstance(manifest, dict) and manifest.get("schema") == SCHEMA and "spec" in manifest
    if not kept or not isinstance(manifest.get("family"), str):
        raise FileDamaged(f"{path}: not a record of schema {SCHEMA}", hint="was it written by another version?")
    return manifest


def _from_config(dialect: Dialect, arguments: Mapping[str, Any], path: Path) -> Model:
    """Without weights, the class that a config names says which heads there are."""
    named = read_json(path).get("architectures") or []
    known = [reference for reference in dialect.references if reference.name in named]
    if dialect.finds and named and not known:
        raise ArchitectureError(
            f"{path.name}: architectures names {brief(named)}, and its heads are not described",
            facts=[f"known     {', '.join(dict.fromkeys(reference.name for reference in dialect.references))}"],
        )
    parts = (known or dialect.references)[0].parts
    found = {find.argument: find.argument in parts or find.usual for find in dialect.finds}
    model = config.build(
        dialect.config, catalog.families()[dialect.spec].function, {**dialect.fixed, **arguments, **found}
    )
    if not isinstance(model, Model):
        raise UsageError(f"{path}: the spec is not a model")
    return model
