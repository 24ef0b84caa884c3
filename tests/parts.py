"""Components at random: for every kind of the vocabulary the values that it may have."""

from hypothesis import strategies as st

from lineage import components as c

SIZES = st.integers(1, 9)
NORMS = st.builds(c.LayerNorm, eps=st.floats(0, 1), bias=st.booleans())
ACTIVATIONS = st.sampled_from(c.ACTIVATIONS)
MASKS = st.sampled_from([c.Causal(), c.Bidirectional()])
SKIPS = st.builds(c.SkipPadding, pad=st.integers(0, 4))
IDS = st.just(c.Consecutive()) | SKIPS
POSITIONS = st.builds(c.LearnedPositions, length=st.integers(6, 20), ids=IDS)
SEGMENTS = st.builds(c.Segments, count=SIZES)
FEED_FORWARDS = st.builds(c.FeedForward, width=SIZES, activation=ACTIVATIONS, bias=st.booleans())
TRANSFORMS = st.builds(c.Transform, activation=ACTIVATIONS, norm=NORMS)
CLASSIFIERS = st.builds(c.Classifier, classes=SIZES)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


@st.composite
def attentions(draw: st.DrawFn) -> c.Attention:
    kv_heads = draw(SIZES)
    return c.Attention(
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_width=draw(SIZES),
        mask=draw(MASKS),
        bias=draw(st.booleans()),
        scale=draw(maybe(st.floats(0, 2))),
    )


def residuals(body: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        c.Residual, body=body, norm_input=maybe(NORMS), norm_branch=maybe(NORMS), norm_sum=maybe(NORMS)
    )  # fmt: skip


BLOCKS = st.builds(c.Block, attention=residuals(attentions()), mlp=residuals(FEED_FORWARDS))


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
    )


def heads(vocab: int) -> st.SearchStrategy:
    return st.builds(
        c.Head, vocab=st.just(vocab), tied=st.booleans(), bias=st.booleans(), transform=maybe(TRANSFORMS)
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
    c.LayerNorm: NORMS,
    c.Causal: st.just(c.Causal()),
    c.Bidirectional: st.just(c.Bidirectional()),
    c.Consecutive: st.just(c.Consecutive()),
    c.SkipPadding: SKIPS,
    c.LearnedPositions: POSITIONS,
    c.Segments: SEGMENTS,
    c.Embed: embeds(),
    c.Attention: attentions(),
    c.FeedForward: FEED_FORWARDS,
    c.Residual: residuals(attentions() | FEED_FORWARDS),
    c.Block: BLOCKS,
    c.Transform: TRANSFORMS,
    c.Head: heads(7),
    c.Pooler: st.just(c.Pooler()),
    c.Classifier: CLASSIFIERS,
    c.Model: models(),
}
"""Every kind has a line here: test_components holds the two together."""
