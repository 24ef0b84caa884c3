"""The list of bugs: what is planted, on which specs, which levels claim it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import torch.nn.functional as F

from lineage import components as c
from lineage import graph
from tests.parity import bugs as b
from tests.parity import wrong
from tests.parity.bugs import ATTENTION, MLP, PRODUCT, ROUTER, Plant

Fits = Callable[[c.Model], object]
MOVES = [move for move in permutations(wrong.SLOTS, 2) if move != ("norm_branch", "norm_input")]  # nobody has one alone
SEEN, BEHAVES = ("replay", "fp64"), ("replay", "fp64", "behaviour")


@dataclass(frozen=True)
class Bug:
    """claims: levels that must fail. silent: levels that cannot see it and must pass. faint: on a faint stream.

    again: also in the further cases, whose spec makes a difference to it.
    """

    name: str
    plant: Plant
    fits: Fits
    claims: tuple[str, ...] = SEEN
    silent: tuple[str, ...] = ()
    faint: bool = False
    again: bool = False

    def __str__(self) -> str:
        return self.name


# What a bug needs


def always(spec: c.Model) -> bool:
    return True


def has(*names: str) -> Fits:
    """Tensors, by full name or by a module's path."""
    return lambda spec: all(any(f"{t}.".startswith(f"{name}.") for t in graph.tensors(spec)) for name in names)


def square(path: str) -> Fits:
    return lambda spec: len(set(graph.tensors(spec).get(f"{path}.weight", (1, 2)))) == 1


def attention(test: Callable[[c.Attention], object]) -> Fits:
    return lambda spec: test(spec.blocks[1].attention.body)


def mlp(test: Callable[[c.Component], object]) -> Fits:
    return lambda spec: test(spec.blocks[1].mlp.body)


def every(*tests: Fits) -> Fits:
    return lambda spec: all(test(spec) for test in tests)


def causal(spec: c.Model) -> bool:
    return isinstance(spec.blocks[1].attention.body.mask, c.Causal)


def windowed(one: c.Attention) -> object:
    return isinstance(one.mask, c.Causal) and (one.mask.window or 999) < 100  # one that the probes are longer than


def mixed_windows(spec: c.Model) -> bool:
    return spec.blocks[0].attention.body.mask != spec.blocks[1].attention.body.mask


def grouped(one: c.Attention) -> bool:
    return 1 < one.kv_heads < one.heads


def alike(one: c.Attention) -> bool:
    return one.kv_heads == one.heads


def turned(one: c.Attention) -> object:
    return one.rotary


def gelu(spec: c.Model) -> bool:
    return spec.blocks[1].mlp.body.activation.startswith("gelu")


def dense(one: c.Component) -> bool:
    return isinstance(one, c.FeedForward)


def gated(one: c.Component) -> bool:
    return isinstance(one, c.FeedForward) and one.gated


def mixture(one: c.Component) -> bool:
    return isinstance(one, c.Experts)


def stream_norm(kind: type[c.Component]) -> Fits:
    return lambda spec: isinstance(spec.blocks[1].attention.norm_input or spec.blocks[1].attention.norm_sum, kind)


def real_eps(spec: c.Model) -> bool:
    """Not so small that it is lost in any variance."""
    residual = spec.blocks[1].attention
    return (residual.norm_input or residual.norm_sum).eps >= 1e-6


def slot(branch: str, at: str, to: str) -> Fits:
    def test(spec: c.Model) -> bool:
        residual = getattr(spec.blocks[1], branch)
        return getattr(residual, at) is not None and getattr(residual, to) is None

    return test


def serial(spec: c.Model) -> bool:
    return not spec.blocks[1].parallel


def skips_padding(spec: c.Model) -> bool:
    return spec.embed.positions is not None and isinstance(spec.embed.positions.ids, c.SkipPadding)


def segmented(spec: c.Model) -> bool:
    return spec.embed.segments is not None and spec.embed.segments.count > 1


def head(test: Callable[[c.Head], object]) -> Fits:
    return lambda spec: spec.head is not None and test(spec.head)


transforms = head(lambda one: one.transform)


# The list


