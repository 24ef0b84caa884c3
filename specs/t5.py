"""T5 (Raffel et al., 2020): no biases, RMSNorm before the branches, learned numbers for distances."""

from typing import Any

from lineage.components import (
    Attention,
    Bidirectional,
    Block,
    Causal,
    Embed,
    FeedForward,
    Head,
    Mask,
    Model,
    RelativeBias,
    Residual,
    RMSNorm,
)

YEAR, PARENT = 2020, "transformer"
PAPER = "Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"


def t5(
    *,
    vocab: int = 32128,
    width: int = 512,
    layers: int = 6,
    heads: int = 8,
    head_size: int = 64,
    mlp_width: int = 2048,
    activation: str = "relu",
    gated: bool = False,
    eps: float = 1e-6,
    buckets: int = 32,
    distance: int = 128,
    decoder_layers: int | None = None,
    scaled: bool = True,
    tied: bool = True,
    shared: bool = True,
) -> Model:
    """scaled: what meets the head's table is divided by √width. shared: one table for both sides.

    decoder_layers: None is layers.
    """
    norm = RMSNorm(eps=eps)

    def attention(mask: Mask, cross: bool = False) -> Residual:
        sizes: dict[str, Any] = {"heads": heads, "kv_heads": heads, "head_width": head_size}
        body = Attention(mask=mask, scale=1.0, cross=cross, bias=False, output_bias=False, **sizes)
        return Residual(body=body, norm_input=norm)

    def bias(both_ways: bool) -> RelativeBias:
        return RelativeBias(buckets=buckets, distance=distance, heads=heads, both_ways=both_ways)

    body = FeedForward(width=mlp_width, activation=activation, bias=False, gated=gated)
    mlp, across = Residual(body=body, norm_input=norm), attention(Bidirectional(), cross=True)
    encoder = Block(attention=attention(Bidirectional()), mlp=mlp)
    decoder = Block(attention=attention(Causal()), cross=across, mlp=mlp)
    table = Embed(vocab=vocab, width=width)
    return Model(
        encoder=Model(embed=table, blocks=(encoder,) * layers, position_bias=bias(True), norm=norm),
        embed=Embed(vocab=vocab, width=width, tied=shared),
        blocks=(decoder,) * (decoder_layers or layers),
        position_bias=bias(False),
        norm=norm,
        head=Head(vocab=vocab, tied=tied, scale=width**-0.5 if scaled else None, early=scaled),
    )


TINY = {"vocab": 97, "width": 24, "layers": 2, "heads": 3, "head_size": 10, "mlp_width": 40, "decoder_layers": 3}
TINY |= {"buckets": 12, "distance": 50}
BASE: dict[str, object] = {"width": 768, "layers": 12, "heads": 12}
NEW: dict[str, object] = {"activation": "gelu_new", "gated": True, "scaled": False, "tied": False}
LATER: dict[str, dict[str, object]] = {  # sizes of 1.1, of Flan and of mT5
    "-small": {"layers": 8, "heads": 6, "mlp_width": 1024},
    "": BASE | {"mlp_width": 2048},
    "-large": {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 2816},
    "-xl": {"width": 2048, "layers": 24, "heads": 32, "mlp_width": 5120},
    "-xxl": {"width": 4096, "layers": 24, "heads": 64, "mlp_width": 10240},
}
PUBLISHED: dict[str, dict[str, object]] = {
    "t5-small": {},
    "t5": BASE | {"mlp_width": 3072},
    "t5-large": {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096},
    "t5-3b": {"width": 1024, "layers": 24, "heads": 32, "head_size": 128, "mlp_width": 16384},
    "t5-11b": {"width": 1024, "layers": 24, "heads": 128, "head_size": 128, "mlp_width": 65536},
    **{f"{name}{size}": NEW | given for name in ("t5-v1.1", "flan-t5") for size, given in LATER.items()},
    **{f"mt5{size}": NEW | {"vocab": 250112} | given for size, given in LATER.items()},
}
