"""Mixtral (Jiang et al., 2024): Mistral whose feed-forward network becomes eight experts, two of them a token."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from lineage.components import Block, Experts, Model, Router, each

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Jiang et al. 2024, Mixtral of Experts"


def mixtral(
    *,
    vocab: int = 32000,
    kv_heads: int | None = 8,
    mlp_width: int = 14336,
    activation: str = "silu",
    experts: int = 8,
    top_k: int = 2,
    normalise: bool = True,
    eps: float = 1e-5,
    theta: float = 1e6,
    **arguments: Any,
) -> Model:
    """mlp_width: of one expert."""
    base = llama(vocab=vocab, kv_heads=kv_heads, mlp_width=mlp_width, eps=eps, theta=theta, **arguments)
    router = Router(experts=experts, top_k=top_k, normalise="sum" if normalise else "none")
    return with_experts(base, Experts(router=router, width=mlp_width, activation=activation))


def with_experts(base: Model, body: Experts, dense: Collection[int] = ()) -> Model:
    """The same model with experts for feed-forward networks, but for the layers `dense`."""

    def block(old: Block, plain: bool) -> Block:
        return old if plain else replace(old, mlp=replace(old.mlp, body=body))

    return replace(base, blocks=each(block, base.blocks, [i in dense for i in range(len(base.blocks))]))


TINY = LLAMA | {"experts": 4, "top_k": 2}
PUBLISHED = {"mixtral": {}, "mixtral-8x22b": {"width": 6144, "layers": 56, "heads": 48, "mlp_width": 16384}}
