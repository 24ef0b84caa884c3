"""Qwen3 with experts (Yang et al., 2025): 128 small ones, eight of them for each token."""

from typing import Any

from lineage.components import Experts, Model, Router

from .mixtral import with_experts
from .qwen2_moe import dense_layers
from .qwen3 import TINY as QWEN3
from .qwen3 import qwen3

YEAR, PARENT = 2025, "qwen3"
PAPER = "Yang et al. 2025, Qwen3 Technical Report"


def qwen3_moe(
    *,
    activation: str = "silu",
    experts: int = 128,
    top_k: int = 8,
    expert_width: int = 768,
    normalise: bool = True,
    dense: tuple[int, ...] | None = None,
    sparse_step: int = 1,
    **arguments: Any,
) -> Model:
    """mlp_width: of dense layers: those of `dense` and those whose number, from 1, sparse_step does not divide.

    expert_width: of one expert.
    """
    base = qwen3(activation=activation, **arguments)
    router = Router(experts=experts, top_k=top_k, normalise="sum" if normalise else "none", rounded=True)
    body = Experts(router=router, width=expert_width, activation=activation)
    return with_experts(base, body, dense_layers(len(base.blocks), dense, sparse_step))


TINY = QWEN3 | {"experts": 4, "top_k": 2, "expert_width": 20, "dense": (1,)}
SIZE = {"vocab": 151936, "kv_heads": 4, "head_size": 128, "theta": 1e6}
PUBLISHED = {
    "qwen3_moe": SIZE | {"width": 2048, "layers": 48, "heads": 32, "mlp_width": 6144},
    "qwen3-235b-a22b": SIZE | {"width": 4096, "layers": 94, "heads": 64, "mlp_width": 12288, "expert_width": 1536},
}
