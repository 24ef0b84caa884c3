"""The list of bugs: what is planted, on which specs, which levels claim it. Those of later parts: `planted_parts`."""

from collections.abc import Iterator
from itertools import permutations

import torch.nn.functional as F

from lineage import components as c
from tests.parity import bugs as b
from tests.parity import fits as f
from tests.parity import planted_ends, planted_parts, rows, wrong
from tests.parity import wrong_ends as ends
from tests.parity import wrong_parts as parts
from tests.parity.bugs import ATTENTION, BEHAVES, MLP, PRODUCT, ROUTER, SEEN, WEIGHTS, Bug, Fits

MOVES = [move for move in permutations(parts.SLOTS, 2) if move != ("norm_branch", "norm_input")]  # nobody has one alone


def projections() -> Iterator[Bug]:
    for x in "qkvo":
        yield Bug(f"{x} transposed", b.turned_matrix(f"{ATTENTION}.{x}"), f.square(f"{ATTENTION}.{x}"))
        yield Bug(f"one weight of {x} nudged", b.nudged(f"{ATTENTION}.{x}.weight"), f.has(f"{ATTENTION}.{x}"))
        silent = ("fp64", "fp32") if x == "k" else ()  # softmax takes away what all keys have in common
        biased = f.every(f.plain, f.has(f"{ATTENTION}.{x}.bias"))
        fits = f.every(biased, f.attention(lambda one: not one.rotary)) if silent else biased
        yield Bug(f"bias of {x} lost", b.bias_lost(f"{ATTENTION}.{x}"), fits, SEEN[: 1 if silent else 2], silent)
    turning = f.every(f.has(f"{ATTENTION}.k.bias"), f.attention(f.turned))
    yield Bug("bias of k lost before rotation", b.bias_lost(f"{ATTENTION}.k"), turning)
    yield Bug("q and k swapped", b.swapped(f"{ATTENTION}.q", f"{ATTENTION}.k"), f.attention(f.alike))
    yield Bug("k and v swapped", b.swapped(f"{ATTENTION}.k", f"{ATTENTION}.v"), f.plain)
    yield Bug("heads permuted in q", rows.reordered(rows.rolled, "q"), f.plain)
    several = f.attention(lambda one: one.kv_heads > 1)
    yield Bug("heads permuted in q, k, v, not in o", rows.reordered(rows.rolled, *"qkv"), several)
    yield Bug("heads permuted in o", rows.heads_rolled_in_o, f.plain)
    even = f.attention(lambda one: one.head_width % 2 == 0)
    yield Bug("rows of q interleaved", rows.reordered(rows.interleaved, "q"), even)
    other = rows.reordered(rows.interleaved, "q", "k")
    yield Bug("rows of q and k in the other rotary layout", other, f.attention(f.turned))
    head_by_head = rows.fused(lambda x: x.transpose(0, 1).reshape(x.shape))
    yield Bug("fused q, k, v cut head by head", head_by_head, f.attention(f.alike))
    yield Bug("fused q, k, v taken for v, q, k", rows.fused(lambda x: x.roll(1, 0)), f.attention(f.alike))


def networks() -> Iterator[Bug]:
    mixture = f.mlp(f.mixture)
    for x in ("up", "down", "gate"):
        there = f.experts(lambda one, x=x: one.gated or x != "gate")
        yield Bug(f"bias of {x} lost", b.bias_lost(f"{MLP}.{x}"), f.has(f"{MLP}.{x}.bias"))
        yield Bug(f"one weight of {x} nudged", b.nudged(f"{MLP}.{x}.weight"), f.has(f"{MLP}.{x}.weight"))
        yield Bug(f"one weight of the experts' {x} nudged", rows.experts_nudged(x), there)
        yield Bug(f"experts permuted in {x}", b.altered(f"{MLP}.{x}", lambda w: w.roll(1, 0)), there)
    yield Bug("gate and up swapped", b.swapped(f"{MLP}.gate", f"{MLP}.up"), f.mlp(f.gated))
    yield Bug("gate and up interleaved", rows.gate_and_up_interleaved, f.mlp(f.gated))
    yield Bug("activation on up for gate", b.turn(MLP, parts.ActsOnUp), f.mlp(f.gated))
    yield Bug("up left out", b.turn(MLP, parts.GateLeftOut), f.mlp(f.gated))
    yield Bug("experts' gate and up swapped", rows.experts_swapped, f.experts(lambda one: one.gated))
    yield Bug("experts permuted", rows.experts_permuted, mixture)
    yield Bug("router's rows permuted", b.altered(f"{ROUTER}.weight", lambda w: w.roll(1, 0)), mixture)

    def weighed(name: str, plant: b.Plant, fits: Fits = mixture) -> Bug:
        return Bug(name, b.blamed(WEIGHTS, plant), fits)

    several = f.router(lambda one: one.top_k > 1)
    free = f.router(lambda one: not one.groups and 1 < one.top_k < one.experts)
    yield weighed("one expert more", b.respec(ROUTER, top_k=lambda k: k + 1), free)
    yield weighed("one expert fewer", b.respec(ROUTER, top_k=lambda k: k - 1), several)
    summed = b.respec(ROUTER, normalise=lambda old: "none" if old == "sum" else "sum")
    yield weighed("experts' weights normalised or not", summed, several)
    apart = f.router(lambda one: one.score != "sigmoid" and one.normalise != "sigmoid")
    yield weighed("experts scored by sigmoids", b.turn(ROUTER, parts.SigmoidScores), apart)
    yield weighed("experts weighed evenly", b.turn(ROUTER, parts.EvenWeights))


