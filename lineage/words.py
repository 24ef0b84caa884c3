"""Components in a specialist's words, short enough for a cell of a table."""

import math
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from lineage import components as c

ACTIVATIONS = {
    "gelu": "GELU", "gelu_new": "GELU (tanh)", "gelu_tanh": "GELU (tanh kernel)", "relu": "ReLU", "relu2": "ReLU²",
    "silu": "SiLU", "quick_gelu": "quick GELU", "gelu_fast": "GELU (tanh, 10 digits)",
    "gelu_cut": "GELU (tanh, 8 digits)",
}  # fmt: skip
NOT = {"tied": "untied", "gated": "ungated"}
LABELS = {"plus_one": "1 + weight", "late": "rounded late", "exact": "in single precision", "joined": "over all heads"}
"""Of fields whose own name is no phrase."""
GATED = {"SiLU": "SwiGLU", "GELU": "GeGLU", "ReLU": "ReGLU"}  # Shazeer 2020, eq. 6
BIASES = {"attention bias": "q, k, v", "attention output_bias": "o", "cross bias": "cross q, k, v",
          "cross output_bias": "cross o", "mlp bias": "MLP"}  # fmt: skip


def number(value: Any) -> str:
    """A value of a field: 50,257; 1e-05; yes. Of a component laid open, its kind."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) and 1 < abs(value) < 1e12 else f"{value:,.6g}"
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
        value, label = getattr(part, f.name), LABELS.get(f.name, f.name.replace("_", " "))
        if f.name in but or value is None or value == f.default:
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
    common = math.gcd(part.width, across or 0)
    share = "" if across in (None, part.width) else f"{part.width // common}/{across // common} of each head"
    paired = "interleaved" if part.pairing == "neighbours" else ""
    told = facts(part, "theta", "width", "rounded", "pairing", "length")
    return joined(["rotary", f"θ {number(part.theta)}", share, paired, *told, _up_to(part.length)])


def _up_to(length: int | None) -> str:
    return f"up to {length:,}" if length else ""


def _ids(part: c.LearnedPositions | c.Sinusoids) -> str:
    """Which tokens have a place of their own, if not all."""
    skips = {"SkipPadding": "padding skipped", "SkipMasked": "masked tokens skipped"}
    return skips.get(type(part.ids).__name__, "")


ROUTED = {("softmax", "none"): "weights not normalised", ("none", "softmax"): "softmax over those chosen",
          ("none", "sigmoid"): "sigmoid weights", ("sigmoid", "sum"): "sigmoid scores",
          ("mixer", "none"): "sparse mixer"}  # fmt: skip
"""score, normalise -> how experts are weighed, if not by a softmax that sums to 1 over those chosen."""


def _experts(part: c.Experts) -> str:
    router, told = part.router, [ROUTED.get((part.router.score, part.router.normalise), "")]
    if router.groups and router.groups.keep < router.groups.count:
        told.insert(0, f"from {router.groups.keep} of {router.groups.count} groups")
    told += ["bias when choosing"] * router.correction + [f"× {number(router.scale)}"] * (router.scale != 1)
    told += [f"{router.capacity} tokens each at most"] * (router.capacity is not None)
    shared = f"a {'gated ' * part.shared_gate}shared {words(part.shared)}" if part.shared else ""
    told += (
        [shared] + ["inputs weighed"] * part.early + [f"clamped at {number(part.clamp.limit)}" if part.clamp else ""]
    )
    return joined([f"{router.experts} experts, {router.top_k} a token", network(part), *told])


def _latent(part: c.LatentAttention) -> str:
    queries = f", queries of {part.query_latent:,}" if part.query_latent else ""
    return f"latent, {part.heads} heads on {part.latent} + {part.rotary.width} numbers a token{queries}"


def head(part: c.Head, scale: Any = None) -> str:
    """scale: as it is said where the model's width is known. What is only of rounding is not told."""
    times = f"logits × {number(scale or part.scale)}" if part.scale else ""
    before = f"projected {words(part.projection)}" if part.projection else ""
    told = facts(part, "vocab", "tied", "late", "early", "scale", "projection")
    return joined(["tied to the tokens" if part.tied else "untied", times, before, *told])


SCORED = {"text": "a text", "choice": "a text among others", "tokens": "each token", "span": "each token, as an end",
          "replaced": "each token, replaced or not"}  # fmt: skip
READ = {"pooled": "by the pooler", "first": "by the first token", "start": "by the first token that is no padding",
        "mean": "by the tokens' mean", "each": ""}  # fmt: skip


def _scores(part: c.Classifier) -> str:
    count = f"{part.classes} score{'s' * (part.classes > 1)} of {SCORED[part.task]}"
    return joined([count, READ[part.reads], *facts(part, "classes", "task", "reads")])


def _distances(part: c.Distances) -> str:
    reach = f"up to {part.reach:,}" if part.reach else ""
    return joined(["vectors of distances", f"{part.span:,} to a side", reach, *facts(part, "span", "reach")])


PHRASES: dict[type, Callable[[Any], str]] = {
    c.LearnedPositions: lambda part: joined(["learned", number(part.reach), _ids(part)]),
    c.Sinusoids: lambda part: joined(
        ["sinusoidal", "sines first" * part.apart, "to 1/10,000" * part.closed, _up_to(part.length), _ids(part)]
    ),
    c.RelativeBias: lambda part: (
        f"relative bias, {part.buckets} buckets to {part.distance}, {'both ways' if part.both_ways else 'backwards'}"
    ),
    c.Distances: _distances,
    c.Disentangled: lambda part: joined(["content and distance", *facts(part)]),
    c.Alibi: lambda part: "ALiBi" if part.scale == 1 else f"ALiBi × {number(part.scale)}",
    c.Rotary: rotary,
    c.Linear: lambda part: f"stretched × {number(part.factor)}",
    c.Dynamic: lambda part: f"NTK × {number(part.factor)} beyond {part.length:,}",
    c.Banded: lambda part: f"stretched by frequency × {number(part.factor)} from {part.length:,}",
    c.Yarn: lambda part: f"YaRN × {number(part.factor)} from {part.length:,}",
    c.LongRope: lambda part: f"LongRoPE from {part.length:,}",
    c.Chunked: lambda part: f"causal in chunks of {part.length:,}",
    c.Temperature: lambda part: f"{number(part.scale)} from {number(part.length)} on",
    c.Segments: lambda part: f"{part.count} segments",
    c.Projection: lambda part: f"to {part.width:,}{'' if part.bias else ', no bias'}",
    c.FeedForward: lambda part: joined([network(part), *facts(part, "width", "activation", "gated", "bias")]),
    c.Experts: _experts,
    c.Attention: lambda part: "keys and values by head",
    c.LatentAttention: _latent,
    c.Transform: lambda part: (
        f"dense {ACTIVATIONS.get(part.activation, part.activation)}{'' if part.bias else ' without bias'}"
    ),
    c.Head: head,
    c.Pooler: lambda part: "yes",
    c.Classifier: _scores,
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
