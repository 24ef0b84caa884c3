"""Mixtral (Jiang et al., 2024): Mistral whose feed-forward network becomes eight experts, two of them a token."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from lineage.components import Experts, Model, Router

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
    blocks = [old if i in dense else replace(old, mlp=replace(old.mlp, body=body)) for i, old in enumerate(base.blocks)]
    return replace(base, blocks=tuple(blocks))


TINY = LLAMA | {"experts": 4, "top_k": 2}
PUBLISHED = {"mixtral": {}, "mixtral-8x22b": {"width": 6144, "layers": 56, "heads": 48, "mlp_width": 16384}}
