"""Small models of the vocabulary alone: together with the families they use every component and every field.

Each says something that is seen on LONGEST tokens: a window or a chunk is shorter, a length that changes what longer
calls do lies one below it.
"""

from dataclasses import replace
from typing import Any

from lineage import components as c

LONGEST = 25
RMS, LAYER = c.RMSNorm(eps=1e-3), c.LayerNorm(eps=1e-3)
ROTARY = c.Rotary(theta=100.0, width=6)


def attention(**changes: Any) -> c.Attention:
    usual = {"heads": 4, "kv_heads": 2, "head_width": 6, "mask": c.Causal(), "bias": False, "output_bias": False}
    return c.Attention(**(usual | changes))


def dense(width: int = 10, **changes: Any) -> c.FeedForward:
    return c.FeedForward(**({"width": width, "activation": "silu", "bias": False, "gated": True} | changes))


def experts(router: dict[str, Any], **changes: Any) -> c.Experts:
    usual = {"width": 7, "activation": "silu", "router": c.Router(**({"experts": 4, "top_k": 2} | router))}
    return c.Experts(**(usual | changes))


def block(first: Any = None, second: Any = None, norm: c.Norm = RMS, **changes: Any) -> c.Block:
    """Pre-normed; changes to a branch by its name, of the block otherwise."""
    branches: dict[str, Any] = {"attention": first or attention(rotary=ROTARY), "mlp": second or dense()}
    residuals = {
        name: c.Residual(**({"body": part, "norm_input": norm} | changes.pop(name, {})))
        for name, part in branches.items()
    }
    return c.Block(**residuals, **changes)


def model(*blocks: c.Block, **changes: Any) -> c.Model:
    usual = {"embed": c.Embed(vocab=29, width=12), "norm": RMS, "head": c.Head(vocab=29, tied=False)}
    return c.Model(blocks=blocks, **(usual | changes))


def bloom_like() -> c.Model:
    """ALiBi over heads that are no power of two, a residual after the norm; branches on one norm, queries clipped."""
    alibi = attention(heads=11, kv_heads=11, head_width=2, position_bias=c.Alibi(scale=0.7), bias=True, clip=1.5)
    grouped = {"heads": 12, "kv_heads": 6, "head_width": 2}
    twice = attention(**grouped, position_bias=c.Alibi(), softcap=2.0, scale=0.6, query_norm=LAYER, clip=1.5)
    return model(
        block(alibi, norm=LAYER, attention={"normed": True}, mlp={"normed": True}),
        block(twice, attention={"norm_input": None}, mlp={"norm_input": None}, parallel=True, norm_input=LAYER),
        embed=c.Embed(vocab=29, width=12, norm=LAYER),
        head=c.Head(vocab=29, tied=True, scale=0.3),
    )


def latent(query_latent: int | None, **router: Any) -> c.Model:
    """Attention over latents; experts in groups beside a shared one."""
    body = c.LatentAttention(
        heads=4, query_latent=query_latent, latent=10, plain=4, value_width=5, mask=c.Causal(), latent_norm=RMS,
        rotary=replace(ROTARY, pairing="neighbours"), query_norm=RMS if query_latent else None,
        bias=query_latent is not None, scale=None if query_latent else 0.5,
    )  # fmt: skip
    grouped = {"experts": 8, "top_k": 3} | router
    return model(block(body), block(body, experts(grouped, shared=dense(9))))


def chunked() -> c.Model:
    """Chunks with norms that have no weight, queries that grow hotter; weights that enter an expert."""
    bare = c.RMSNorm(eps=0.01, weight=False)
    near = attention(mask=c.Chunked(length=7), rotary=ROTARY, query_norm=bare, key_norm=bare)
    far = attention(temperature=c.Temperature(scale=0.4, length=8.0))
    early = experts({"score": "none", "normalise": "sigmoid"}, shared=dense(9), early=True)
    return model(block(near, early), block(far, scale_of(0.6)), norm=c.LayerNorm(eps=1e-3, weight=False, bias=False))


