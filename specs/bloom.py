"""BLOOM (Le Scao et al., 2022): GPT-2 whose scores grow with the key's place (ALiBi), and a norm after the table."""

from dataclasses import replace

from lineage.components import Alibi, Attention, Block, Embed, LayerNorm, Model, each

from .gpt2 import gpt2

YEAR, PARENT = 2022, "gpt2"
PAPER = "Le Scao et al. 2022, BLOOM: A 176B-Parameter Open-Access Multilingual Language Model"


def bloom(
    *,
    vocab: int = 250880,
    width: int = 14336,
    layers: int = 70,
    heads: int = 112,
    eps: float = 1e-5,
    normed: bool = False,
    tied: bool = True,
) -> Model:
    """normed: branches are added to what they read, after the norm, and not to the stream."""
    base = gpt2(vocab=vocab, width=width, layers=layers, heads=heads, activation="gelu_cut", eps=eps, tied=tied)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        attention = replace(old.attention, body=replace(body, position_bias=Alibi()), normed=normed)
        return Block(attention=attention, mlp=replace(old.mlp, normed=normed))

    embed = Embed(vocab=vocab, width=width, norm=LayerNorm(eps=eps))
    return replace(base, embed=embed, blocks=each(block, base.blocks))


TINY = {"vocab": 101, "width": 60, "layers": 3, "heads": 12}  # slopes that no binary number is
PUBLISHED = {
    "bloom": {},
    "bloom-560m": {"width": 1024, "layers": 24, "heads": 16},
    "bloom-1b7": {"width": 2048, "layers": 24, "heads": 16},
    "bloom-7b1": {"width": 4096, "layers": 30, "heads": 32},
}
