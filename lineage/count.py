"""Counts that follow from a spec alone: parameters, those that a token uses, the cache, the work; and formulas."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from lineage import components as c
from lineage import graph
from lineage.edits import alike
from lineage.errors import UsageError
from lineage.values import Value

BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
TABLES = (c.Embed, c.LearnedPositions, c.Segments, c.RelativeBias, c.Distances)  # looked up, not multiplied
LETTERS = {"vocab": "V", "length": "T", "count": "S", "experts": "E", "FeedForward.width": "f", "Experts.width": "f",
           "query_latent": "a", "latent": "c", "Projection.width": "p"}  # fmt: skip
"""Of sizes in formulas; d is the stream's width, q and k those of all queries and of all keys."""
MASKED = 0.15
"""The share of tokens that a masked model is asked for, and so learns from (Devlin et al. 2018, §3.1)."""
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def letters(model: c.Model) -> dict[int, str]:
    """What the dimensions of tensors are called: size -> letter."""
    pairs: list[tuple[str, Any]] = []
    for part in (node.component for node in graph.walk(model)):
        kind, sizes = type(part).__name__, vars(part)
        pairs += [(LETTERS.get(f"{kind}.{name}") or LETTERS.get(name, ""), size) for name, size in sizes.items()]
        if isinstance(part, c.Attention | c.LatentAttention):
            pairs += [("q", part.heads * part.head_width), ("k", sizes.get("kv_heads", 0) * part.head_width)]
    named = {model.embed.stream: "d"}
    for letter, size in sorted((pair for pair in pairs if pair[0] and type(pair[1]) is int), key=_order):
        if size and size not in named:
            named[size] = letter + "′" * sum(one[0] == letter for one in named.values())
    return named


def _order(pair: tuple[str, Any]) -> int:
    return "VTSfEqkacp".find(pair[0])