def scale_of(slope: float) -> c.Experts:
    """Experts without a gate, scaled as their router says."""
    return experts({"score": "sigmoid", "scale": slope, "eps": 0.2, "exact": True}, gated=False, activation="relu2")


def sinks() -> c.Model:
    """Sinks, windows, a stretched rotation; experts whose gate is clamped, with biases."""
    yarn = c.Yarn(factor=4.0, length=LONGEST, fast=3.0, slow=0.5, whole=False)
    sunk = attention(mask=c.Causal(window=6), sinks=True, bias=True, rotary=replace(ROTARY, scaling=yarn))
    clamped = {"clamp": c.Clamp(limit=1.2, slope=1.7), "bias": True}
    rated = experts({"score": "none", "normalise": "softmax", "bias": True}, **clamped)
    return model(block(sunk, rated), block(attention(sinks=True, softcap=2.0), experts({}, **clamped)))


def mixed() -> c.Model:
    """A router that takes one expert after the other, factors of long texts, a shared expert behind a gate."""
    factors = c.LongRope(
        short=(1.0, 1.5, 2.0), long=(2.0, 4.0, 8.0), length=LONGEST - 1, attention=1.1, long_attention=1.3
    )
    long = attention(rotary=replace(ROTARY, scaling=factors, length=LONGEST), exact=True)
    mixer = experts({"score": "mixer", "normalise": "none", "jitter": 0.3})
    gated = experts({}, shared=dense(9, bias=True), shared_gate=True)
    return model(block(long, mixer), block(None, gated))


def joined() -> c.Model:
    """Norms over all heads at once, and norms of which each head has its own; scaled branches."""
    tables = {"query_norm": c.LayerNorm(eps=1e-3, bias=False, tables=4)}
    tables |= {"key_norm": c.LayerNorm(eps=1e-3, bias=False, tables=2)}
    whole = attention(rotary=ROTARY, query_norm=RMS, key_norm=RMS, joined=True, clip=1.5)
    scaled = {name: {"scale": 0.4} for name in ("attention", "mlp")}
    return model(block(whole, **scaled), block(attention(**tables), parallel=True), head=c.Head(vocab=29, tied=True))


def factorised() -> c.Model:
    """A narrow table widened, one block that runs twice (ALBERT); a head that narrows again."""
    norms = {"norm_input": None, "norm_sum": LAYER}
    both = attention(mask=c.Bidirectional(), bias=True, output_bias=True)
    shared = block(both, dense(gated=False, activation="gelu_new", bias=True), attention=norms, mlp=norms)
    embed = c.Embed(
        vocab=29, width=8, padding=3, positions=c.LearnedPositions(length=LONGEST), segments=c.Segments(count=2),
        norm=LAYER, projection=c.Projection(width=12, bias=True),
    )  # fmt: skip
    head = c.Head(vocab=29, tied=True, bias=True, transform=c.Transform(activation="gelu", norm=LAYER, width=8))
    return model(shared, block(both), embed=embed, head=head, order=(0, 0, 1), norm=None)


def projected() -> c.Model:
    """Projections at both ends (OPT); position ids that count what the mask keeps; experts that fill up."""
    ids = c.SkipMasked(offset=2)
    embed = c.Embed(
        vocab=29, width=8, positions=c.LearnedPositions(length=LONGEST + 2, ids=ids), scale=1.7, early=True,
        projection=c.Projection(width=12, bias=False),
    )  # fmt: skip
    narrow = c.Projection(width=8, bias=False)
    head = c.Head(vocab=29, tied=True, bias=True, projection=narrow, scale=0.6, early=True)
    full = experts({"top_k": 1, "capacity": 5, "normalise": "none"})
    return model(block(attention(), full), embed=embed, head=head)


