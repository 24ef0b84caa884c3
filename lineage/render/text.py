"""Specs and records as plain text, at most 80 columns where names allow."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from lineage import graph
from lineage.catalog import families
from lineage.components import Component, Model
from lineage.describe import Described
from lineage.edits import alike
from lineage.words import facts, joined, layers_text, words

if TYPE_CHECKING:
    from lineage.conversion import Checkpoint, Conversion
    from lineage.exporting import Export

ASCII = str.maketrans(
    {
        "Δ": "d",
        "×": "x",
        "√": "sqrt ",
        "·": ".",
        "…": "...",
        "→": "->",
        "—": "-",
        "é": "e",
        "≤": "<=",
        "–": "-",
        "≠": "!=",
        "−": "-",
        "↷": "~",
        "│": "|",
        "┌": ".",
        "┤": "|",
        "└": "`",
        "├": "|",
        "─": "-",
        "θ": "theta",
        "²": "^2",
        "³": "^3",
    }
)


def plain(text: str, encoding: str = "utf-8") -> str:
    """Text that is safe to print: control characters escaped, and only what the terminal's encoding has."""
    safe = "".join(ch if ch in "\n\t" or ch.isprintable() else f"\\x{ord(ch):02x}" for ch in text)
    try:
        safe.encode(encoding)
    except UnicodeEncodeError:
        safe = safe.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return safe


