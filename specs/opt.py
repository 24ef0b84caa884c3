"""OPT (Zhang et al., 2022): GPT-2 with ReLU, and positions that count what the attention mask keeps, from 2 on."""

from dataclasses import replace

from lineage.components import (
    Attention,
    Block,
    Embed,
    FeedForward,
    Head,
    LayerNorm,
    LearnedPositions,
    Model,
    Projection,
    Residual,
    SkipMasked,
    each,
)

from .gpt2 import gpt2

YEAR, PARENT = 2022, "gpt2"
PAPER = "Zhang et al. 2022, OPT: Open Pre-trained Transformer Language Models"


def opt(
    *,
    vocab: int = 50272,
    context: int = 2048,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int = 3072,
    activation: str = "relu",
    embed_width: int | None = None,
    pre_norm: bool = True,
    bare: bool = False,
    bias: bool = True,
    affine: bool = True,
    padding: int | None = 1,
    tied: bool = True,
) -> Model:
    """embed_width: of the token table; None is width. pre_norm: else norms follow the sums, and none the last (350m).

    bare: no norm before the head. affine: norms have weight and bias.
    """
    base = gpt2(
        vocab=vocab, width=width, layers=layers, heads=heads, mlp_width=mlp_width, activation=activation, tied=tied
    )
    norm = LayerNorm(eps=1e-5, weight=affine, bias=affine)
    before, after = (norm, None) if pre_norm else (None, norm)
    inner = embed_width or width

    def block(old: Block) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, Attention)
        assert isinstance(mlp, FeedForward)
        bodies = (replace(attention, bias=bias, output_bias=bias, early=True), replace(mlp, bias=bias))
        first, second = (Residual(body=body, norm_input=before, norm_sum=after) for body in bodies)
        return Block(attention=first, mlp=second)

    table, narrow = (None, None) if inner == width else (Projection(width=w, bias=False) for w in (width, inner))
    return Model(
        embed=Embed(
            vocab=vocab,
            width=inner,
            padding=padding,
            positions=LearnedPositions(length=context + 2, ids=SkipMasked(offset=2)),
            projection=table,
            early=table is not None,
        ),
        blocks=each(block, base.blocks),
        norm=None if bare else before,
        head=Head(vocab=vocab, tied=tied, projection=narrow),
    )


TINY = {"vocab": 101, "context": 160, "width": 24, "layers": 3, "heads": 3, "mlp_width": 40}
PUBLISHED = {
    "opt": {},
    "opt-350m": {
        "width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096, "embed_width": 512, "pre_norm": False,
    },
    "opt-1.3b": {"width": 2048, "layers": 24, "heads": 32, "mlp_width": 8192},
    "opt-6.7b": {"width": 4096, "layers": 32, "heads": 32, "mlp_width": 16384},
    "opt-66b": {"width": 9216, "layers": 64, "heads": 72, "mlp_width": 36864},
}  # fmt: skip
