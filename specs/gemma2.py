"""Gemma 2 (Riviere et al., 2024): Gemma with norms after each branch too, windows in every other layer, caps."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Causal, Model, Residual, RMSNorm, each, layer_names

from .gemma import TINY as GEMMA
from .gemma import gemma

YEAR, PARENT = 2024, "gemma"
PAPER = "Riviere et al. 2024, Gemma 2: Improving Open Language Models at a Practical Size"


def gemma2(
    *,
    eps: float = 1e-6,
    window: int = 4096,
    pattern: tuple[str, ...] | None = None,
    score_cap: float | None = 50.0,
    logit_cap: float | None = 30.0,
    query_scalar: float = 256.0,
    **arguments: Any,
) -> Model:
    """pattern: "window" or "full" for each layer; None is windows in layers 0, 2, 4 … Scores are / √query_scalar."""
    base, norm = gemma(eps=eps, **arguments), RMSNorm(eps=eps, plus_one=True, late=True)
    usual = [("window", "full")[place % 2] for place in range(len(base.blocks))]
    kinds = layer_names(pattern, usual, ("window", "full"))

    def block(old: Block, kind: str) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        mask = Causal(window=window if kind == "window" else None)
        body = replace(body, mask=mask, scale=query_scalar**-0.5, softcap=score_cap)
        return Block(
            attention=Residual(body=body, norm_input=norm, norm_branch=norm),
            mlp=Residual(body=old.mlp.body, norm_input=norm, norm_branch=norm),
        )

    assert base.head is not None
    blocks = each(block, base.blocks, kinds)
    return replace(base, blocks=blocks, head=replace(base.head, softcap=logit_cap))


TINY = GEMMA | {"window": 7, "score_cap": 5.0, "logit_cap": 3.0, "query_scalar": 12.0}
PUBLISHED = {
    "gemma2": {"width": 2304, "layers": 26, "heads": 8, "kv_heads": 4, "mlp_width": 9216},
    "gemma2-9b": {"width": 3584, "layers": 42, "heads": 16, "kv_heads": 8, "mlp_width": 14336},
}
