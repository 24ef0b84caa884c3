"""OLMo (Groeneveld et al., 2024): Llama with LayerNorm that learns nothing, and an option to clip q, k and v."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, LayerNorm, Model, Rotary, each

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Groeneveld et al. 2024, OLMo: Accelerating the Science of Language Models"


def olmo(*, eps: float = 1e-5, clip: float | None = None, **arguments: Any) -> Model:
    """clip: q, k and v are kept within ±clip."""
    base, norm = llama(eps=eps, **arguments), LayerNorm(eps=eps, weight=False, bias=False, exact=True)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        assert isinstance(body.rotary, Rotary)
        body = replace(body, clip=clip, rotary=replace(body.rotary, rounded="result"))
        attention = replace(old.attention, body=body, norm_input=norm)
        return replace(old, attention=attention, mlp=replace(old.mlp, norm_input=norm))

    return replace(base, blocks=each(block, base.blocks), norm=norm)


TINY = LLAMA | {"clip": 0.8}
PUBLISHED = {
    "olmo": {"vocab": 50304},
    "olmo-1b": {"vocab": 50304, "width": 2048, "layers": 16, "heads": 16, "mlp_width": 8192, "tied": True},
}