def encoded() -> c.Model:
    """Encoder and decoder with one table and learned biases of distances (T5); then the one of sinusoids (2017)."""
    seen = attention(mask=c.Bidirectional(), kv_heads=4)
    bias = c.RelativeBias(buckets=16, distance=16, heads=4, both_ways=True)
    embed = c.Embed(vocab=29, width=12, scale=2.0)
    encoder = model(block(seen, dense(activation="gelu_tanh")), embed=embed, position_bias=bias, head=None)
    cross = c.Residual(body=replace(seen, cross=True), norm_input=RMS)
    return model(
        block(attention(kv_heads=4), cross=cross), encoder=encoder, embed=replace(embed, tied=True, scale=None),
        position_bias=replace(bias, both_ways=False), head=c.Head(vocab=29, tied=True),
    )  # fmt: skip


def classic(source: c.Sinusoids, target: c.Sinusoids) -> c.Model:
    """The model of 2017, its sources near-sighted."""
    norms = {"norm_input": None, "norm_sum": LAYER}
    near, mlp = attention(mask=c.Bidirectional(reach=4)), dense(gated=False, activation="relu")
    cross = c.Residual(body=attention(mask=c.Bidirectional(), cross=True, key_norm=RMS), norm_sum=LAYER)
    encoder = model(
        block(near, mlp, attention=norms, mlp=norms), norm=None, head=None,
        embed=c.Embed(vocab=31, width=12, positions=source),
    )  # fmt: skip
    return model(
        block(attention(), mlp, attention=norms, mlp=norms, cross=cross), norm=None, encoder=encoder,
        embed=c.Embed(vocab=29, width=12, positions=target),
    )  # fmt: skip


def entangled(reach: int | None, near: bool = False, **changes: Any) -> c.Model:
    """Scores that know distances (DeBERTa); near: a convolution after the first block."""
    grouped = {"mask": c.Bidirectional(), "kv_heads": 4, "bias": True, "disentangled": c.Disentangled(**changes)}
    table = c.Distances(span=6, reach=reach, norm=LAYER if near else None)
    convolution = c.Convolution(kernel=3, activation="gelu", norm=LAYER, groups=2) if near else None
    return model(block(attention(**grouped)), block(attention(**grouped)), distances=table, convolution=convolution)


def scored(task: str, reads: str, count: int = 3, **changes: Any) -> c.Model:
    """An encoder with a head that scores texts or tokens."""
    seen = attention(mask=c.Bidirectional(reach=4))
    classifier = c.Classifier(classes=count, task=task, reads=reads, **changes)
    pooler = c.Pooler() if reads == "pooled" else None
    return model(block(seen), head=None, pooler=pooler, classifier=classifier)


SPECIMENS = {
    "alibi": bloom_like(),
    "latent": latent(
        6, score="sigmoid", correction=True, groups=c.Groups(count=4, keep=2, pair=True), scale=1.8, eps=0.1
    ),
    "latent without a query's": latent(None, groups=c.Groups(count=4, keep=2), normalise="none", scale=1.8),
    "chunked": chunked(),
    "sinks": sinks(),
    "mixed": mixed(),
    "joined": joined(),
    "factorised": factorised(),
    "projected": projected(),
    "encoded": encoded(),
    "classes of a text": scored("text", "mean", transform=c.Transform(activation="tanh", norm=LAYER, width=7)),
    "a text among others": scored("choice", "start", 1),
    "classes of tokens": scored("tokens", "each", transform=c.Transform(activation="gelu", bias=False)),
    "entangled": entangled(20, near=True),
    "entangled apart": entangled(None, shared=False),
    "an answer's ends": scored("span", "each", 2),
    "sinusoids": classic(c.Sinusoids(apart=True), c.Sinusoids(single=False)),
    "closed sinusoids": classic(
        c.Sinusoids(length=LONGEST + 3, closed=True, ids=c.SkipPadding(pad=2)),
        c.Sinusoids(length=LONGEST, closed=True, apart=True, single=False),
    ),
}
