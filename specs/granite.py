"""Granite 3 (Granite Team, 2024): Llama with four multipliers, of embeddings, scores, branches and logits."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Model, each

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Granite Team, IBM 2024, Granite 3.0 Language Models"


def granite(
    *,
    embed_scale: float = 1.0,
    score_scale: float = 1.0,
    branch_scale: float = 1.0,
    logit_divisor: float = 1.0,
    **arguments: Any,
) -> Model:
    """score_scale: in place of 1/√head_width."""
    base = llama(**arguments)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        attention = replace(old.attention, body=replace(body, scale=score_scale), scale=branch_scale)
        return replace(old, attention=attention, mlp=replace(old.mlp, scale=branch_scale))

    assert base.head is not None
    embed = replace(base.embed, scale=embed_scale, rounded=False)
    head = replace(base.head, scale=1.0 / logit_divisor)
    return replace(base, embed=embed, blocks=each(block, base.blocks), head=head)


TINY = LLAMA | {"embed_scale": 3.0, "score_scale": 0.2, "branch_scale": 0.3, "logit_divisor": 3.0}
SIZE = {"vocab": 49155, "kv_heads": 8, "eps": 1e-5, "embed_scale": 12.0, "branch_scale": 0.22, "tied": True}
PUBLISHED = {
    "granite": {},
    "granite-3.0-2b": SIZE
    | {"width": 2048, "layers": 40, "mlp_width": 8192, "score_scale": 0.015625, "logit_divisor": 8.0},
    "granite-3.0-8b": SIZE
    | {"width": 4096, "layers": 40, "mlp_width": 12800, "score_scale": 0.0078125, "logit_divisor": 16.0},
}
