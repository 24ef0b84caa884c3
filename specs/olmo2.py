"""OLMo 2 (OLMo Team, 2024): OLMo with RMSNorm behind the branches in place of before them, and on all of q and k."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Model, Residual, RMSNorm, each

from .llama import TINY as TINY
from .olmo import olmo

YEAR, PARENT = 2024, "olmo"
PAPER = "OLMo Team 2024, 2 OLMo 2 Furious"


def olmo2(*, eps: float = 1e-5, **arguments: Any) -> Model:
    base, norm = olmo(eps=eps, **arguments), RMSNorm(eps=eps, late=True)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        body = replace(body, query_norm=norm, key_norm=norm, joined=True)
        return Block(attention=Residual(body=body, norm_branch=norm), mlp=Residual(body=old.mlp.body, norm_branch=norm))

    return replace(base, blocks=each(block, base.blocks), norm=norm)


SIZE = {"vocab": 100352, "eps": 1e-6, "theta": 500000.0}
PUBLISHED = {
    "olmo2": SIZE,
    "olmo2-1b": SIZE | {"width": 2048, "layers": 16, "heads": 16, "mlp_width": 8192},
    "olmo2-13b": SIZE | {"width": 5120, "layers": 40, "heads": 40, "mlp_width": 13824},
}
