"""A model drawn: as text, as Mermaid, as SVG. All three come from one list of items, read from the spec."""

import html
from collections.abc import Iterator
from textwrap import wrap
from typing import NamedTuple

from lineage import components as c
from lineage.edits import alike
from lineage.words import heads, layers_text, number, rotary, words


class Item(NamedTuple):
    """What happens to the stream.

    kind: a "part" it goes through, "cross" if it reads an encoder's result too; a branch that opens ("split") and is
    added ("sum"), in it a "fork" to a "next" branch beside it; a "group" that begins, and its "end"; an encoder is
    "done". told: in words. place: its name within its layer or its end of the model; part: what it is.
    """

    kind: str
    told: str = ""
    place: str = ""
    part: c.Component | None = None


RAILS = {"split": "  ┌─┤", "next": "  │ beside it, on the same input:", "sum": "  └─+"}
STEP, WIDE, LEFT = 34, 640, 60  # pixels from part to part, of a box, and to its left edge
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1c1f24; } .part { fill: #f4f5f7; stroke: #8a919c; }
.group { fill: none; stroke: #8a919c; stroke-dasharray: 4 3; } path { fill: none; stroke: #555c66; }
@media (prefers-color-scheme: dark) { text { fill: #e8eaee; } .part { fill: #22262d; } path { stroke: #a9b1bc; } }"""


def items(model: c.Model) -> Iterator[Item]:
    """Everything that a token's vector passes, from its table to the logits; equal layers once."""
    if model.encoder:
        yield from [Item("group", "encoder"), *items(model.encoder), Item("end"), Item("done")]
    yield from entry(model)
    kinds = alike(model.depth)
    for kind in dict.fromkeys(kinds):
        where = [i for i, one in enumerate(kinds) if one == kind]
        each = ", each" if len(where) > 1 else ""
        yield from [Item("group", layers_text(where, len(kinds)) + each), *layer(model.depth[kind]), Item("end")]
    yield from result(model)


def entry(model: c.Model) -> Iterator[Item]:
    """What makes a vector of a token."""
    embed = model.embed
    scale = f", × {number(embed.scale)}" if embed.scale else ""
    yield Item("part", f"tokens: {embed.vocab:,} vectors of {embed.width:,}{scale}", "tokens", embed)
    yield from _slots(embed, "positions", "segments", "norm", "projection")


def result(model: c.Model) -> Iterator[Item]:
    """What comes behind the last layer."""
    yield from _slots(model, "norm")
    ends = {"logits": model.head, "pooler": model.pooler, "next sentence": model.next_sentence}
    ends |= {"classifier": model.classifier}
    yield from (Item("part", f"{name}: {words(part)}", name, part) for name, part in ends.items() if part)


def _slots(owner: c.Component, *names: str, before: str = "") -> list[Item]:
    parts = ((name, getattr(owner, name)) for name in names)
    return [Item("part", words(part), before + name, part) for name, part in parts if part]


def layer(block: c.Block) -> Iterator[Item]:
    """What a block does to the stream."""
    branches = {name: getattr(block, name) for name in ("attention", "cross", "mlp") if getattr(block, name)}
    if block.parallel:
        yield from [Item("split"), *_slots(block, "norm_input"), Item("fork"), *_inside("attention", block.attention)]
        yield from [Item("next"), *_inside("mlp", block.mlp), Item("sum", "+", "mlp.sum")]
        return
    for name, branch in branches.items():
        yield from _slots(branch, "norm_input", before=f"{name}.") if branch.normed else []
        yield from [Item("split"), *_inside(name, branch), Item("sum", "+", f"{name}.sum")]
        yield from _slots(branch, "norm_sum", before=f"{name}.")


def _inside(name: str, branch: c.Residual) -> Iterator[Item]:
    yield from [] if branch.normed else _slots(branch, "norm_input", before=f"{name}.")
    crossing = isinstance(branch.body, c.Attention) and branch.body.cross
    yield Item("cross" if crossing else "part", _label(branch.body), f"{name}.body", branch.body)
    yield from _slots(branch, "norm_branch", before=f"{name}.")
    yield from [Item("part", f"× {number(branch.scale)}", f"{name}.scale")] if branch.scale else []


def _label(part: c.Component) -> str:
    if isinstance(part, c.Attention):
        name, seen = ("cross attention", "the encoder's result") if part.cross else ("attention", words(part.mask))
        turned = [rotary(part.rotary, part.head_width)] if part.rotary else []
        return f"{name}: {'; '.join([f'{heads(part)}, each {part.head_width} wide', seen, *turned])}"
    if isinstance(part, c.FeedForward | c.Experts):
        return f"MLP: {words(part)}, {part.width:,} wide"
    return f"attention: {words(part)}" if isinstance(part, c.LatentAttention) else words(part)


def text(model: c.Model) -> list[str]:
    """The drawing as lines; the rail at the left is what a branch is added to."""
    lines, rail = [""], "    "
    for kind, told, *_ in items(model):
        if kind in RAILS:
            lines.append(RAILS[kind])
            rail = "    " if kind == "sum" else "  │ "
        elif kind in ("group", "end"):
            lines += [""] * bool(lines[-1]) + [told] * bool(told)
        elif told:
            lines += wrap(told, 78, initial_indent=rail, subsequent_indent=rail + "    ")
    return lines[1:]


def mermaid(model: c.Model) -> list[str]:
    """A Mermaid flow chart."""
    lines, last, whole, fork, beside, encoded = ["flowchart TD"], "", "", "", [""], ""
    for i, (kind, told, *_) in enumerate(items(model)):
        node = f"n{i}"
        if kind in ("group", "end"):
            lines.append(f"subgraph {node}[{label(told)}]" if kind == "group" else "end")
        elif kind == "done":
            encoded, last = last, ""
        elif kind == "split":
            whole, beside = last, []
        elif kind == "fork":
            fork = last
        elif kind == "next":
            beside, last = [last], fork
        else:
            lines.append(f"{node}{'((+))' if kind == 'sum' else f'[{label(told)}]'}")
            sources = {"sum": [last, *beside, whole], "cross": [last, encoded]}.get(kind, [last])
            lines += [f"{source} --> {node}" for source in sources if source]
            last = node
    return lines


def label(text: str) -> str:
    """Words as Mermaid takes them, whatever they hold."""
    return '"' + html.escape(text, quote=False).replace('"', "#quot;").replace("\n", " ") + '"'


def svg(model: c.Model) -> str:
    """A drawing of its own, in the reader's colours, light or dark; no script, no font of its own."""
    shapes: list[str] = []
    y, top, groups = 20, 0, [0]
    box, word = '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="5"/>', '<text x="{}" y="{}">{}</text>'
    for kind, told, *_ in items(model):
        if kind == "group":
            groups.append(y)
            y += 34
            shapes.append(word.format(LEFT - 36 + 8 * len(groups), y - 16, html.escape(told)))
        elif kind == "end":
            inset, height = 8 * len(groups), y - groups[-1] - 4
            shapes.append(box.format("group", LEFT - 60 + inset, groups.pop(), WIDE + 120 - 2 * inset, height))
            y += 10
        elif kind == "split":
            top = y - 5
        elif kind == "next":
            shapes.append(word.format(LEFT + 10, y + 8, "beside it, on the same input:"))
            y += 20
        elif kind == "sum":
            shapes.append(f'<path d="M {LEFT + 20} {top} H {LEFT - 14} V {y + 8} H {LEFT + 8}"/>')
            shapes.append(word.format(LEFT + 12, y + 13, "+"))
            y += 26
        elif told:
            lines = wrap(told, 92)
            shapes.append(box.format("part", LEFT, y, WIDE, STEP - 27 + 17 * len(lines)))
            shapes += [word.format(LEFT + 10, y + 17 * i, html.escape(line)) for i, line in enumerate(lines, 1)]
            y += STEP - 17 + 17 * len(lines)
    size = f'viewBox="0 0 {WIDE + LEFT + 70} {y + 10}" width="{WIDE + LEFT + 70}" height="{y + 10}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}><style>{STYLE}</style>{"".join(shapes)}</svg>'
