"""Bugs of both ends of a model: see `planted`."""

from collections.abc import Iterator

from lineage import components as c
from tests.parity import bugs as b
from tests.parity import fits as f
from tests.parity import wrong_ends as ends
from tests.parity.bugs import BEHAVES, Bug


def embeddings() -> Iterator[Bug]:
    tokens = "embed.tokens.weight"
    yield Bug("one weight of the table nudged", b.table_nudged, f.own_table)
    yield Bug("tokens permuted", b.altered(tokens, lambda x: x.roll(1, 0)), f.own_table)
    bare = f.every(f.own_table, lambda spec: spec.embed.scale is None)
    yield Bug("token ids one off", b.turn("embed.tokens", ends.OneTokenOff), bare)
    yield Bug("tokens times the root of the width", b.turn("embed.tokens", ends.ScaledByWidth), bare)
    scaled = lambda spec: spec.embed.scale not in (None, 1.0)  # noqa: E731
    yield Bug("tokens' scale lost", b.respec("embed", scale=None, rounded=True), scaled)
    learned = f.positions(c.LearnedPositions)
    yield Bug("positions shifted by one", b.altered("embed.positions.weight", lambda x: x.roll(-1, 0)), learned)
    yield Bug("two positions swapped", b.altered("embed.positions.weight", b.two_rows_swapped), learned)
    sines = f.positions(c.Sinusoids)
    yield Bug("sines from place one", b.turn("embed.positions", ends.SinesOneLater), sines)
    yield Bug("sines and cosines the other way", b.turn("embed.positions", ends.SinesTheOtherWay), sines)
    yield Bug("segments swapped", b.altered("embed.segments.weight", lambda x: x.roll(1, 0)), f.segmented)
    yield Bug("segment ids ignored", b.turn("embed", ends.FirstSegmentOnly), f.segmented)
    yield Bug("segments left out", b.changed("embed", "segments", None), f.segmented)
    yield Bug("embedding's norm left out", b.gone("embed.norm"), f.has("embed.norm"))
    summed = f.every(f.own_table, f.normed_sum, lambda spec: spec.embed.scale is None)
    yield Bug("embedding's norm before the sum", b.turn("embed", ends.NormFirst), summed)
    skips, masked = f.ids(c.SkipPadding), f.ids(c.SkipMasked)
    yield Bug("positions one too early", b.turn("embed.positions", ends.FromPad), f.either(skips, masked))
    counted = b.turn("embed.positions", ends.PadCounted)
    yield Bug("positions count padding", counted, skips, BEHAVES)
    yield Bug("positions count what the mask hides", counted, masked)
    yield Bug("positions from 0", b.positions_from_zero, f.either(skips, masked))
    projected = lambda spec: spec.embed.early and spec.embed.positions  # noqa: E731
    yield Bug("positions added before the projection", b.turn("embed", ends.AddsBeforeProjection), projected)


def heads() -> Iterator[Bug]:
    tied = f.head(lambda one: one.tied)
    yield Bug("tied head drifted from its table", b.own_head, f.every(f.own_table, tied))
    yield Bug("one weight of the head nudged", b.nudged("head.weight"), f.has("head.weight"))
    yield Bug("head's bias lost", b.bias_lost("head"), f.has("head.bias"))
    plain = f.head(lambda one: not (one.projection and one.projection.bias))
    yield Bug("head divided by the root of the width", b.turn("head", ends.ScaledHead), plain)
    scaled = f.head(lambda one: one.scale)
    yield Bug("scale of logits lost", b.scale_lost, scaled)
    yield Bug("scale of logits applied twice", b.turn("head", ends.ScalesTwice), scaled)
    yield Bug("soft cap of logits lost", b.changed("head", "softcap", None), f.head(lambda one: one.softcap))
    yield Bug("head's matrix transposed", b.turned_matrix("head.transform.dense"), f.square("head.transform.dense"))
    yield Bug("head's norm before its activation", b.turn("head.transform", ends.ActAfterNorm), f.transforms)
    same = f.head(lambda one: one.transform and not one.transform.width)
    yield Bug("head's transform left out", b.gone("head.transform"), same)
    yield Bug("head's projection nudged", b.nudged("head.projection.dense.weight"), f.has("head.projection"))
    yield Bug("pooler without tanh", b.turn("pooler", ends.NoTanh), f.has("pooler"))
    yield Bug("pooler on the last token", b.turn("pooler", ends.LastToken), f.has("pooler"))
    rows = b.altered("next_sentence.weight", lambda x: x.roll(1, 0))
    yield Bug("next-sentence rows swapped", rows, f.has("next_sentence"))