def products() -> Iterator[Bug]:
    def one(name: str, kind: type, fits: Fits = f.plain, claims: tuple[str, ...] = SEEN) -> Bug:
        return Bug(name, b.turn(PRODUCT, kind), fits, claims)

    yield one("heads split as [W, H]", wrong.Interleaved)
    yield one("heads joined without moving", wrong.JoinedWrongly)
    yield Bug("scale missing", rows.scaled(lambda model: rows.head_width(model) ** 0.5), f.plain)
    yield Bug("scale doubled", rows.scaled(lambda model: 2.0), f.plain)
    yield Bug("scale applied twice", rows.scaled(lambda model: rows.head_width(model) ** -0.5), f.plain)
    by_width = rows.scaled(lambda model: (rows.head_width(model) / model.spec.embed.width) ** 0.5)
    yield Bug("scale by the model's width", by_width, f.plain)
    halved = f.every(f.attention(f.halvable), lambda spec: spec.position_bias is None)
    yield Bug("twice the heads, half as wide", rows.twice_the_heads, halved)
    yield one("grouped heads repeated in turn", wrong.TilesHeads, f.attention(f.grouped))
    yield Bug("causal mask lost", b.respec(PRODUCT, mask=c.Bidirectional()), f.every(f.plain, f.causal), BEHAVES)
    yield Bug("causal mask added", b.respec(PRODUCT, mask=c.Causal()), f.every(f.plain, f.both_ways))
    yield one("causal mask one off", wrong.SeesOneAhead, f.every(f.plain, f.causal), BEHAVES)
    padded = f.every(f.plain, f.lacks(f.crossed))
    yield one("padding mask ignored", wrong.ForgetsPadding, padded, BEHAVES)
    yield one("mask added as zeros and ones", wrong.MasksSoftly, f.plain, BEHAVES)
    yield one("mask after the softmax", wrong.MasksAfterSoftmax, f.plain, BEHAVES)
    yield one("softmax over queries", wrong.SoftmaxOverQueries, f.plain, BEHAVES)
    yield Bug(
        "o left out", b.turn(ATTENTION, wrong.GivesValuesAsTheyCame), f.every(f.plain, f.square(f"{ATTENTION}.o"))
    )
    yield Bug("window lost", b.respec(PRODUCT, mask=c.Causal()), f.attention(f.windowed))
    wider = b.respec(PRODUCT, mask=lambda old: c.Causal(window=old.window + 1))
    yield Bug("window one too wide", wider, f.attention(f.windowed))
    yield Bug("windows in the other layers", rows.windows_in_the_other_layers, f.mixed_windows)
    yield Bug("soft cap of scores lost", b.respec(PRODUCT, softcap=None), f.attention(lambda a: a.softcap))
    yield Bug("rotation lost", b.respec(PRODUCT, rotary=None), f.attention(f.turned))
    several = f.attention(lambda a: a.rotary and a.rotary.width > 2)
    yield Bug("theta wrong", rows.rotary(theta=lambda old: 3 * old), several)
    other = rows.rotary(pairing=lambda old: "neighbours" if old == "halves" else "halves")
    yield Bug(
        "neighbours turned for halves, or the reverse", other, f.attention(lambda a: a.rotary and a.rotary.width > 2)
    )
    yield one("only queries turned", wrong.TurnsQueriesAlone, f.attention(f.turned))
    yield one("values turned too", wrong.TurnsValuesToo, f.attention(f.turned))
    yield one("turned backwards", wrong.TurnsBackwards, f.attention(f.turned))
    yield one("keys one position on", wrong.PositionsFromOneInKeys, f.attention(f.turned))
    yield Bug("the whole head turned", rows.the_whole_head_turned, f.attention(f.partly))
    yield Bug("rotary scaling lost", rows.rotary(scaling=None), f.attention(f.stretched))
    norm = f"{ATTENTION}.query_norm"
    yield Bug("norm of queries left out", b.gone(norm), f.every(f.plain, f.has(norm)))
    alike = f.attention(lambda a: f.normed(a) and (a.kv_heads == a.heads or not (a.joined or f.tabled(a))))
    yield Bug("norms of queries and keys swapped", b.swapped(norm, f"{ATTENTION}.key_norm"), alike)


