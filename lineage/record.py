"""The record of a conversion, `lineage.json`: its schema, its reading, and the files that stand beside it.

What a record may hold is said once, by `schemas/model.json`; here that is obeyed, so that a damaged or hostile one is
refused before anything in it is used. Records of older versions lack what is younger, and are read all the same.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lineage.checkpoint.files import copy, read_json
from lineage.checkpoint.gguf import SUFFIX
from lineage.checkpoint.safetensors import HEADER, read_header, read_start
from lineage.checkpoint.target import MANIFEST
from lineage.checkpoint.weights import PICKLES, Weights
from lineage.errors import FileDamaged, SourceError

SCHEMA = "lineage.model/1"
SOURCE = "source"  # the folder of what the original has beside its tensors
LIMIT = 1 << 30  # bytes of a record: 300 for each of a million tensors take a third of it
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


@cache
def schema() -> dict[str, Any]:
    """The schema of a record (JSON Schema, draft 2020-12)."""
    from importlib.resources import files

    return json.loads((files("lineage") / "schemas" / "model.json").read_text(encoding="utf-8"))


def misfits(value: Any, rule: Mapping[str, Any]) -> Iterator[str]:
    """What in a value is not as a rule of the schema says. Of JSON Schema it knows what the schema uses."""
    if "$ref" in rule:
        rule = schema()["$defs"][rule["$ref"].rpartition("/")[2]]
    kinds = rule.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(
        isinstance(value, KINDS[kind]) and (kind == "boolean" or type(value) is not bool) for kind in kinds
    ):
        yield f" is not {' or '.join(kinds)}"
    elif "const" in rule and value != rule["const"]:
        yield f" is not {rule['const']}"
    elif isinstance(value, str) and "pattern" in rule and not re.search(rule["pattern"], value):
        yield f" is {json.dumps(value)[:60]}"
    elif type(value) is int and value < rule.get("minimum", value):
        yield f" is {value}"
    elif isinstance(value, list) and "items" in rule:
        for i, part in enumerate(value):
            yield from (f"[{i}]{what}" for what in misfits(part, rule["items"]))
    elif isinstance(value, dict):
        known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
        named = rule.get("propertyNames", {}).get("pattern", "")
        yield from (f".{name} is missing" for name in rule.get("required", ()) if name not in value)
        for name, part in value.items():
            if name not in known and (others is False or not re.search(named, name)):
                yield f".{name[:60]} is not known"
            elif name in known or isinstance(others, dict):
                yield from (f".{name[:60]}{what}" for what in misfits(part, known.get(name, others)))


def read_manifest(directory: Path) -> dict[str, Any]:
    """The record of a converted directory. Raises SourceError if there is none, FileDamaged if it is not as it must."""
    if not (directory / MANIFEST).is_file():
        raise SourceError(
            f"{directory} is not a converted directory: no {MANIFEST} in it", hint="lineage convert makes one"
        )
    manifest = read_json(directory / MANIFEST, LIMIT)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise FileDamaged(f"{directory / MANIFEST}: schema is not {SCHEMA}", hint="was it written by another version?")
    if problem := next(misfits(manifest, schema()), None):
        raise FileDamaged(f"{directory / MANIFEST}: the record{problem}", hint="was it edited? convert again")
    return manifest


def converted_weights(directory: Path, manifest: Mapping[str, Any]) -> Weights:
    """The tensors of a converted directory. Raises FileDamaged if they are not those of the manifest."""
    files = tuple(directory / name for name in manifest["files"] if name.endswith(".safetensors"))
    weights = Weights({name: tensor for path in files for name, tensor in read_header(path).items()}, files)
    said = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in manifest["tensors"].items()}
    found = {name: (weights[name].dtype, weights[name].shape) for name in weights}
    if said != found:
        odd = sorted({name for name, _ in said.items() ^ found.items()})
        raise FileDamaged(f"{directory}: the tensors are not those of {MANIFEST}", facts=odd[:20])
    return weights


def keep(folder: Path, weights: Weights) -> None:
    """Put beside the small files what else the original's bytes hang on: its index, and its files' headers."""
    for path in weights.files:
        if path.suffix not in (SUFFIX, *PICKLES):
            (folder / (path.name + HEADER)).write_bytes(read_start(path, weights.remote.get(path))[0])
    if weights.index:
        copy(weights.index, folder / (weights.index.name + HEADER))


def cast_text(cast: Mapping[str, Any] | None) -> str:
    """A cast in words."""
    if not cast:
        return ""
    return f"cast from {', '.join(cast['from'])} to {cast['dtype']}, {'exactly' if cast['exact'] else 'rounded'}"


def digest(data: Any) -> str:
    """The sha256 of a value as JSON with sorted names and without spaces."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
