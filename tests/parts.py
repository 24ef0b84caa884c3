"""Components at random: for every kind of the vocabulary the values that it may have."""

from hypothesis import strategies as st

from lineage import components as c
from lineage.feed_forward import NORMALISATIONS, SCORES

SIZES = st.integers(1, 9)
LAYER_NORMS = st.builds(c.LayerNorm, eps=st.floats(0, 1), bias=st.booleans())
RMS_NORMS = st.builds(c.RMSNorm, eps=st.floats(0, 1), plus_one=st.booleans(), late=st.booleans())
NORMS = LAYER_NORMS | RMS_NORMS
ACTIVATIONS = st.sampled_from(c.ACTIVATIONS)
CAUSAL = st.builds(c.Causal, window=st.none() | SIZES)
MASKS = CAUSAL | st.just(c.Bidirectional())
SKIPS = st.builds(c.SkipPadding, pad=st.integers(0, 4))
IDS = st.just(c.Consecutive()) | SKIPS
POSITIONS = st.builds(c.LearnedPositions, length=st.integers(6, 20), ids=IDS)
SEGMENTS = st.builds(c.Segments, count=SIZES)
FEED_FORWARDS = st.builds(
    c.FeedForward, width=SIZES, activation=ACTIVATIONS, bias=st.booleans(), gated=st.booleans()
)  # fmt: skip
POSITIVE = st.floats(0.1, 1e6)
LINEAR = st.builds(c.Linear, factor=POSITIVE)
DYNAMIC = st.builds(c.Dynamic, factor=POSITIVE, length=SIZES)
BANDED = st.builds(c.Banded, factor=POSITIVE, low=POSITIVE, high=POSITIVE, length=SIZES)
YARN = st.builds(
    c.Yarn, factor=POSITIVE, length=SIZES, fast=POSITIVE, slow=POSITIVE, whole=st.booleans(),
    attention=st.none() | POSITIVE,
)  # fmt: skip
SCALINGS = LINEAR | DYNAMIC | BANDED | YARN
TRANSFORMS = st.builds(c.Transform, activation=ACTIVATIONS, norm=NORMS)
CLASSIFIERS = st.builds(c.Classifier, classes=SIZES)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


def rotaries(widest: int = 8) -> st.SearchStrategy:
    return st.builds(
        c.Rotary, theta=POSITIVE, width=st.integers(1, widest // 2).map(lambda half: 2 * half),
        pairing=st.sampled_from(["halves", "neighbours"]), scaling=maybe(SCALINGS),
    )  # fmt: skip


@st.composite
def routers(draw: st.DrawFn) -> c.Router:
    top_k = draw(st.integers(1, 4))
    return c.Router(
        experts=draw(st.integers(top_k, 9)),
        top_k=top_k,
        score=draw(st.sampled_from(SCORES)),
        normalise=draw(st.sampled_from(NORMALISATIONS)),
        rounded=draw(st.booleans()),
    )


EXPERTS = st.builds(c.Experts, router=routers(), width=SIZES, activation=ACTIVATIONS)


@st.composite
def attentions(draw: st.DrawFn) -> c.Attention:
    kv_heads, width = draw(SIZES), draw(SIZES)
    return c.Attention(
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_width=width,
        mask=draw(MASKS),
        bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        scale=draw(maybe(st.floats(0, 2))),
        rotary=draw(maybe(rotaries(width))) if width > 1 else None,
        query_norm=draw(maybe(NORMS)),
        key_norm=draw(maybe(NORMS)),
        softcap=draw(maybe(POSITIVE)),
    )


def residuals(body: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        c.Residual, body=body, norm_input=maybe(NORMS), norm_branch=maybe(NORMS), norm_sum=maybe(NORMS)
    )  # fmt: skip


BODIES = FEED_FORWARDS | EXPERTS


@st.composite
def blocks(draw: st.DrawFn) -> c.Block:
    attention, mlp = draw(residuals(attentions())), draw(residuals(BODIES))
    parallel = draw(st.booleans()) and not (attention.norm_sum or mlp.norm_sum)
    return c.Block(attention=attention, mlp=mlp, parallel=parallel)


BLOCKS = blocks()


@st.composite
def embeds(draw: st.DrawFn) -> c.Embed:
    vocab = draw(SIZES)
    return c.Embed(
        vocab=vocab,
        width=draw(SIZES),
        padding=draw(maybe(st.integers(0, vocab - 1))),
        positions=draw(maybe(POSITIONS)),
        segments=draw(maybe(SEGMENTS)),
        norm=draw(maybe(NORMS)),
        scale=draw(maybe(POSITIVE)),
    )


def heads(vocab: int) -> st.SearchStrategy:
    return st.builds(
        c.Head, vocab=st.just(vocab), tied=st.booleans(), bias=st.booleans(), transform=maybe(TRANSFORMS),
        softcap=maybe(POSITIVE),
    )  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> c.Model:
    embed = draw(embeds())
    runs = draw(st.lists(st.tuples(BLOCKS, st.integers(1, 3)), min_size=1, max_size=3))
    pooler = draw(maybe(st.just(c.Pooler())))
    return c.Model(
        embed=embed,
        blocks=tuple(block for block, count in runs for _ in range(count)),
        norm=draw(maybe(NORMS)),
        head=draw(maybe(heads(embed.vocab))),
        pooler=pooler,
        next_sentence=draw(maybe(CLASSIFIERS)) if pooler else None,
    )


PARTS: dict[type[c.Component], st.SearchStrategy] = {
    c.LayerNorm: LAYER_NORMS,
    c.RMSNorm: RMS_NORMS,
    c.Linear: LINEAR,
    c.Dynamic: DYNAMIC,
    c.Banded: BANDED,
    c.Yarn: YARN,
    c.Rotary: rotaries(),
    c.Router: routers(),
    c.Experts: EXPERTS,
    c.Causal: CAUSAL,
    c.Bidirectional: st.just(c.Bidirectional()),
    c.Consecutive: st.just(c.Consecutive()),
    c.SkipPadding: SKIPS,
    c.LearnedPositions: POSITIONS,
    c.Segments: SEGMENTS,
    c.Embed: embeds(),
    c.Attention: attentions(),
    c.FeedForward: FEED_FORWARDS,
    c.Residual: residuals(attentions() | BODIES),
    c.Block: BLOCKS,
    c.Transform: TRANSFORMS,
    c.Head: heads(7),
    c.Pooler: st.just(c.Pooler()),
    c.Classifier: CLASSIFIERS,
    c.Model: models(),
}
"""Every kind has a line here: test_components holds the two together."""
