"""OLMoE (Muennighoff et al., 2024): 64 small experts, and norms on all heads' queries and keys at once."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Experts, Model, RMSNorm, each

from .mixtral import TINY as MIXTRAL
from .mixtral import mixtral

YEAR, PARENT = 2024, "mixtral"
PAPER = "Muennighoff et al. 2024, OLMoE: Open Mixture-of-Experts Language Models"


def olmoe(
    *,
    vocab: int = 50304,
    width: int = 2048,
    layers: int = 16,
    heads: int = 16,
    kv_heads: int | None = None,
    mlp_width: int = 1024,
    experts: int = 64,
    top_k: int = 8,
    normalise: bool = False,
    eps: float = 1e-5,
    theta: float = 10000.0,
    padding: int | None = 1,
    clip: float | None = None,
    **arguments: Any,
) -> Model:
    """mlp_width: of one expert. clip: queries, keys and values are kept within it."""
    base = mixtral(
        vocab=vocab, width=width, layers=layers, heads=heads, kv_heads=kv_heads, mlp_width=mlp_width, experts=experts,
        top_k=top_k, normalise=normalise, eps=eps, theta=theta, padding=padding, **arguments,
    )  # fmt: skip
    norm = RMSNorm(eps=eps)

    def block(old: Block) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, Attention)
        assert isinstance(mlp, Experts)
        attention = replace(attention, query_norm=norm, key_norm=norm, joined=True, clip=clip)
        mlp = replace(mlp, router=replace(mlp.router, rounded=True))
        return replace(old, attention=replace(old.attention, body=attention), mlp=replace(old.mlp, body=mlp))

    return replace(base, blocks=each(block, base.blocks))


TINY = MIXTRAL | {"clip": 1.0}
PUBLISHED: dict[str, dict[str, Any]] = {"olmoe": {}}
