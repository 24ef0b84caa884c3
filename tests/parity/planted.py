"""The list of bugs: what is planted, on which specs, which levels claim it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F

from lineage import components as c
from tests.parity import bugs as b
from tests.parity import wrong
from tests.parity.bugs import ATTENTION, MLP, Plant

Fits = Callable[[c.Model], bool]


@dataclass(frozen=True)
class Bug:
    """claims: levels that must fail. silent: levels that cannot see it and must pass. faint: on a faint stream.

    again: also in the further cases, whose spec makes a difference to it.
    """

    name: str
    plant: Plant
    fits: Fits
    claims: tuple[str, ...] = ("replay", "fp64")
    silent: tuple[str, ...] = ()
    faint: bool = False
    again: bool = False

    def __str__(self) -> str:
        return self.name


def always(spec: c.Model) -> bool:
    return True


def tied(spec: c.Model) -> bool:
    return spec.head is not None and spec.head.tied


def untied(spec: c.Model) -> bool:
    return spec.head is not None and not spec.head.tied


def has_head(spec: c.Model) -> bool:
    return spec.head is not None


def transforms(spec: c.Model) -> bool:
    return spec.head is not None and spec.head.transform is not None


def causal(spec: c.Model) -> bool:
    return isinstance(spec.blocks[1].attention.body.mask, c.Causal)


def both_ways(spec: c.Model) -> bool:
    return not causal(spec)


def norm_at(slot: str) -> Fits:
    return lambda spec: getattr(spec.blocks[1].attention, slot) is not None


def skips_padding(spec: c.Model) -> bool:
    return isinstance(spec.embed.positions.ids, c.SkipPadding)


def embeds_with_norm(spec: c.Model) -> bool:
    return spec.embed.norm is not None


def segmented(spec: c.Model) -> bool:
    return spec.embed.segments is not None and spec.embed.segments.count > 1


def final_norm(spec: c.Model) -> bool:
    return spec.norm is not None


def pooled(spec: c.Model) -> bool:
    return spec.pooler is not None


def next_sentence(spec: c.Model) -> bool:
    return spec.next_sentence is not None


def real_eps(spec: c.Model) -> bool:
    """Not so small that it is lost in any variance."""
    return spec.blocks[1].attention.norm_input is not None or spec.blocks[1].attention.norm_sum.eps >= 1e-6


BEHAVES = ("replay", "fp64", "behaviour")

BUGS = (
    # projections
    *(Bug(f"{x} transposed", b.transposed(f"{ATTENTION}.{x}"), always) for x in "qkvo"),
    Bug("q and k swapped", b.exchanged("q", "k"), always),
    Bug("k and v swapped", b.exchanged("k", "v"), always),
    Bug("heads permuted in q", b.heads_rolled("q"), always),
    Bug("heads permuted in q, k, v, not in o", b.heads_rolled("q", "k", "v"), always),
    Bug("heads permuted in o", b.heads_rolled_in_o, always),
    Bug("rows of q interleaved", b.rows_interleaved, always),
    Bug("fused q, k, v cut head by head", b.fused(lambda x: x.transpose(0, 1).reshape(x.shape)), always),
    Bug("fused q, k, v taken for v, q, k", b.fused(lambda x: x.roll(1, 0)), always),
    *(Bug(f"bias of {x} lost", b.bias_lost(f"{ATTENTION}.{x}"), always) for x in "qvo"),
    Bug("bias of k lost", b.bias_lost(f"{ATTENTION}.k"), always, ("replay",), ("fp64", "fp32", "behaviour")),
    *(Bug(f"bias of {x} lost", b.bias_lost(f"{MLP}.{x}"), always) for x in ("up", "down")),
    *(Bug(f"one weight of {x} nudged", b.nudged(f"{ATTENTION}.{x}.weight"), always) for x in "qkvo"),
    *(Bug(f"one weight of {x} nudged", b.nudged(f"{MLP}.{x}.weight"), always) for x in ("up", "down")),
    Bug("one weight of the table nudged", b.table_nudged, always, again=True),
    # product
    Bug("heads split as [W, H]", b.product(wrong.Interleaved), always),
    Bug("heads joined without moving", b.product(wrong.JoinedWrongly), always),
    Bug("scale missing", b.scaled(lambda spec: b.head_width(spec) ** 0.5), always),
    Bug("scale doubled", b.scaled(lambda spec: 2.0), always),
    Bug("scale applied twice", b.scaled(lambda spec: b.head_width(spec) ** -0.5), always),
    Bug("scale by the model's width", b.scaled(lambda spec: (b.head_width(spec) / spec.embed.width) ** 0.5), always),
    Bug("twice the heads, half as wide", b.twice_the_heads, always),
    Bug("causal mask lost", b.mask_turned, causal, BEHAVES),
    Bug("causal mask added", b.mask_turned, both_ways),
    Bug("causal mask one off", b.product(wrong.SeesOneAhead), causal, BEHAVES),
    Bug("padding mask ignored", b.product(wrong.ForgetsPadding), always, BEHAVES),
    Bug("mask added as zeros and ones", b.product(wrong.MasksSoftly), always, BEHAVES),
    Bug("mask after the softmax", b.product(wrong.MasksAfterSoftmax), always, BEHAVES),
    Bug("softmax over queries", b.product(wrong.SoftmaxOverQueries), always, BEHAVES),
    Bug("o left out", lambda m: b.turn(m, ATTENTION, wrong.GivesValuesAsTheyCame), always),
    # embedding
    Bug("positions shifted by one", b.rows("embed.positions.weight", lambda x: x.roll(-1, 0)), always),
    Bug("two positions swapped", b.rows("embed.positions.weight", b.two_rows_swapped), always),
    Bug("tokens permuted", b.rows("embed.tokens.weight", lambda x: x.roll(1, 0)), always, again=True),
    Bug("token ids one off", lambda m: b.turn(m, "embed.tokens", wrong.OneTokenOff), always),
    Bug("tokens times the root of the width", lambda m: b.turn(m, "embed.tokens", wrong.ScaledByWidth), always),
    Bug("segments swapped", b.rows("embed.segments.weight", lambda x: x.roll(1, 0)), segmented),
    Bug("segment ids ignored", lambda m: b.turn(m, "embed", wrong.FirstSegmentOnly), segmented),
    Bug("segments left out", b.without_segments, segmented),
    Bug("embedding's norm left out", b.gone("embed.norm"), embeds_with_norm),
    Bug("embedding's norm before the sum", lambda m: b.turn(m, "embed", wrong.NormFirst), embeds_with_norm),
    Bug("positions count from the padding", lambda m: b.turn(m, "embed.positions", wrong.FromPad), skips_padding),
    Bug("positions count padding", lambda m: b.turn(m, "embed.positions", wrong.PadCounted), skips_padding, BEHAVES),
    Bug("positions from 0", b.positions_by_place, skips_padding),
    # norms
    Bug("two norms swapped", b.two_norms_swapped, always),
    Bug("bias of a norm lost", b.first_norm_loses("bias"), always),
    Bug("weight of a norm lost", b.first_norm_loses("weight"), always),
    Bug("weight of a norm taken for 1 + weight", b.first_norm(wrong.OnePlusWeight), always),
    Bug("mean kept, as in RMSNorm", b.first_norm(wrong.MeanKept), always),
    Bug("variance over D - 1", b.first_norm(wrong.UnbiasedVariance), always),
    Bug("eps of every norm 1e-5 more", b.eps_of(), always, faint=True),
    Bug("eps outside the root", b.eps_outside_root, real_eps, faint=True),
    Bug("final norm left out", b.gone("norm"), final_norm),
    Bug("final norm twice", lambda m: b.turn(m, "", wrong.NormedTwice), final_norm),
    *(
        Bug(f"{branch}'s norm from {at} to {to}", b.norm_moved(branch, to), norm_at(at))
        for branch in ("attention", "mlp")
        for at, to in (("norm_input", "norm_sum"), ("norm_sum", "norm_input"), ("norm_sum", "norm_branch"))
    ),
    # activations
    Bug("the other GELU", b.exact_for_tanh(), always),
    Bug("the other GELU in one layer", b.exact_for_tanh(f"{MLP}.act"), always),
    Bug("the other GELU in the head", b.exact_for_tanh("head.transform.act"), transforms),
    Bug("GELU by a sigmoid", b.acts_are(b.quick_gelu, f"{MLP}.act"), always),
    Bug("ReLU for GELU", b.acts_are(F.relu, f"{MLP}.act"), always),
    Bug("SiLU for GELU", b.acts_are(F.silu, f"{MLP}.act"), always),
    Bug("ReLU in the head", b.acts_are(F.relu, "head.transform.act"), transforms),
    # blocks
    Bug("two layers swapped", b.layers_swapped, always),
    Bug("layers in the wrong order", lambda m: b.turn(m, "", wrong.LayersBackwards), always),
    Bug("a layer skipped", lambda m: b.turn(m, "blocks.1", wrong.Skipped), always),
    Bug("branches in parallel", lambda m: b.turn(m, "blocks.1", wrong.Parallel), always),
    Bug("branches in the other order", lambda m: b.turn(m, "blocks.1", wrong.MlpFirst), always),
    *(
        Bug(f"{x}'s residual lost", lambda m, x=x: b.turn(m, f"blocks.1.{x}", wrong.NoResidual), always)
        for x in ("attention", "mlp")
    ),
    Bug("residual after the norm", lambda m: b.turn(m, "blocks.1.mlp", wrong.AddsNormed), norm_at("norm_input")),
    # heads
    Bug("tied head drifted from its table", b.own_head, tied),
    Bug("one weight of the head nudged", b.nudged("head.weight"), untied),
    Bug("head's bias lost", b.head_bias_lost, lambda spec: has_head(spec) and spec.head.bias),
    Bug("head divided by the root of the width", lambda m: b.turn(m, "head", wrong.ScaledHead), has_head),
    Bug("head's matrix transposed", b.transposed("head.transform.dense"), transforms),
    Bug("head's norm before its activation", lambda m: b.turn(m, "head.transform", wrong.ActAfterNorm), transforms),
    Bug("head's transform left out", b.gone("head.transform"), transforms),
    Bug("pooler without tanh", lambda m: b.turn(m, "pooler", wrong.NoTanh), pooled),
    Bug("pooler on the last token", lambda m: b.turn(m, "pooler", wrong.LastToken), pooled),
    Bug("next-sentence rows swapped", b.rows("next_sentence.weight", lambda x: x.roll(1, 0)), next_sentence),
)
