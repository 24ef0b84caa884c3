"""Components at random: for every kind of the vocabulary the values that it may have."""

from hypothesis import strategies as st

from lineage import components as c
from lineage.heads import READS, TASKS
from tests.pieces import (
    ACTIVATIONS,
    ALIBI,
    BANDED,
    BIDIRECTIONAL,
    CAUSAL,
    CHUNKED,
    CLAMPS,
    CONSECUTIVE,
    DISENTANGLED,
    DYNAMIC,
    FEED_FORWARDS,
    FLAGS,
    LINEAR,
    MASKED,
    NORMS,
    POSITIONS,
    POSITIVE,
    RMS_NORMS,
    SINUSOIDS,
    SIZES,
    SKIPS,
    TEMPERATURES,
    YARN,
    attentions,
    distances,
    experts,
    groups,
    latent_attentions,
    layer_norms,
    long_ropes,
    maybe,
    relative_biases,
    rotaries,
    routers,
)

Draw = st.DrawFn

# Blocks


@st.composite
def residuals(draw: Draw, body: st.SearchStrategy, parallel: bool = False) -> c.Residual:
    before = draw(maybe(NORMS))
    return c.Residual(
        body=draw(body),
        norm_input=before,
        norm_branch=draw(maybe(NORMS)),
        norm_sum=None if parallel else draw(maybe(NORMS)),
        scale=draw(maybe(POSITIVE)),
        normed=before is not None and not parallel and draw(FLAGS),
    )


@st.composite
def blocks(draw: Draw, heads: int | None = None, cross: bool = False, far: bool = False) -> c.Block:
    parallel = not cross and draw(FLAGS)
    body = attentions() | latent_attentions() if heads is None and not far else attentions(heads, far=far)
    return c.Block(
        attention=draw(residuals(body, parallel)),
        mlp=draw(residuals(FEED_FORWARDS | experts(), parallel)),
        cross=draw(residuals(attentions(cross=True))) if cross else None,
        parallel=parallel,
        norm_input=draw(maybe(NORMS)) if parallel else None,
        stream_first=parallel and draw(FLAGS),
    )


# Both ends

SEGMENTS = st.builds(c.Segments, count=SIZES)
PROJECTIONS = st.builds(c.Projection, width=SIZES, bias=FLAGS)


