"""What blocks are made of, at random: norms, positions, attention, feed-forward networks.

What is drawn fits together by construction: a strategy that throws half of its models away is slow, and slow to shrink.
"""

from typing import Any

from hypothesis import strategies as st

from lineage import components as c
from lineage.feed_forward import NORMALISATIONS, SCORES

Draw = st.DrawFn
SIZES, FLAGS, POSITIVE = st.integers(1, 9), st.booleans(), st.floats(0.1, 1e6)
EPS, ACTIVATIONS = st.floats(0, 1), st.sampled_from(c.ACTIVATIONS)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


# Norms


def layer_norms(tables: int | None = None) -> st.SearchStrategy:
    """tables: of how many heads it may be."""
    affine = st.sampled_from([(True, True), (True, False), (False, False)])
    whole = st.builds(
        lambda eps, both, exact: c.LayerNorm(eps=eps, weight=both[0], bias=both[1], exact=exact), EPS, affine, FLAGS
    )
    return whole | st.builds(c.LayerNorm, eps=EPS, bias=st.just(False), tables=st.just(tables)) if tables else whole


RMS_NORMS = st.builds(c.RMSNorm, eps=EPS, plus_one=FLAGS, late=FLAGS) | st.builds(
    c.RMSNorm, eps=EPS, weight=st.just(False)
)
NORMS = layer_norms() | RMS_NORMS

# Positions

LINEAR = st.builds(c.Linear, factor=POSITIVE)
DYNAMIC = st.builds(c.Dynamic, factor=POSITIVE, length=SIZES)
BANDED = st.builds(c.Banded, factor=POSITIVE, low=POSITIVE, high=POSITIVE, length=SIZES)
YARN = st.builds(
    c.Yarn, factor=POSITIVE, length=SIZES, fast=POSITIVE, slow=POSITIVE, whole=FLAGS, attention=maybe(POSITIVE)
)


def long_ropes(pairs: int) -> st.SearchStrategy:
    factors = st.lists(POSITIVE, min_size=pairs, max_size=pairs).map(tuple)
    return st.builds(
        c.LongRope, short=factors, long=factors, length=SIZES, attention=POSITIVE, long_attention=POSITIVE
    )  # fmt: skip