def projections() -> Iterator[Bug]:
    for x in "qkvo":
        yield Bug(f"{x} transposed", b.turned_matrix(f"{ATTENTION}.{x}"), square(f"{ATTENTION}.{x}"))
        yield Bug(f"one weight of {x} nudged", b.nudged(f"{ATTENTION}.{x}.weight"), always)
        silent = ("fp64", "fp32", "behaviour") if x == "k" else ()  # softmax takes away what all keys have in common
        fits = (
            every(has(f"{ATTENTION}.{x}.bias"), attention(lambda one: not one.rotary))
            if silent
            else has(f"{ATTENTION}.{x}.bias")
        )
        yield Bug(f"bias of {x} lost", b.bias_lost(f"{ATTENTION}.{x}"), fits, SEEN[: 1 if silent else 2], silent)
    turning = every(has(f"{ATTENTION}.k.bias"), attention(turned))
    yield Bug("bias of k lost before rotation", b.bias_lost(f"{ATTENTION}.k"), turning)
    yield Bug("q and k swapped", b.swapped(f"{ATTENTION}.q", f"{ATTENTION}.k"), attention(alike))
    yield Bug("k and v swapped", b.swapped(f"{ATTENTION}.k", f"{ATTENTION}.v"), always)
    yield Bug("heads permuted in q", b.reordered(b.rolled, "q"), always)
    yield Bug("heads permuted in q, k, v, not in o", b.reordered(b.rolled, *"qkv"), attention(lambda a: a.kv_heads > 1))
    yield Bug("heads permuted in o", b.heads_rolled_in_o, always)
    yield Bug("rows of q interleaved", b.reordered(b.interleaved, "q"), always)
    yield Bug("rows of q and k in the other rotary layout", b.reordered(b.interleaved, "q", "k"), attention(turned))
    yield Bug("fused q, k, v cut head by head", b.fused(lambda x: x.transpose(0, 1).reshape(x.shape)), attention(alike))
    yield Bug("fused q, k, v taken for v, q, k", b.fused(lambda x: x.roll(1, 0)), attention(alike))


def networks() -> Iterator[Bug]:
    for x in ("up", "down", "gate"):
        yield Bug(f"bias of {x} lost", b.bias_lost(f"{MLP}.{x}"), has(f"{MLP}.{x}.bias"))
        yield Bug(f"one weight of {x} nudged", b.nudged(f"{MLP}.{x}.weight"), has(f"{MLP}.{x}.weight"))
        yield Bug(f"one weight of the experts' {x} nudged", b.nudged(f"{MLP}.{x}"), mlp(mixture))
        yield Bug(f"experts permuted in {x}", b.altered(f"{MLP}.{x}", lambda w: w.roll(1, 0)), mlp(mixture))
    yield Bug("gate and up swapped", b.swapped(f"{MLP}.gate", f"{MLP}.up"), mlp(gated))
    yield Bug("gate and up interleaved", b.gate_and_up_interleaved, mlp(gated))
    yield Bug("activation on up for gate", b.turn(MLP, wrong.ActsOnUp), mlp(gated))
    yield Bug("up left out", b.turn(MLP, wrong.GateLeftOut), mlp(gated))
    yield Bug("experts' gate and up swapped", b.experts_swapped, mlp(mixture))
    permuted = tuple(b.altered(f"{MLP}.{x}", lambda w: w.roll(1, 0)) for x in ("gate", "up", "down"))
    yield Bug("experts permuted", b.both(*permuted), mlp(mixture))
    yield Bug("router's rows permuted", b.altered(f"{ROUTER}.weight", lambda w: w.roll(1, 0)), mlp(mixture))
    yield Bug("one expert more", b.respec(ROUTER, top_k=lambda k: k + 1), mlp(mixture))
    yield Bug("one expert fewer", b.respec(ROUTER, top_k=lambda k: k - 1), mlp(mixture))
    yield Bug(
        "experts' weights normalised or not",
        b.respec(ROUTER, normalise=lambda old: "none" if old == "sum" else "sum"),
        mlp(mixture),
    )
    yield Bug("experts scored by sigmoids", b.turn(ROUTER, wrong.SigmoidScores), mlp(mixture))
    yield Bug("experts weighed evenly", b.turn(ROUTER, wrong.EvenWeights), mlp(mixture))


