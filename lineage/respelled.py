"""A converted model in another family's words: config by its table run backwards, tensors by its rules.

Written only if it is the same function. The proof is the reading: what is about to be written is read as any checkpoint
of that family is, and the spec that comes out must be ours, but for biases that are zero and so say nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lineage import catalog, config, graph
from lineage.checkpoint.files import read_json
from lineage.components import Model
from lineage.config import Inert, Key, Reading
from lineage.design import Diff, compare
from lineage.edits import Edit
from lineage.errors import ArchitectureError, UsageError
from lineage.exporting import Draft, Layout, as_json, laid_out, small_files
from lineage.original import Original
from lineage.plan import expected, make_plan, resolve
from lineage.record import converted_weights
from lineage.rules import Dialect

CONFIG = "config.json"


def respelled(directory: Path, manifest: Mapping[str, Any], family: str) -> Draft:
    """The export of a converted directory as a public model type, or a spec's name, spells it.

    Raises UsageError for a name that is not known, ArchitectureError with the differences if the family cannot say it.
    """
    model_type, dialect = _spelling(family)
    spec = graph.model_from_json(manifest["spec"])
    said = {name: graph.from_json(value) for name, value in manifest.get("arguments", {}).items()}
    if manifest["family"] in catalog.families():  # what its own configs never say
        said = {**catalog.defaults(catalog.families()[manifest["family"]]), **said}
    weights = converted_weights(directory, manifest)
    small = small_files(directory, manifest)
    before = read_json(small[CONFIG]) if CONFIG in small else {}
    names = (str(directory), model_type)
    settings, reading, model = _read_back(model_type, dialect, said, before, names)
    found = compare(spec, model, names)
    if derived := {name.replace(" ", "_"): size for name, (size, _) in found.sizes.items()}:  # of a width, say
        settings, reading, model = _read_back(model_type, dialect, said | derived, before, names)
        found = compare(spec, model, names)
    _check_same(found)
    original = Original(weights, expected(dialect, model, dialect.prefixes[0]))
    fit = [reference.name for reference in dialect.references if reference.fits(model)]
    settings["architectures"] = fit[:1]
    resolved = resolve(dialect, reading.arguments, original, lambda one, other: False, named=fit[:1])
    if make_plan(dialect, resolved, original).model != model:
        raise ArchitectureError(
            f"{model_type} cannot say what {directory} is: its files would be read as another model"
        )
    files: dict[str, Path | bytes | Layout] = {n: path for n, path in small.items() if not n.endswith(".index.json")}
    files |= {CONFIG: as_json(settings), **laid_out(original, len(manifest["source"]["weights"]))}
    return Draft(original, files, _notes(model_type, spec, model, before))


def _spelling(family: str) -> tuple[str, Dialect]:
    """A public model type by its name, or the one that spells a spec of this name."""
    known = catalog.dialects()
    found = [family] if family in known else [kind for kind, dialect in known.items() if dialect.spec == family]
    if len(found) > 1:
        raise UsageError(f"several model types spell {family}", hint=f"name one of {', '.join(found)}")
    if not found:
        raise catalog.unknown(family, {**catalog.families(), **known})
    return found[0], known[found[0]]


def _read_back(
    model_type: str, dialect: Dialect, said: Mapping[str, Any], before: Mapping[str, Any], names: tuple[str, str]
) -> tuple[dict[str, Any], Reading, Model]:
    """The config that says these arguments; what it says when it is read; the model that it is then of.

    before: the source's config. What it holds beside them, and this family knows too, is kept.
    """
    family = catalog.families()[dialect.spec]
    usual, known = config.read(dialect.config, {}).arguments, catalog.defaults(family)
    whole = {entry.argument for entry in dialect.config if isinstance(entry, Key) and entry.wrong(None)}
    given = {n: value for n, value in said.items() if n in known and not (value is None and n in whole)}
    inert = [entry for entry in dialect.config if isinstance(entry, Inert) and entry.key in before]
    kept = {e.key: before[e.key] for e in inert if e.key != "auto_map" and not e.wrong(before[e.key])}
    try:
        settings = {**kept, **config.write(dialect.config, {**usual, **given}), "model_type": model_type}
        reading = config.read(dialect.config, settings)
        told = {find.argument: bool(said.get(find.argument, find.usual)) for find in dialect.finds}
        told |= {name: said[name] for one in dialect.references for name in one.decides if name in said}
        model = config.build(dialect.config, family.function, {**dialect.fixed, **reading.arguments, **told})
    except ArchitectureError as error:
        raise ArchitectureError(
            f"{names[1]} cannot say what {names[0]} is: {error.message}", facts=error.facts
        ) from error
    return settings, reading, model


def added(spec: Model, model: Model) -> list[str]:
    """Tensors that a model has and the spec that it is to equal has not."""
    return sorted(graph.tensors(model).keys() - graph.tensors(spec).keys())


def void(edit: Edit) -> bool:
    """Whether what an edit changes moves no result: another writing of the same, or a bias, to be zero, that comes in.

    A bias is added to a linear map or a norm and nothing else is done with it; zero is what leaves every sum as it is.
    """
    bias = edit.names[-1].endswith("bias") and (edit.before, edit.after) == (False, True)
    return edit.state == "same" or (edit.phase == "changed" and bias)


def _check_same(found: Diff) -> None:
    """Raise ArchitectureError, with the differences, unless two specs are one function."""
    edits = [edit for edit in found.script if not void(edit)]
    strange = [name for name in added(found.before, found.after) if not name.endswith("bias")]
    strange += sorted(graph.tensors(found.before).keys() - graph.tensors(found.after).keys())
    if not edits and not strange:
        return
    rows = [row for row in found.design if not all(map(void, row.edits))]
    facts = [f"{row.aspect:<16} {row.before} → {row.after}" for row in rows]
    facts += [f"{name:<16} {before:,} → {after:,}" for name, (before, after) in found.sizes.items()]
    raise ArchitectureError(
        f"{found.names[1]} cannot say what {found.names[0]} is",
        facts=facts or strange[:20],
        hint="--as writes what is the same function, and nothing else",
        context={"differences": facts},
    )


def _notes(model_type: str, spec: Model, model: Model, before: Mapping[str, Any]) -> tuple[str, ...]:
    kind, lacking = (
        before.get("model_type"),
        "the source had no config.json: lengths and ids of tokens are the class's own",
    )
    notes = [f"written as {model_type} in place of {kind}" if kind else f"written as {model_type}; {lacking}"]
    if new := added(spec, model):
        notes.append(
            f"{len(new)} biases of zeros were added, which {model_type} has and this model has not: {new[0]} …"
        )
    return tuple(notes)
