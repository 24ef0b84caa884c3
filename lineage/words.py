"""Components in a specialist's words, short enough for a cell of a table."""

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from fractions import Fraction
from itertools import pairwise
from typing import Any

from lineage import components as c

ACTIVATIONS = {
    "gelu": "GELU", "gelu_new": "GELU (tanh)", "gelu_tanh": "GELU (tanh kernel)", "relu": "ReLU", "relu2": "ReLU²",
    "silu": "SiLU", "quick_gelu": "quick GELU",
}  # fmt: skip
NOT = {"tied": "untied", "gated": "ungated"}
GATED = {"SiLU": "SwiGLU", "GELU": "GeGLU", "ReLU": "ReGLU"}  # Shazeer 2020, eq. 6
BIASES = {"attention bias": "q, k, v", "attention output_bias": "o", "cross bias": "cross q, k, v",
          "cross output_bias": "cross o", "mlp bias": "MLP"}  # fmt: skip


def number(value: Any) -> str:
    """A value of a field: 50,257; 1e-05; yes. Of a component laid open, its kind."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) and 1 < abs(value) < 1e12 else f"{value:.6g}"
    if isinstance(value, tuple | list | dict):
        return str(value["component"]) if isinstance(value, dict) else f"{len(value)} values"
    return f"{value:,}" if isinstance(value, int) else str(value)


def joined(parts: Iterable[str]) -> str:
    return ", ".join(part for part in parts if part)


def words(part: Any) -> str:
    """What a component is; of a kind that has no phrase of its own, its name and what is not at its default."""
    if not isinstance(part, c.Component):
        return number(part)
    if type(part) in PHRASES:
        return PHRASES[type(part)](part)
    kind = type(part).__name__
    name = kind if kind.endswith("Norm") else re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
    return joined([name, *facts(part)])


def facts(part: c.Component, *but: str) -> list[str]:
    """The fields of a component that are not at their defaults, as words; `but` these."""
    told = []
    for f in part.declared:
        value, label = getattr(part, f.name), f.name.replace("_", " ")
        usual = f.default if f.default_factory is MISSING else f.default_factory()
        if f.name in but or value is None or value == usual:
            continue
        spoken = words(value) if isinstance(value, c.Component) else f"{label} {number(value)}"
        told.append((label if value else NOT.get(label, f"no {label}")) if isinstance(value, bool) else spoken)
    return told


def network(part: c.FeedForward | c.Experts) -> str:
    """A feed-forward network by its activation: GELU, SwiGLU."""
    plain = ACTIVATIONS.get(part.activation, part.activation)
    short, _, more = plain.partition(" ")
    return plain if not part.gated else f"{GATED[short]} {more}".strip() if short in GATED else f"gated {plain}"


def heads(part: c.Attention) -> str:
    """How queries share keys and values (Ainslie et al. 2023, fig. 2)."""
    if part.kv_heads == part.heads:
        return f"multi-head, {part.heads}"
    shared = "multi-query, {} queries on one key" if part.kv_heads == 1 else "grouped, {} queries on {} keys"
    return shared.format(part.heads, part.kv_heads)


def rotary(part: c.Rotary, across: int | None = None) -> str:
    """across: the head's width, where it is known."""
    share = "" if across in (None, part.width) else f"{Fraction(part.width, across)} of each head"
    return joined(["rotary", f"θ {number(part.theta)}", share, *facts(part, "theta", "width", "rounded")])


def _experts(part: c.Experts) -> str:
    router, shared = part.router, f"shared {words(part.shared)}" if part.shared else ""
    told = facts(router, "experts", "top_k", "exact", "rounded")
    more = facts(part, "router", "width", "activation", "gated", "shared", "bias")
    return joined([f"{router.experts} experts, {router.top_k} a token", network(part), *told, shared, *more])


PHRASES: dict[type, Callable[[Any], str]] = {
    c.LearnedPositions: lambda part: joined(["learned", number(part.length), *facts(part, "length")]),
    c.Sinusoids: lambda part: joined(["sinusoidal", *facts(part, "single")]),
    c.Rotary: rotary,
    c.FeedForward: lambda part: joined([network(part), *facts(part, "width", "activation", "gated", "bias")]),
    c.Experts: _experts,
    c.Attention: lambda part: "keys and values by head",
    c.LatentAttention: lambda part: (
        f"latent, {part.heads} heads on {part.latent} + {part.rotary.width} numbers a token"
    ),
    c.Transform: lambda part: f"dense {ACTIVATIONS.get(part.activation, part.activation)}",
    c.Head: lambda part: joined(["tied to the tokens" if part.tied else "untied", *facts(part, "vocab", "tied")]),
    c.Pooler: lambda part: "yes",
    c.Classifier: lambda part: f"{part.classes} classes",
    c.Model: lambda part: f"{len(part.depth)} layers",
}


def biases(texts: list[str]) -> str:
    """Where biases are. texts: each place, a "+" before it if it has one."""
    there = [BIASES.get(text[1:], text[1:]) for text in texts if text.startswith("+")]
    return "none" if not there else "everywhere" if len(there) == len(texts) else joined(there)


def layers_text(found: list[int], count: int) -> str:
    """Layers in few words: "layers 0…11", "layers 0, 2, 4 …"."""
    steps = {b - a for a, b in pairwise(found)}
    if len(found) == 1 or steps == {1}:
        return f"layer {found[0]}" if len(found) == 1 else f"layers {found[0]}…{found[-1]}"
    if len(steps) == 1 and found[-1] + min(steps) >= count and len(found) > 2:
        return f"layers {', '.join(map(str, found[:3]))} …"
    others = sorted(set(range(count)) - set(found))
    if len(others) < len(found):
        return f"all but {layers_text(others, count)}"
    return f"layers {', '.join(map(str, found[:6]))}" + (f" and {len(found) - 6} more" if len(found) > 6 else "")