def products() -> Iterator[Bug]:
    def one(name: str, kind: type, fits: Fits = always, claims: tuple[str, ...] = SEEN) -> Bug:
        return Bug(name, b.turn(PRODUCT, kind), fits, claims)

    yield one("heads split as [W, H]", wrong.Interleaved)
    yield one("heads joined without moving", wrong.JoinedWrongly)
    yield Bug("scale missing", b.scaled(lambda model: b.head_width(model) ** 0.5), always)
    yield Bug("scale doubled", b.scaled(lambda model: 2.0), always)
    yield Bug("scale applied twice", b.scaled(lambda model: b.head_width(model) ** -0.5), always)
    by_width = b.scaled(lambda model: (b.head_width(model) / model.spec.embed.width) ** 0.5)
    yield Bug("scale by the model's width", by_width, always)
    yield Bug("twice the heads, half as wide", b.twice_the_heads, always)
    yield one("grouped heads repeated in turn", wrong.TilesHeads, attention(grouped))
    yield Bug("causal mask lost", b.respec(PRODUCT, mask=c.Bidirectional()), causal, BEHAVES)
    yield Bug("causal mask added", b.respec(PRODUCT, mask=c.Causal()), lambda spec: not causal(spec))
    yield one("causal mask one off", wrong.SeesOneAhead, causal, BEHAVES)
    yield one("padding mask ignored", wrong.ForgetsPadding, always, BEHAVES)
    yield one("mask added as zeros and ones", wrong.MasksSoftly, always, BEHAVES)
    yield one("mask after the softmax", wrong.MasksAfterSoftmax, always, BEHAVES)
    yield one("softmax over queries", wrong.SoftmaxOverQueries, always, BEHAVES)
    yield Bug("o left out", b.turn(ATTENTION, wrong.GivesValuesAsTheyCame), square(f"{ATTENTION}.o"))
    yield Bug("window lost", b.respec(PRODUCT, mask=c.Causal()), attention(windowed))
    wider = b.respec(PRODUCT, mask=lambda old: c.Causal(window=old.window + 1))
    yield Bug("window one too wide", wider, attention(windowed))
    yield Bug("windows in the other layers", b.windows_in_the_other_layers, mixed_windows)
    yield Bug("soft cap of scores lost", b.respec(PRODUCT, softcap=None), attention(lambda a: a.softcap))
    yield Bug("rotation lost", b.respec(PRODUCT, rotary=None), attention(turned))
    yield Bug("theta wrong", b.rotary(theta=5e5), attention(turned))
    yield Bug("neighbours turned for halves", b.rotary(pairing="neighbours"), attention(turned))
    yield one("only queries turned", wrong.TurnsQueriesAlone, attention(turned))
    yield one("values turned too", wrong.TurnsValuesToo, attention(turned))
    yield one("turned backwards", wrong.TurnsBackwards, attention(turned))
    yield one("keys one position on", wrong.PositionsFromOneInKeys, attention(turned))
    partial = attention(lambda a: a.rotary and a.rotary.width < a.head_width)
    yield Bug("the whole head turned", b.respec(PRODUCT, rotary=lambda r: c.Rotary(theta=r.theta, width=8)), partial)
    yield Bug("rotary scaling lost", b.rotary(scaling=None), attention(lambda a: a.rotary and a.rotary.scaling))
    yield Bug("norm of queries left out", b.gone(f"{ATTENTION}.query_norm"), has(f"{ATTENTION}.query_norm"))
    norms = (f"{ATTENTION}.query_norm", f"{ATTENTION}.key_norm")
    yield Bug("norms of queries and keys swapped", b.swapped(*norms), has(*norms))


def embeddings() -> Iterator[Bug]:
    learned, tokens = has("embed.positions"), "embed.tokens.weight"
    yield Bug("one weight of the table nudged", b.table_nudged, always, again=True)
    yield Bug("tokens permuted", b.altered(tokens, lambda x: x.roll(1, 0)), always, again=True)
    plain = lambda spec: spec.embed.scale is None  # noqa: E731
    yield Bug("token ids one off", b.turn("embed.tokens", wrong.OneTokenOff), plain)
    yield Bug("tokens times the root of the width", b.turn("embed.tokens", wrong.ScaledByWidth), plain)
    yield Bug("tokens' scale lost", b.changed("embed", "scale", None), lambda spec: spec.embed.scale)
    yield Bug("positions shifted by one", b.altered("embed.positions.weight", lambda x: x.roll(-1, 0)), learned)
    yield Bug("two positions swapped", b.altered("embed.positions.weight", b.two_rows_swapped), learned)
    yield Bug("segments swapped", b.altered("embed.segments.weight", lambda x: x.roll(1, 0)), segmented)
    yield Bug("segment ids ignored", b.turn("embed", wrong.FirstSegmentOnly), segmented)
    yield Bug("segments left out", b.changed("embed", "segments", None), segmented)
    yield Bug("embedding's norm left out", b.gone("embed.norm"), has("embed.norm"))
    yield Bug("embedding's norm before the sum", b.turn("embed", wrong.NormFirst), has("embed.norm"))
    yield Bug("positions count from the padding", b.turn("embed.positions", wrong.FromPad), skips_padding)
    yield Bug("positions count padding", b.turn("embed.positions", wrong.PadCounted), skips_padding, BEHAVES)
    yield Bug("positions from 0", b.changed("embed.positions", "pad", None), skips_padding)


