"""What a name or a path stands for, as a spec: for `show` and all that reads architectures without their weights."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage import catalog, graph
from lineage.components import Model
from lineage.errors import ArchitectureError, FileDamaged, UsageError
from lineage.values import Value

if TYPE_CHECKING:  # loaded when a file is to be read: a name alone needs none of them
    from lineage.checkpoint.source import Access, Source
    from lineage.conversion import Checkpoint
    from lineage.rules import Dialect


class Described(Value):
    """An architecture and where it was found. checkpoint: if it was found with weights."""

    name: str
    family: str
    model: Model
    origin: str
    checkpoint: "Checkpoint | None" = None

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


def describe(what: str, access: "Access", allow_pickle: bool = False, fetch: bool = False) -> Described:
    """A spec's name, a public model type, a converted directory, a public checkpoint or its config.json alone.

    ``spec:NAME`` and ``hf://NAME`` say which is meant where both exist. Of a hub only the config is fetched, unless
    `fetch`; a folder without safetensors speaks by its config too, unless pickles are allowed. Raises the project's
    errors.
    """
    return named(what) or _from_files(what, access, allow_pickle, fetch)


def named(what: str) -> Described | None:
    """What has a name here: a spec's published size or a public model type; None for what is to be looked for.

    Raises UsageError for what can only be a name, and is none.
    """
    name = what.removeprefix("spec:")
    if name in (catalog.named() if what.startswith("spec:") else catalog.published()):
        return Described(name, catalog.named()[name][0].name, catalog.spec(name), "spec")
    if not what.startswith("spec:") and ("/" in what or os.path.exists(what)):
        return None
    if name in catalog.dialects():
        return Described(name, catalog.dialects()[name].spec, of_type(name), "the defaults of its config")
    if name in catalog.named():
        return Described(name, name, catalog.spec(name), "spec")
    raise catalog.unknown(name, [*catalog.named(), *catalog.dialects()])


def of_type(model_type: str) -> Model:
    """The model that an empty config of this public type means to the reference."""
    from lineage import config

    dialect = catalog.dialects()[model_type]
    return _from_config(dialect, config.read(dialect.config, {}).arguments, {}, model_type)


def _from_files(what: str, access: "Access", allow_pickle: bool, fetch: bool) -> Described:
    from lineage.checkpoint.files import read_json
    from lineage.checkpoint.source import locate
    from lineage.checkpoint.target import MANIFEST
    from lineage.conversion import open_checkpoint, read_config

    path = Path(what)
    if os.path.isfile(path / MANIFEST):  # pathlib's own question raises for a name that is too long
        manifest = _manifest(path / MANIFEST, read_json(path / MANIFEST))
        return Described(path.resolve().name, manifest["family"], graph.model_from_json(manifest["spec"]), "converted")
    source = locate(what, access)
    alone = path.name == "config.json" or not (fetch if source.fetch_weights else allow_pickle or _readable(source))
    if alone:
        dialect, reading, _ = read_config(source.config)
        model = _from_config(dialect, reading.arguments, read_json(source.config), source.config.name)
        return Described(source.origin, dialect.spec, model, "config.json")
    checkpoint = open_checkpoint(what, access, allow_pickle=allow_pickle)
    return Described(checkpoint.source.origin, checkpoint.dialect.spec, checkpoint.plan.model, "checkpoint", checkpoint)


def _readable(source: "Source") -> bool:
    """Whether there are weights that are no pickles."""
    from lineage.checkpoint.weights import MAIN, PICKLES

    if source.file:
        return source.file.suffix not in PICKLES
    return any((source.directory / name).is_file() for name in MAIN if ".bin" not in name)


def _manifest(path: Path, manifest: Any) -> dict[str, Any]:
    from lineage.record import SCHEMA

    kept = isinstance(manifest, dict) and manifest.get("schema") == SCHEMA and "spec" in manifest
    if not kept or not isinstance(manifest.get("family"), str):
        raise FileDamaged(f"{path}: not a record of schema {SCHEMA}", hint="was it written by another version?")
    return manifest


def _from_config(dialect: "Dialect", arguments: Mapping[str, Any], said: Mapping[str, Any], name: str) -> Model:
    """Without weights, the class that a config names says which heads there are. said: the config; name: its file's."""
    from lineage import config

    named = said.get("architectures") or []
    known = [reference for reference in dialect.references if reference.name in named]
    heads = {f.name for f in Model.declared} & {find.argument for find in dialect.finds}
    if heads and named and not known:
        raise ArchitectureError(
            f"{name}: architectures names {config.brief(named)}, and its heads are not described",
            facts=[f"known     {', '.join(dict.fromkeys(reference.name for reference in dialect.references))}"],
        )
    parts = (known or dialect.references)[0].parts
    found: dict[str, Any] = {find.argument: find.argument in parts or find.usual for find in dialect.finds}
    found |= (known or dialect.references)[0].decides
    found |= {copy.argument: False for copy in dialect.copies if copy.argument and said.get(copy.key or "") is False}
    model = config.build(
        dialect.config, catalog.families()[dialect.spec].function, {**dialect.fixed, **arguments, **found}
    )
    if not isinstance(model, Model):
        raise UsageError(f"{name}: the spec is not a model")
    return model