@st.composite
def rotaries(draw: Draw, widest: int = 8) -> c.Rotary:
    width = 2 * draw(st.integers(1, widest // 2))
    scalings = LINEAR | BANDED | long_ropes(width // 2) | (DYNAMIC | YARN if width > 2 else LINEAR)
    return c.Rotary(
        theta=draw(st.floats(1.5, 1e6)),
        width=width,
        pairing=draw(st.sampled_from(["halves", "neighbours"])),
        scaling=draw(maybe(scalings)),
        rounded=draw(st.sampled_from(["table", "result", "both"])),
        length=draw(maybe(SIZES)),
    )


CONSECUTIVE = st.builds(c.Consecutive, offset=st.integers(0, 4))
SKIPS = st.builds(c.SkipPadding, pad=st.integers(0, 4))
MASKED = st.builds(c.SkipMasked, offset=st.integers(1, 4))
POSITIONS = st.builds(c.LearnedPositions, length=st.integers(6, 20), ids=CONSECUTIVE | SKIPS | MASKED)
SINUSOIDS = st.builds(
    c.Sinusoids, length=maybe(st.integers(6, 20)), apart=FLAGS, single=FLAGS, ids=CONSECUTIVE | SKIPS
)  # fmt: skip

# Attention

CAUSAL = st.builds(c.Causal, window=maybe(SIZES))
BIDIRECTIONAL = st.builds(c.Bidirectional, reach=maybe(SIZES))
CHUNKED = st.builds(c.Chunked, length=SIZES)
MASKS = CAUSAL | BIDIRECTIONAL | CHUNKED
ALIBI = st.builds(c.Alibi, scale=POSITIVE, rounded=FLAGS)
TEMPERATURES = st.builds(c.Temperature, scale=POSITIVE, length=POSITIVE)


DISENTANGLED = st.sampled_from([(True, True), (True, False), (False, True)]).flatmap(
    lambda both: st.builds(c.Disentangled, keys=st.just(both[0]), queries=st.just(both[1]), shared=FLAGS)
)


@st.composite
def distances(draw: Draw) -> c.Distances:
    span = draw(st.integers(2, 6))
    return c.Distances(span=span, reach=draw(maybe(st.integers(span // 2 + 2, 12))), norm=draw(maybe(NORMS)))


def relative_biases(heads: int = 3) -> st.SearchStrategy:
    return st.builds(
        c.RelativeBias, buckets=st.integers(4, 9), distance=st.integers(5, 30), heads=st.just(heads), both_ways=FLAGS
    )


@st.composite
def attentions(draw: Draw, heads: int | None = None, cross: bool = False, far: bool = False) -> c.Attention:
    """heads: how many there must be, where a bias of the whole model is added to their scores. far: with distances."""
    groups = draw(st.integers(1, 3)) if heads is None and not far else 1
    kv_heads, width = heads or draw(st.integers(1, 4)), draw(SIZES)
    joined = draw(FLAGS)
    norms = NORMS if joined else RMS_NORMS | layer_norms(groups * kv_heads)
    places: dict[str, Any] = {"mask": c.Bidirectional()} if cross or far else {
        "mask": draw(MASKS),
        "rotary": draw(maybe(rotaries(width))) if width > 1 else None,
        "temperature": draw(maybe(TEMPERATURES)),
        "position_bias": draw(maybe(ALIBI)) if heads is None else None,
    }  # fmt: skip
    return c.Attention(
        heads=groups * kv_heads,
        kv_heads=kv_heads,
        head_width=width,
        bias=draw(FLAGS),
        output_bias=draw(FLAGS),
        scale=None if far else draw(maybe(POSITIVE)),
        disentangled=draw(DISENTANGLED) if far else None,
        query_norm=draw(norms if joined else maybe(norms)),
        key_norm=draw(maybe(NORMS if joined else RMS_NORMS | layer_norms(kv_heads))),
        joined=joined,
        clip=draw(maybe(POSITIVE)),
        softcap=draw(maybe(POSITIVE)),
        sinks=draw(FLAGS),
        exact=draw(FLAGS),
        cross=cross,
        **places,
    )


@st.composite
def latent_attentions(draw: Draw) -> c.LatentAttention:
    small = draw(maybe(SIZES))
    return c.LatentAttention(
        heads=draw(SIZES),
        query_latent=small,
        latent=draw(SIZES),
        plain=draw(SIZES),
        value_width=draw(SIZES),
        rotary=draw(rotaries()),
        mask=draw(MASKS),
        query_norm=draw(NORMS) if small else None,
        latent_norm=draw(NORMS),
        bias=draw(FLAGS),
        scale=draw(maybe(POSITIVE)),
    )


# Feed-forward networks

FEED_FORWARDS = st.builds(c.FeedForward, width=SIZES, activation=ACTIVATIONS, bias=FLAGS, gated=FLAGS)
CLAMPS = st.builds(c.Clamp, limit=POSITIVE, slope=POSITIVE)


@st.composite
def groups(draw: Draw) -> tuple[c.Groups, int, int]:
    """Groups, how many experts there are in each, and how many a token may see."""
    count = draw(st.integers(1, 3))
    keep, pair = draw(st.integers(1, count)), draw(FLAGS)
    each = draw(st.integers(2 if pair else 1, 3))
    return c.Groups(count=count, keep=keep, pair=pair), each, draw(st.integers(1, keep * each))


@st.composite
def routers(draw: Draw) -> c.Router:
    score, grouped = draw(st.sampled_from(SCORES)), None
    top_k = draw(st.integers(1, 4))
    experts = draw(st.integers(top_k, 9))
    if score != "mixer" and draw(FLAGS):
        grouped, each, top_k = draw(groups())
        experts = grouped.count * each
    return c.Router(
        experts=experts,
        top_k=top_k,
        score=score,
        normalise=draw(st.sampled_from(NORMALISATIONS)),
        bias=draw(FLAGS),
        correction=score != "mixer" and draw(FLAGS),
        groups=grouped,
        scale=draw(POSITIVE),
        eps=draw(EPS),
        jitter=draw(EPS) if score == "mixer" else None,
        capacity=draw(maybe(SIZES)) if top_k == 1 else None,
        rounded=score != "mixer" and draw(FLAGS),
        exact=draw(FLAGS),
    )


@st.composite
def experts(draw: Draw) -> c.Experts:
    gated = draw(FLAGS)
    clamp, shared = draw(maybe(CLAMPS)) if gated else None, draw(maybe(FEED_FORWARDS))
    return c.Experts(
        router=draw(routers()),
        width=draw(SIZES),
        activation="silu" if clamp else draw(ACTIVATIONS),
        gated=gated,
        bias=draw(FLAGS),
        clamp=clamp,
        shared=shared,
        shared_gate=shared is not None and draw(FLAGS),
        early=draw(FLAGS),
    )
