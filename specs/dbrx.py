"""DBRX (Databricks, 2024): sixteen experts, four of them a token, LayerNorm, clipped queries, keys and values."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Experts, LayerNorm, Model, each

from .mixtral import TINY as MIXTRAL
from .mixtral import mixtral

YEAR, PARENT = 2024, "mixtral"
PAPER = "Mosaic Research Team 2024, Introducing DBRX: A New State-of-the-Art Open LLM"
NORM = LayerNorm(eps=1e-5, bias=False)


def dbrx(
    *,
    vocab: int = 100352,
    width: int = 6144,
    layers: int = 40,
    heads: int = 48,
    mlp_width: int = 10752,
    experts: int = 16,
    top_k: int = 4,
    theta: float = 500000.0,
    clip: float | None = 8.0,
    **arguments: Any,
) -> Model:
    """mlp_width: of one expert. clip: queries, keys and values are kept within it."""
    base = mixtral(
        vocab=vocab, width=width, layers=layers, heads=heads, mlp_width=mlp_width, experts=experts, top_k=top_k,
        theta=theta, **arguments,
    )  # fmt: skip

    def block(old: Block) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, Attention)
        assert isinstance(mlp, Experts)
        mlp = replace(mlp, router=replace(mlp.router, rounded=True))
        return Block(
            attention=replace(old.attention, norm_input=NORM, body=replace(attention, clip=clip)),
            mlp=replace(old.mlp, norm_input=NORM, body=mlp),
        )

    return replace(base, blocks=each(block, base.blocks), norm=NORM)


TINY = MIXTRAL | {"clip": 0.8, "theta": 500.0}
PUBLISHED: dict[str, dict[str, Any]] = {"dbrx": {}}