def formula(shapes: Iterable[tuple[int, ...]], named: dict[int, str]) -> str:
    """The sum of tensors' sizes as a polynomial: 12d² + 13d. A dimension that is a few widths is so many d."""
    width, terms = next(iter(named)), Counter[tuple[str, ...]]()
    for shape in shapes:
        many = [size // width if size % width == 0 and size // width <= 8 else 0 for size in shape]
        pairs = [
            (n, "d") if n else (1, named[size]) if size in named else (size, "")
            for n, size in zip(many, shape, strict=True)
        ]
        terms[tuple(sorted(name for _, name in pairs if name))] += math.prod(n for n, _ in pairs)
    ranked = sorted(terms.items(), key=lambda one: (-len(one[0]), one[0]))
    powers = [
        "".join(name + str(n if n > 1 else "").translate(SUPERSCRIPT) for name, n in Counter(term).items())
        for term, _ in ranked
    ]
    return " + ".join(
        power if n == 1 and power else f"{n:,}{power}" for power, (_, n) in zip(powers, ranked, strict=True)
    )


class Share(Value):
    """A part's parameters. active: those that one token uses. formula: of all of them."""

    name: str
    parameters: int
    active: int
    formula: str


def shares(model: c.Model, by: str = "component") -> tuple[list[Share], dict[str, int]]:
    """The parameters by component (its role), or by layer, equal neighbours together; and the formulas' letters."""
    found: dict[str, dict[str, list[tuple[c.Component, tuple[int, ...]]]]] = {}
    for node in graph.walk(model):
        steps = node.path.split(".")
        for shape in node.component.tensors(node.width).values():
            units = found.setdefault(_role(steps) if by == "component" else _unit(steps), {})
            units.setdefault(_unit(steps), []).append((node.component, shape))
    named, told = letters(model), []
    for name, units in found.items():
        equal = Counter(tuple(shape for _, shape in tensors) for tensors in units.values())
        spelled = [(formula(shapes, named), n) for shapes, n in equal.items()]
        terms = [f"{n} × {f'({one})' if ' ' in one else one}" if n > 1 else one for one, n in spelled]
        sizes = [(math.prod(shape), used(part, shape)) for tensors in units.values() for part, shape in tensors]
        told.append(Share(name, sum(n for n, _ in sizes), sum(int(n * share) for n, share in sizes), " + ".join(terms)))
    if by == "layer":
        runs = [list(run) for _, run in groupby(told, lambda one: (one.name.split()[:-1], one.formula))]
        names = [f"{run[0].name}…{run[-1].name.split()[-1]}, each" if run[1:] else run[0].name for run in runs]
        told = [replace(run[0], name=name) for run, name in zip(runs, names, strict=True)]
    return told, {name: size for size, name in named.items() if any(name in one.formula for one in told)}


def used(part: c.Component, shape: tuple[int, ...]) -> Fraction:
    """The share of a tensor that one token uses: of stacked experts, those that are chosen. A table counts whole."""
    stacked = isinstance(part, c.Experts) and len(shape) > 1 and shape[0] == part.router.experts
    return Fraction(part.router.top_k, part.router.experts) if stacked else Fraction(1)  # type: ignore[attr-defined]


def _unit(steps: list[str]) -> str:
    """The layer that a path lies in, or what else its end of the model is called."""
    place = next((i + 1 for i, step in enumerate(steps) if step.isdigit()), 1 + (steps[0] == "encoder"))
    return " ".join(steps[:place])


def _role(steps: list[str]) -> str:
    if steps[0] == "encoder":
        return f"encoder {_role(steps[1:])}"
    if "norm" in steps[-1] or "router" in steps:
        return "norms" if "norm" in steps[-1] else "router"
    if steps[0] not in ("blocks", "embed"):
        return steps[0]
    return next((step for step in steps[1:] if not step.isdigit()), "tokens")


SCORED: dict[type, Callable[[Any], int]] = {
    c.Attention: lambda part: 4 * part.heads * part.head_width,
    c.LatentAttention: lambda part: 2 * part.heads * (part.head_width + part.value_width),
}
"""Operations for each token that is attended to: of scores and of the values' sum."""


def _places(model: c.Model) -> Iterator[tuple[graph.Node, int, int]]:
    """Every component, of equal layers only one's: how often it is stored, and how often it runs."""
    for name, part in graph.children(model):
        if name == "encoder":
            yield from _places(part)  # type: ignore[arg-type]
        elif not name.startswith("blocks."):
            yield from ((node, 1, 1) for node in graph.walk(part, name, model.child_width(name, 0)))
    kinds = alike(model.blocks)
    runs = Counter(kinds[i] for i in (model.order or range(len(kinds))))
    for i, stored in Counter(kinds).items():
        yield from ((node, stored, runs[i]) for node in graph.walk(model.blocks[i], "", model.embed.stream))


def kept(model: c.Model, seq: int, batch: int = 1, kind: str = "fp16", whole: bool = False) -> int:
    """Bytes of the keys and values of `batch` texts of `seq` tokens; a layer with a window keeps no more than that.

    whole: what it would be if no heads shared keys and values. What an encoder's result leaves in cross attention is
    not counted: it does not grow. Raises UsageError for a type of numbers that is not known.
    """
    if kind not in BYTES:
        raise UsageError(f"a cache of {kind[:20]!r} is not one of {', '.join(BYTES)}")
    numbers, found = 0, ((node.component, runs) for node, _, runs in _places(model) if type(node.component) in SCORED)
    one: Any
    for one, runs in found:
        if not isinstance(one.mask, c.Bidirectional):
            sharing = one.heads // one.kv_heads if whole and isinstance(one, c.Attention) else 1
            own = sum(heads * width for heads, width in one.kept)
            numbers += own * sharing * min(seq, reach(one.mask, seq)) * runs
    return int(numbers * batch * BYTES[kind])


def reach(mask: c.Mask, seq: int) -> int:
    """How many of `seq` tokens one attends to at most, itself included."""
    if isinstance(mask, c.Bidirectional):
        return seq if mask.reach is None else 2 * mask.reach + 1
    return (mask.length if isinstance(mask, c.Chunked) else mask.window) or seq


def places(model: c.Model) -> int | None:
    """How many tokens of a text have a place; None if nothing limits it. An encoder's text has places of its own."""
    tables = [model.embed.positions.reach] if model.embed.positions else []
    parts = (node.component for block in model.blocks for node in graph.walk(block))
    angles = [part.length for part in parts if isinstance(part, c.Rotary)]
    return min((count for count in (*tables, *angles) if count is not None), default=None)


def flops(model: c.Model, seq: int = 0) -> int:
    """Operations of one token's forward pass, two for each product with a weight; seq: tokens attended to, too.

    With an encoder: of one token of the source and one of the target.
    """
    total = 2 * model.embed.vocab * model.embed.width if model.head and model.head.tied else 0
    for node, _, runs in _places(model):
        part: Any = node.component
        if type(part) in SCORED:
            total += SCORED[type(part)](part) * min(seq, reach(part.mask, seq)) * runs
        shapes = [] if isinstance(part, TABLES) else part.tensors(node.width).values()
        total += sum(int(2 * math.prod(shape) * used(part, shape)) * runs for shape in shapes if len(shape) > 1)
    return total


def figures(model: c.Model) -> dict[str, int]:
    """What a design costs: parameters, those that a token uses, bytes a token in the cache (fp16), operations a token.

    Tables of embeddings are used whole, as Jiang et al. (2024) count.
    """
    total = active = 0
    for node, stored, _ in _places(model):
        for shape in node.component.tensors(node.width).values():
            total += math.prod(shape) * stored
            active += int(math.prod(shape) * used(node.component, shape)) * stored
    return {"parameters": total, "active": active, "cache": kept(model, 1), "flops": flops(model)}
