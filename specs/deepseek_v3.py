"""DeepSeek-V3 (2024): V2 whose router scores by sigmoids, corrected by numbers that balance the experts' load."""

from dataclasses import replace
from typing import Any

from lineage.components import Block, Experts, Groups, LatentAttention, Model, each

from .deepseek_v2 import TINY as TINY
from .deepseek_v2 import deepseek_v2

YEAR, PARENT = 2024, "deepseek_v2"
PAPER = "DeepSeek-AI 2024, DeepSeek-V3 Technical Report"


def deepseek_v3(
    *,
    vocab: int = 129280,
    width: int = 7168,
    layers: int = 61,
    mlp_width: int = 18432,
    experts: int = 256,
    top_k: int = 8,
    expert_width: int = 2048,
    shared_experts: int = 1,
    dense_first: int = 3,
    groups: int = 8,
    open_groups: int = 4,
    scale: float = 2.5,
    normalise: bool = True,
    neighbours: bool = True,
    **arguments: Any,
) -> Model:
    """neighbours: which channels turn together; if not, those half a width apart."""
    base = deepseek_v2(
        vocab=vocab, width=width, layers=layers, mlp_width=mlp_width, experts=experts, top_k=top_k,
        expert_width=expert_width, shared_experts=shared_experts, dense_first=dense_first, groups=groups,
        open_groups=open_groups, scale=scale, **arguments,
    )  # fmt: skip
    pairing = "neighbours" if neighbours else "halves"

    def block(old: Block) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, LatentAttention)
        attention = replace(attention, rotary=replace(attention.rotary, pairing=pairing, rounded="table"))
        if isinstance(mlp, Experts):
            mlp = corrected(mlp, groups, open_groups, normalise)
        return replace(old, attention=replace(old.attention, body=attention), mlp=replace(old.mlp, body=mlp))

    return replace(base, blocks=each(block, base.blocks))


def corrected(old: Experts, groups: int, open_groups: int, normalise: bool) -> Experts:
    """The same experts, chosen by sigmoids that are corrected, in the best groups (DeepSeek-V3, §2.1.2)."""
    router = replace(
        old.router, score="sigmoid", normalise="sum" if normalise else "none", correction=True, eps=1e-20, exact=True,
        groups=Groups(count=groups, keep=open_groups, pair=True),
    )  # fmt: skip
    return replace(old, router=router)


PUBLISHED: dict[str, dict[str, Any]] = {"deepseek_v3": {}}
