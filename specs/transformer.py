"""The Transformer (Vaswani et al., 2017): an encoder, and a decoder that attends to its result."""

from math import sqrt
from typing import Any

from lineage.components import (
    Attention,
    Bidirectional,
    Block,
    Causal,
    Consecutive,
    Embed,
    FeedForward,
    Head,
    LayerNorm,
    LearnedPositions,
    Mask,
    Model,
    Residual,
    Sinusoids,
    SkipPadding,
    head_width,
)

YEAR, PARENT = 2017, None
PAPER = "Vaswani et al. 2017, Attention Is All You Need"


def transformer(
    *,
    vocab: int = 37000,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    mlp_width: int = 2048,
    activation: str = "relu",
    eps: float = 1e-6,
    target_vocab: int | None = None,
    decoder_layers: int | None = None,
    decoder_heads: int | None = None,
    decoder_mlp_width: int | None = None,
    context: int | None = None,
    scaled: bool = True,
    shared: bool = True,
    tied: bool = True,
    bias: bool = False,
    padding: int | None = None,
    skipped: bool = False,
    apart: bool = False,
    closed: bool = False,
    single: bool = True,
    table: bool = False,
    early: bool = False,
) -> Model:
    """scaled: tokens × √width. shared: one table for both sides. bias: of the logits.

    skipped: positions skip padding, and have no end. table: positions are kept as a table, of `context` tokens. What is
    None of the decoder's is the encoder's; apart, closed, single: see Sinusoids; early: see Attention.
    """
    norm = LayerNorm(eps=eps)
    ids = SkipPadding(pad=padding) if skipped and padding is not None else Consecutive()
    rows = None if context is None or (skipped and not table) else context + ids.offset
    places: LearnedPositions | Sinusoids = Sinusoids(length=rows, apart=apart, closed=closed, single=single, ids=ids)
    places = LearnedPositions(length=rows, ids=ids) if table and rows is not None else places

    def attention(heads: int, mask: Mask, cross: bool = False) -> Residual:
        known: dict[str, Any] = {"heads": heads, "kv_heads": heads, "head_width": head_width(width, heads)}
        body = Attention(mask=mask, cross=cross, early=early, bias=True, output_bias=True, **known)
        return Residual(body=body, norm_sum=norm)

    def mlp(inner: int) -> Residual:
        return Residual(body=FeedForward(width=inner, activation=activation, bias=True), norm_sum=norm)

    def embed(size: int, tied: bool) -> Embed:
        scale = sqrt(width) if scaled else None
        known: dict[str, Any] = {"vocab": size, "width": width, "padding": padding, "positions": places}
        return Embed(**known, tied=tied, scale=scale, rounded=not scaled)

    own, inner, words = decoder_heads or heads, decoder_mlp_width or mlp_width, target_vocab or vocab
    encoder = Block(attention=attention(heads, Bidirectional()), mlp=mlp(mlp_width))
    across = attention(own, Bidirectional(), cross=True)
    decoder = Block(attention=attention(own, Causal()), cross=across, mlp=mlp(inner))
    return Model(
        encoder=Model(embed=embed(vocab, False), blocks=(encoder,) * layers),
        embed=embed(words, shared),
        blocks=(decoder,) * (decoder_layers or layers),
        head=Head(vocab=words, tied=tied, bias=bias, late=bias),
    )


TINY = {"vocab": 101, "width": 24, "layers": 2, "heads": 3, "mlp_width": 40, "padding": 3, "context": 160}
TINY |= {"decoder_layers": 3, "decoder_heads": 4, "decoder_mlp_width": 32, "target_vocab": 83, "shared": False}
OPUS = {"vocab": 58101, "context": 512, "activation": "silu", "eps": 1e-5, "bias": True, "padding": 58100}
OPUS |= {"apart": True, "decoder_layers": 6, "decoder_heads": 8, "decoder_mlp_width": 2048}
BIG: dict[str, object] = {"width": 1024, "heads": 16, "mlp_width": 4096}
WMT = BIG | {"mlp_width": 8192, "decoder_layers": 6, "decoder_heads": 16, "decoder_mlp_width": 4096, "context": 1024}
WMT |= {"vocab": 42024, "target_vocab": 42024, "eps": 1e-5, "padding": 1, "shared": False, "tied": False, "apart": True}
WMT |= {"skipped": True, "closed": True, "single": False, "early": True}
PUBLISHED = {"transformer": {}, "transformer-big": BIG, "opus-mt": OPUS, "wmt19-en-de": WMT}