def norms() -> Iterator[Bug]:
    layer, rms = stream_norm(c.LayerNorm), stream_norm(c.RMSNorm)

    def first(name: str, kind: type, fits: Fits) -> Bug:
        return Bug(name, b.first_norm(lambda path: b.turn(path, kind)), fits)

    yield Bug("two norms swapped", b.two_norms_swapped, always)
    yield Bug("bias of a norm lost", b.first_norm(b.bias_lost), layer)
    ones = b.first_norm(lambda path: b.altered(f"{path}.weight", lambda weight: weight * 0 + 1))
    yield Bug("weight of a norm lost", ones, always)
    yield first("weight of a norm taken for 1 + weight", wrong.OnePlusWeight, layer)
    flipped = b.first_norm(lambda path: b.respec(path, plus_one=lambda old: not old))
    yield Bug("weight of a norm for 1 + weight, or the reverse", flipped, rms)
    yield first("mean kept, as in RMSNorm", wrong.MeanKept, layer)
    yield first("mean removed, as in LayerNorm", wrong.MeanRemoved, rms)
    yield first("variance over D - 1", wrong.UnbiasedVariance, layer)
    yield first("sum of squares for their mean", wrong.RootOfSum, rms)
    yield Bug("eps of every norm 1e-5 more", b.eps_of(), always, faint=True)
    yield Bug("eps outside the root", b.eps_outside_root, every(layer, real_eps), faint=True)
    yield Bug("final norm left out", b.gone("norm"), has("norm"))
    yield Bug("final norm twice", b.turn("", wrong.NormedTwice), has("norm"))
    for branch in ("attention", "mlp"):
        for at, to in MOVES:
            yield Bug(f"{branch}'s norm from {at} to {to}", b.norm_moved(branch, at, to), slot(branch, at, to))
        where = f"blocks.1.{branch}.norm_branch"
        yield Bug(f"{branch}'s second norm left out", b.gone(where), has(where))


def activations() -> Iterator[Bug]:
    act, deep = f"{MLP}.act", "head.transform.act"
    yield Bug("the other GELU", b.other_gelu(), gelu)
    yield Bug("the other GELU in one layer", b.other_gelu(act), gelu)
    yield Bug("the other GELU in the head", b.other_gelu(deep), transforms)
    yield Bug("GELU by a sigmoid", b.acts_are(b.quick_gelu, act), gelu)
    yield Bug("ReLU", b.acts_are(F.relu, act), always)
    yield Bug("SiLU for GELU", b.acts_are(F.silu, act), gelu)
    yield Bug("GELU for SiLU", b.acts_are(F.gelu, act), lambda spec: not gelu(spec))
    yield Bug("ReLU in the head", b.acts_are(F.relu, deep), transforms)


def blocks() -> Iterator[Bug]:
    yield Bug("two layers swapped", b.layers_swapped, always)
    yield Bug("layers in the wrong order", b.turn("", wrong.LayersBackwards), always)
    yield Bug("a layer skipped", b.turn("blocks.1", wrong.Skipped), always)
    yield Bug("branches in parallel, or one after the other", b.turn("blocks.1", wrong.OtherOrder), always)
    yield Bug("branches in the other order", b.turn("blocks.1", wrong.MlpFirst), serial)
    yield Bug("stream lost", b.turn("blocks.1", wrong.NoStream), lambda spec: not serial(spec))
    for x in ("attention", "mlp"):
        yield Bug(f"{x}'s residual lost", b.turn(f"blocks.1.{x}", wrong.NoResidual), serial)
    first = every(serial, lambda spec: spec.blocks[1].mlp.norm_input)
    yield Bug("residual after the norm", b.turn("blocks.1.mlp", wrong.AddsNormed), first)


def heads() -> Iterator[Bug]:
    yield Bug("tied head drifted from its table", b.own_head, head(lambda one: one.tied))
    yield Bug("one weight of the head nudged", b.nudged("head.weight"), has("head.weight"))
    yield Bug("head's bias lost", b.changed("head", "bias", None), has("head.bias"))
    yield Bug("head divided by the root of the width", b.turn("head", wrong.ScaledHead), head(lambda one: True))
    yield Bug("soft cap of logits lost", b.changed("head", "softcap", None), head(lambda one: one.softcap))
    yield Bug("head's matrix transposed", b.turned_matrix("head.transform.dense"), transforms)
    yield Bug("head's norm before its activation", b.turn("head.transform", wrong.ActAfterNorm), transforms)
    yield Bug("head's transform left out", b.gone("head.transform"), transforms)
    yield Bug("pooler without tanh", b.turn("pooler", wrong.NoTanh), has("pooler"))
    yield Bug("pooler on the last token", b.turn("pooler", wrong.LastToken), has("pooler"))
    rows = b.altered("next_sentence.weight", lambda x: x.roll(1, 0))
    yield Bug("next-sentence rows swapped", rows, has("next_sentence"))


GROUPS = (projections, networks, products, embeddings, norms, activations, blocks, heads)
BUGS = tuple(bug for group in GROUPS for bug in group())
