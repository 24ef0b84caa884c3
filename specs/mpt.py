"""MPT (MosaicML, 2023): GPT-2 without a bias anywhere, whose scores grow with the key's place (ALiBi)."""

from dataclasses import replace

from lineage.components import Alibi, Attention, Block, Embed, FeedForward, LayerNorm, Model, Residual, each

from .gpt2 import gpt2

YEAR, PARENT = 2023, "gpt2"
PAPER = "MosaicML 2023, Introducing MPT-7B: A New Standard for Open-Source, Commercially Usable LLMs"


def mpt(
    *,
    vocab: int = 50432,
    width: int = 4096,
    layers: int = 32,
    heads: int = 32,
    eps: float = 1e-5,
    clip: float | None = None,
    scale: float | None = None,
    tied: bool = True,
) -> Model:
    """clip, scale: see Attention."""
    base = gpt2(vocab=vocab, width=width, layers=layers, heads=heads, activation="gelu", eps=eps, tied=tied)
    norm = LayerNorm(eps=eps, bias=False)

    def block(old: Block) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, Attention)
        assert isinstance(mlp, FeedForward)
        bias = Alibi(exact=True)
        attention = replace(attention, bias=False, output_bias=False, clip=clip, scale=scale, position_bias=bias)
        bodies = (attention, replace(mlp, bias=False))
        first, second = (Residual(body=body, norm_input=norm) for body in bodies)
        return Block(attention=first, mlp=second)

    return replace(base, embed=Embed(vocab=vocab, width=width), blocks=each(block, base.blocks), norm=norm)


TINY = {"vocab": 101, "width": 60, "layers": 3, "heads": 12}
PUBLISHED = {
    "mpt": {},
    "mpt-30b": {"width": 7168, "layers": 48, "heads": 64},
}
