"""Qwen3 with experts (Yang et al., 2025): 128 small ones, eight of them for each token."""

from typing import Any

from lineage.components import Model

from .mixtral import TINY as MIXTRAL
from .mixtral import with_experts
from .qwen3 import qwen3

YEAR, PARENT = 2025, "qwen3"
PAPER = "Yang et al. 2025, Qwen3 Technical Report"


def qwen3_moe(
    *,
    mlp_width: int = 768,
    activation: str = "silu",
    experts: int = 128,
    top_k: int = 8,
    normalise: bool = True,
    **arguments: Any,
) -> Model:
    """mlp_width: of one expert."""
    base = qwen3(mlp_width=mlp_width, activation=activation, **arguments)
    return with_experts(base, experts, top_k, normalise, mlp_width, activation, rounded=True)


TINY = MIXTRAL
SIZE = {"vocab": 151936, "kv_heads": 4, "head_size": 128, "theta": 1e6}
PUBLISHED = {
    "qwen3_moe": SIZE | {"width": 2048, "layers": 48, "heads": 32},
    "qwen3-235b-a22b": SIZE | {"width": 4096, "layers": 94, "heads": 64, "mlp_width": 1536},
}