def transforms(width: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(c.Transform, activation=ACTIVATIONS, norm=maybe(NORMS), width=width, bias=FLAGS)


@st.composite
def classifiers(draw: Draw, pooler: bool = True) -> c.Classifier:
    """pooler: whether there is one that it may read."""
    task = draw(st.sampled_from(list(TASKS)))
    texts = [reads for reads in READS if reads != "each" and (pooler or reads != "pooled")]
    return c.Classifier(
        classes=TASKS[task] or draw(SIZES),
        task=task,
        reads=draw(st.sampled_from(texts)) if task in ("text", "choice") else "each",
        transform=draw(maybe(transforms(maybe(SIZES)))),
    )


CONVOLUTIONS = st.builds(c.Convolution, kernel=st.sampled_from([1, 3, 5]), activation=ACTIVATIONS, norm=NORMS)
CLASSIFIERS = st.builds(c.Classifier, classes=SIZES)


@st.composite
def embeds(draw: Draw, encoder: c.Embed | None = None) -> c.Embed:
    """encoder: whose table it may share, and whose stream's width it has."""
    tied = encoder is not None and draw(FLAGS)
    vocab, width = (encoder.vocab, encoder.width) if encoder and tied else (draw(SIZES), draw(SIZES))
    projection = draw(maybe(PROJECTIONS))
    if encoder:
        projection = None if width == encoder.stream else c.Projection(width=encoder.stream, bias=draw(FLAGS))
    scale = draw(maybe(POSITIVE))
    return c.Embed(
        vocab=vocab,
        width=width,
        padding=draw(maybe(st.integers(0, vocab - 1))),
        positions=draw(maybe(POSITIONS | SINUSOIDS)),
        segments=draw(maybe(SEGMENTS)),
        norm=draw(maybe(NORMS)),
        scale=scale,
        rounded=scale is None or draw(FLAGS),
        projection=projection,
        early=projection is not None and draw(FLAGS),
        tied=tied,
    )


@st.composite
def heads(draw: Draw, embed: c.Embed) -> c.Head:
    """A head over this stream; tied, it meets the table in the table's width."""
    tied, kind = draw(FLAGS), draw(st.sampled_from(["transform", "projection", None]))
    narrow = embed.width != embed.stream
    if tied and narrow and kind is None:
        kind = "projection"
    width = st.just(embed.width) if tied and (narrow or kind == "projection") else SIZES
    usual = st.none() if not (tied and narrow) else width
    part = {"transform": transforms(usual if tied else maybe(width)), "projection": st.builds(
        c.Projection, width=width, bias=FLAGS)}  # fmt: skip
    bias, scale = draw(FLAGS), draw(maybe(POSITIVE))
    return c.Head(
        vocab=embed.vocab if tied else draw(SIZES),
        tied=tied,
        bias=bias,
        late=bias and draw(FLAGS),
        scale=scale,
        early=scale is not None and draw(FLAGS),
        softcap=draw(maybe(POSITIVE)),
        **({kind: draw(part[kind])} if kind else {}),
    )


@st.composite
def models(draw: Draw, encoder: bool = False) -> c.Model:
    """encoder: whether it is one, and so has no heads; else it may have one."""
    source = None if encoder or draw(st.integers(0, 3)) else draw(models(True))
    embed = draw(embeds(source and source.embed))
    bias = draw(maybe(relative_biases(draw(st.integers(1, 4)))))
    far = draw(maybe(distances()))
    each = blocks(bias and bias.heads, source is not None, far is not None)
    runs = draw(st.lists(st.tuples(each, st.integers(1, 3)), min_size=1, max_size=2))
    stack = tuple(block for block, count in runs for _ in range(count))
    pooler = None if encoder else draw(maybe(st.just(c.Pooler())))
    extra = draw(st.lists(st.integers(0, len(stack) - 1), min_size=1, max_size=3))
    return c.Model(
        encoder=source,
        embed=embed,
        blocks=stack,
        order=draw(st.sampled_from([None, (*extra, *range(len(stack)))])),
        position_bias=bias,
        distances=far,
        convolution=draw(maybe(CONVOLUTIONS)),
        norm=draw(maybe(NORMS)),
        head=None if encoder else draw(maybe(heads(embed))),
        pooler=pooler,
        next_sentence=draw(maybe(CLASSIFIERS)) if pooler else None,
        classifier=None if encoder else draw(maybe(classifiers(pooler is not None))),
    )


PARTS: dict[type[c.Component], st.SearchStrategy] = {
    c.LayerNorm: layer_norms(2),
    c.RMSNorm: RMS_NORMS,
    c.Linear: LINEAR,
    c.Dynamic: DYNAMIC,
    c.Banded: BANDED,
    c.Yarn: YARN,
    c.LongRope: long_ropes(2),
    c.Rotary: rotaries(),
    c.Consecutive: CONSECUTIVE,
    c.SkipPadding: SKIPS,
    c.SkipMasked: MASKED,
    c.LearnedPositions: POSITIONS,
    c.Sinusoids: SINUSOIDS,
    c.Causal: CAUSAL,
    c.Bidirectional: BIDIRECTIONAL,
    c.Chunked: CHUNKED,
    c.Alibi: ALIBI,
    c.RelativeBias: relative_biases(),
    c.Distances: distances(),
    c.Disentangled: DISENTANGLED,
    c.Convolution: CONVOLUTIONS,
    c.Temperature: TEMPERATURES,
    c.Attention: attentions() | attentions(cross=True),
    c.LatentAttention: latent_attentions(),
    c.FeedForward: FEED_FORWARDS,
    c.Clamp: CLAMPS,
    c.Groups: groups().map(lambda drawn: drawn[0]),
    c.Router: routers(),
    c.Experts: experts(),
    c.Residual: residuals(attentions() | latent_attentions() | FEED_FORWARDS | experts()),
    c.Block: blocks() | blocks(2, True),
    c.Segments: SEGMENTS,
    c.Projection: PROJECTIONS,
    c.Embed: embeds(),
    c.Transform: transforms(maybe(SIZES)),
    c.Head: embeds().flatmap(heads),
    c.Pooler: st.just(c.Pooler()),
    c.Classifier: classifiers(),
    c.Model: models(),
}
"""Every kind has a line here: test_components holds the two together."""