def bytes_text(count: float) -> str:
    """A number of bytes, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def summary(found: Described) -> dict[str, str]:
    """The facts of one model, by name; what its family is about comes first. An empty one is not known."""
    model, family = found.model, families().get(found.family)
    reach = model.embed.positions.reach if model.embed.positions else None
    parent = f", from {family.parent}" if family and family.parent else ""
    return {
        "about": family.about if family else "",
        "family": f"{found.family}, " + (f"{family.year}{parent}" if family else "not installed"),
        "paper": family.paper if family else "",
        "parameters": f"{graph.parameters(model):,}",
        "layers": f"{len(model.depth)}",
        "width": f"{model.embed.stream}",
        "vocabulary": f"{model.embed.vocab:,}",
        "context": f"{reach:,}" if reach else "not limited by a table",
    }


def show(found: Described, tensors: bool) -> list[str]:
    """The facts of one model, its drawing, and its parts."""
    from lineage.render import drawing

    told = summary(found)
    lines = [*wrapped(found.name, told.pop("about"), 7), ""]
    lines += [line for name, text in told.items() if text for line in wrapped(name, text, 12)]
    return [*lines, "", *drawing.text(found.model), "", *parts(found.model), *(_tensors(found) if tensors else [])]


def wrapped(label: str, text: str, column: int) -> list[str]:
    """A label and, from a column on, what is said of it."""
    first = f"{label:<{column}}" if len(label) < column else f"{label}   "
    return wrap(text or " ", 80, initial_indent=first, subsequent_indent=" " * column, break_long_words=False) or [
        label
    ]


def parts(component: Component, indent: str = "") -> list[str]:
    """Every part with its facts, one a line, as deep as it lies; equal layers once, defaults unsaid."""
    lines = []
    for name, part in graph.children(component):
        if not name.startswith("blocks."):
            own = [f.name for f in fields(part) if isinstance(getattr(part, f.name), Component | tuple)]  # type: ignore[arg-type]
            told = joined(facts(part, *own))
            lines += wrapped(indent + name, type(part).__name__ + (f" ({told})" if told else ""), 24)
            lines += parts(part, indent + "  ")
        elif isinstance(component, Model) and name == "blocks.0":
            kinds = alike(component.blocks)
            for kind in dict.fromkeys(kinds):
                where = [i for i, one in enumerate(kinds) if one == kind]
                lines += [indent + layers_text(where, len(kinds)), *parts(component.blocks[kind], indent + "  ")]
    return lines


def notebook(component: Component) -> dict[str, str]:
    """What a notebook shows of a component: its parts, and of a model the drawing."""
    from lineage.render import drawing

    told = {"text/plain": "\n".join([words(component), *parts(component)])}
    return told | ({"image/svg+xml": drawing.svg(component)} if isinstance(component, Model) else {})


def _tensors(found: Described) -> list[str]:
    lines = ["", "tensors"]
    shapes = graph.tensors(found.model)
    if found.checkpoint is None:
        return lines + [f"  {name:<48} {list(shape)}" for name, shape in shapes.items()]
    for step in found.checkpoint.plan.steps:
        how = "".join(f"  {type(operation).__name__}" for operation in step.operations)
        lines += [f"  {', '.join(step.sources)}{how}"]
        lines += [
            f"      {name:<48} {list(shape)}" for name, shape in zip(step.targets, step.target_shapes, strict=True)
        ]
    lines += [f"  {copy.name}  copy of {copy.of}" for copy in found.checkpoint.plan.copied]
    return lines + [f"  {drop.name}  dropped: {drop.why}" for drop in found.checkpoint.plan.dropped]


def converted(done: "Conversion") -> list[str]:
    """What a conversion did, before its report."""
    from lineage.record import cast_text  # with it comes numpy, which most commands do without

    checkpoint, manifest = done.checkpoint, done.manifest
    plan, source = checkpoint.plan, manifest["source"]
    at = f"@{source['revision'][:7]}" if source["revision"] else ""
    sizes = f"{len(plan.model.blocks)} layers, width {plan.model.embed.width}, vocab {plan.model.embed.vocab:,}"
    size = sum(entry["size"] for entry in source["files"].values())
    kinds = ", ".join(f"{n} {kind}" for kind, n in _operations(checkpoint).items()) or "names only"
    lossy = [drop["name"] for drop in manifest["plan"]["dropped"] if drop["lossy"]]
    lines = [
        f"source   {checkpoint.source.origin}{at}   ({len(source['files'])} files, {bytes_text(size)})",
        f"family   {checkpoint.dialect.spec}   {sizes}",
        f"tensors  {len(checkpoint.weights)} in file: {sum(len(step.sources) for step in plan.steps)} mapped, "
        f"{len(plan.copied)} copies, {len(plan.dropped)} dropped, 0 missing",
        f"         operations: {kinds}; {manifest['parameters']:,} parameters",
    ]
    if lossy:
        lines.append(f"         dropped for good (not to be made again): {', '.join(lossy[:4])} ({len(lossy)} in all)")
    lines += [f"numbers  {cast_text(manifest['cast'])}"] if "cast" in manifest else []
    if bytes_of := done.preview:
        told = {name: bytes_text(count) for name, count in bytes_of.items()}
        single, double = told["comparison"], bytes_text(2 * bytes_of["comparison"])
        if bytes_of["fetches"]:
            lines.append(f"fetches  {told['fetches']}, kept in the cache unless with --stream; only headers were read")
        lines.append(f"writes   {told['writes']} in {len(manifest['files'])} files; free {told['free']}")
        lines.append(f"verify   {single} of memory in single precision, {double} in double")
    return lines + [f"note     {note}" for note in checkpoint.notes]


def exported(done: "Export") -> list[str]:
    """What was exported, file by file."""
    told = {True: "the original's", False: "not the original's", None: ""}
    whole = {True: "identical to the original", False: "not the original's bytes",
             None: "as its headers say; no sha256 was recorded to compare with"}  # fmt: skip
    wide = max(len(file.name) for file in done.files)
    lines = [f"source   {done.origin}"]
    for file in done.files:
        row = f"{file.name:<{wide}}  {bytes_text(file.size):>8}  sha256 {file.sha256[:12]}…"
        lines.append(f"file     {row}  {told[file.same]}".rstrip())
    lines += [f"note     {note}" for note in done.notes]
    verdict = f"spelled as {done.family}" if done.family else whole[done.same]
    return [*lines, f"{f'exported {done.output}/' if done.output else 'checked'}   {verdict}"]


def _operations(checkpoint: "Checkpoint") -> dict[str, int]:
    names = [type(operation).__name__ for step in checkpoint.plan.steps for operation in step.operations]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def family_list(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every family with its sizes and the public spellings that are understood."""
    lines = []
    for family in found:
        lines += [
            f"{family['name']:<10} {family['year']}  {family['about']}",
            f"           sizes        {', '.join(family['sizes'])}",
            f"           model types  {', '.join(family['model_types']) or 'none'}",
        ]
    return lines


def environment(found: Mapping[str, Any]) -> list[str]:
    """Facts for a report of a fault."""
    return [f"{name:<16} {value}" for name, value in found.items()]
