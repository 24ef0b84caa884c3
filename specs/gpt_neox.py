"""GPT-NeoX (Black et al., 2022): GPT-2 with rotary positions on part of each head, and both branches side by side."""

from dataclasses import replace

from lineage.components import Attention, Block, Embed, Head, LayerNorm, Model, Rotary, Scaling, each

from .gpt2 import gpt2

YEAR, PARENT = 2022, "gpt2"
PAPER = "Black et al. 2022, GPT-NeoX-20B: An Open-Source Autoregressive Language Model"


def gpt_neox(
    *,
    vocab: int = 50432,
    width: int = 6144,
    layers: int = 44,
    heads: int = 64,
    mlp_width: int = 24576,
    activation: str = "gelu",
    eps: float = 1e-5,
    theta: float = 10000.0,
    scaling: Scaling | None = None,
    share: float = 0.25,
    parallel: bool = True,
    bias: bool = True,
    tied: bool = False,
) -> Model:
    """share: of each head's channels, that is turned."""
    base = gpt2(
        vocab=vocab, width=width, layers=layers, heads=heads, mlp_width=mlp_width, activation=activation, eps=eps
    )

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        rotary = Rotary(theta=theta, width=int(body.head_width * share), scaling=scaling)
        body = replace(body, rotary=rotary, bias=bias, output_bias=bias)
        return replace(old, attention=replace(old.attention, body=body), parallel=parallel)

    return Model(
        embed=Embed(vocab=vocab, width=width),
        blocks=each(block, base.blocks),
        norm=LayerNorm(eps=eps),
        head=Head(vocab=vocab, tied=tied),
    )


TINY = {"vocab": 101, "width": 48, "layers": 3, "heads": 6, "mlp_width": 40, "share": 0.5}
PUBLISHED = {
    "gpt_neox": {},
    "pythia-70m": {"vocab": 50304, "width": 512, "layers": 6, "heads": 8, "mlp_width": 2048},
    "pythia-1.4b": {"vocab": 50304, "width": 2048, "layers": 24, "heads": 16, "mlp_width": 8192},
}
