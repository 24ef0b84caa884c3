"""Granite 3 with experts (Granite Team, 2024): 32 or 40 small ones, eight of them for each token."""

from typing import Any

from lineage.components import Experts, Model, Router

from .granite import TINY as GRANITE
from .granite import granite
from .mixtral import with_experts

YEAR, PARENT = 2024, "granite"
PAPER = "Granite Team, IBM 2024, Granite 3.0 Language Models"


def granitemoe(
    *, mlp_width: int = 11008, activation: str = "silu", experts: int = 8, top_k: int = 2, **arguments: Any
) -> Model:
    """mlp_width: of one expert."""
    base = granite(mlp_width=mlp_width, activation=activation, **arguments)
    router = Router(experts=experts, top_k=top_k, score="none", normalise="softmax", rounded=True)
    return with_experts(base, Experts(router=router, width=mlp_width, activation=activation))


TINY = GRANITE | {"experts": 6, "top_k": 2}
SIZE = {
    "vocab": 49155, "kv_heads": 8, "mlp_width": 512, "top_k": 8, "embed_scale": 12.0, "branch_scale": 0.22,
    "tied": True,
}  # fmt: skip
PUBLISHED = {
    "granitemoe": {},
    "granite-3.0-1b-a400m": SIZE
    | {"width": 1024, "layers": 24, "heads": 16, "experts": 32, "score_scale": 0.015625, "logit_divisor": 6.0},
    "granite-3.0-3b-a800m": SIZE
    | {"width": 1536, "layers": 32, "heads": 24, "experts": 40, "score_scale": 0.015625, "logit_divisor": 6.0},
}