def norms() -> Iterator[Bug]:
    layer, rms = f.stream_norm(c.LayerNorm), f.stream_norm(c.RMSNorm)
    biased = f.every(layer, lambda spec: f.component(spec, b.stream_norms(spec)[0]).bias)

    def first(name: str, kind: type, fits: Fits) -> Bug:
        return Bug(name, b.first_norm(lambda path: b.turn(path, kind)), fits)

    yield Bug("two norms swapped", b.two_norms_swapped, f.several_norms)
    yield Bug("bias of a norm lost", b.first_norm(b.bias_lost), biased)
    ones = b.first_norm(lambda path: b.altered(f"{path}.weight", lambda weight: weight * 0 + 1))
    yield Bug("weight of a norm lost", ones, lambda spec: b.stream_norms(spec))
    yield first("weight of a norm taken for 1 + weight", parts.OnePlusWeight, layer)
    flipped = b.first_norm(lambda path: b.respec(path, plus_one=lambda old: not old))
    yield Bug("weight of a norm for 1 + weight, or the reverse", flipped, rms)
    yield first("mean kept, as in RMSNorm", parts.MeanKept, layer)
    yield first("mean removed, as in LayerNorm", parts.MeanRemoved, rms)
    yield first("variance over D - 1", parts.UnbiasedVariance, layer)
    yield first("sum of squares for their mean", parts.RootOfSum, rms)
    yield Bug(
        "eps outside the root",
        b.first_norm(lambda path: b.turn(path, parts.EpsOutsideRoot)),
        f.every(layer, f.real_eps, f.lacks(f.crossed)),
        faint=True,
    )
    yield Bug("final norm left out", b.gone("norm"), f.has("norm"))
    yield Bug("final norm twice", b.turn("", ends.NormedTwice), f.has("norm"))
    for branch in ("attention", "mlp"):
        for at, to in MOVES:
            fits = f.every(f.serial, f.slot(branch, at, to))
            yield Bug(f"{branch}'s norm from {at} to {to}", b.norm_moved(branch, at, to), fits)
        where = f"blocks.1.{branch}.norm_branch"
        yield Bug(f"{branch}'s second norm left out", b.gone(where), f.has(where))


def activations() -> Iterator[Bug]:
    act, deep = f"{MLP}.act", "head.transform.act"
    yield Bug("the other GELU", b.other_gelu(), f.gelu)
    yield Bug("the other GELU in one layer", b.other_gelu(act), f.gelu)
    yield Bug("the other GELU in the head", b.other_gelu(deep), f.transforms)
    yield Bug("GELU by a sigmoid", b.acts_are(b.quick_gelu, act), f.gelu)
    used = f.lacks(f.experts(lambda one: one.clamp))
    yield Bug("ReLU", b.acts_are(F.relu, act), f.every(used, lambda spec: spec.blocks[1].mlp.body.activation != "relu"))
    yield Bug("SiLU for GELU", b.acts_are(F.silu, act), f.gelu)
    yield Bug("GELU for SiLU", b.acts_are(F.gelu, act), f.every(used, f.lacks(f.gelu)))
    yield Bug("ReLU in the head", b.acts_are(F.relu, deep), f.transforms)


def blocks() -> Iterator[Bug]:
    unsunk = f.either(f.lacks(f.plain), f.attention(lambda a: not a.sinks))
    yield Bug("two layers swapped", b.layers_swapped, f.every(f.alike_layers, unsunk))
    yield Bug("layers in the wrong order", b.turn("", ends.LayersBackwards), f.always)
    yield Bug("a layer skipped", b.turn("blocks.1", parts.Skipped), f.always)
    other = f.block(lambda one: not one.cross)
    yield Bug("branches in parallel, or one after the other", b.turn("blocks.1", parts.OtherOrder), other)
    yield Bug("branches in the other order", b.turn("blocks.1", parts.MlpFirst), f.every(f.serial, other))
    yield Bug("stream lost", b.turn("blocks.1", parts.NoStream), f.lacks(f.serial))
    for x in ("attention", "mlp"):
        yield Bug(f"{x}'s residual lost", b.turn(f"blocks.1.{x}", parts.NoResidual), f.serial)
    first = f.every(f.serial, lambda spec: spec.blocks[1].mlp.norm_input and not spec.blocks[1].mlp.normed)
    yield Bug("residual after the norm", b.turn("blocks.1.mlp", parts.AddsNormed), first)


LISTS = (
    projections, networks, products, planted_parts.attention, planted_parts.latent, planted_parts.experts,
    planted_ends.embeddings, norms, activations, blocks, planted_parts.blocks, planted_ends.heads,
)  # fmt: skip
BUGS = tuple(bug for one in LISTS for bug in one())
