"""Specs and records as plain text, at most 80 columns where names allow."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import groupby
from typing import Any

from lineage import graph
from lineage.catalog import families
from lineage.components import Component
from lineage.conversion import Checkpoint, Conversion
from lineage.describe import Described

ASCII = str.maketrans(
    {"Δ": "d", "×": "x", "√": "sqrt ", "·": ".", "…": "...", "→": "->", "—": "-", "é": "e", "≤": "<=", "–": "-"}
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


def show(found: Described, tensors: bool) -> list[str]:
    """The facts of one model and its block."""
    model, family = found.model, families().get(found.family)
    positions = model.embed.positions
    lines = [
        *([f"{found.name}   {family.about}", ""] if family else [found.name, ""]),
        f"family      {found.family}"
        + (f", {family.year}" + (f", from {family.parent}" if family.parent else "") if family else ", not installed"),
        *([f"paper       {family.paper}"] if family else []),
        f"parameters  {graph.parameters(model):,}",
        f"layers      {len(model.blocks)}",
        f"width       {model.embed.width}",
        f"vocabulary  {model.embed.vocab:,}",
        f"context     {positions.reach:,}" if positions else "context     not limited by a table",
        "",
    ]
    for name, part in graph.children(model):
        if not name.startswith("blocks."):
            lines += _tree(name, part, "")
        if name == "embed":
            lines += _blocks(model.blocks)
    return lines + (_tensors(found) if tensors else [])


def _blocks(blocks: tuple[Component, ...]) -> list[str]:
    lines, first = [], 0
    for block, run in groupby(blocks):
        count = len(list(run))
        lines.append(f"blocks {first}…{first + count - 1}" if count > 1 else f"blocks {first}")
        lines += [line for name, part in graph.children(block) for line in _tree(name, part, "  ")]
        first += count
    return lines


def _tree(name: str, component: Component, indent: str) -> list[str]:
    own = [f for f in fields(component) if not isinstance(getattr(component, f.name), Component)]  # type: ignore[arg-type]
    facts = ", ".join(
        f"{f.name} {_value(getattr(component, f.name))}" for f in own if getattr(component, f.name) is not None
    )
    label = indent + name
    line = f"{label:<24} {type(component).__name__}" + (f" ({facts})" if facts else "")
    return [line, *(sub for key, part in graph.children(component) for sub in _tree(key, part, indent + "  "))]


def _value(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


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


def converted(done: Conversion) -> list[str]:
    """What a conversion did, before its report."""
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
        lines.append(
            f"         dropped for good (not the usual constant): {', '.join(lossy[:4])} ({len(lossy)} in all)"
        )
    return lines + [f"note     {note}" for note in checkpoint.notes]


def _operations(checkpoint: Checkpoint) -> dict[str, int]:
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
