"""Qwen1.5-MoE and Qwen2-MoE (Qwen team, 2024): small experts beside one that sees every token, behind a gate."""

from typing import Any

from lineage.components import Experts, FeedForward, Model, Router

from .llama import TINY as LLAMA
from .llama import llama
from .mixtral import with_experts

YEAR, PARENT = 2024, "llama"
PAPER = "Yang et al. 2024, Qwen2 Technical Report"


def qwen2_moe(
    *,
    bias: bool = True,
    output_bias: bool | None = False,
    activation: str = "silu",
    experts: int = 60,
    top_k: int = 4,
    expert_width: int = 1408,
    shared_width: int = 5632,
    normalise: bool = False,
    dense: tuple[int, ...] | None = None,
    sparse_step: int = 1,
    **arguments: Any,
) -> Model:
    """mlp_width: of dense layers: those of `dense` and those whose number, from 1, sparse_step does not divide.

    expert_width: of one expert; shared_width: of the one that sees every token.
    """
    base = llama(bias=bias, output_bias=output_bias, activation=activation, **arguments)
    router = Router(experts=experts, top_k=top_k, normalise="sum" if normalise else "none", rounded=True)
    shared = FeedForward(width=shared_width, activation=activation, bias=False, gated=True)
    body = Experts(router=router, width=expert_width, activation=activation, shared=shared, shared_gate=True)
    return with_experts(base, body, dense_layers(len(base.blocks), dense, sparse_step))


def dense_layers(layers: int, listed: tuple[int, ...] | None, step: int) -> frozenset[int]:
    """Those listed, and those whose number, from 1, the step does not divide."""
    return frozenset(i for i in range(layers) if i in (listed or ()) or (i + 1) % step)


TINY = LLAMA | {"experts": 4, "top_k": 2, "expert_width": 20, "shared_width": 28, "dense": (1,)}
SIZE = {"vocab": 151936, "theta": 1e6}
PUBLISHED = {
    "qwen1.5-moe-a2.7b": SIZE | {"width": 2048, "layers": 24, "heads": 16, "kv_heads": 16, "mlp_width": 5632},
    "qwen2-57b-a14b": SIZE
    | {"width": 3584, "layers": 28, "heads": 28, "kv_heads": 4, "mlp_width": 18944}
    | {"experts": 64, "top_k": 8, "expert_width": 2560, "shared_width": 20480},
}
