"""Gemma 3 (Kamath et al., 2025): Gemma 2 with norms on queries and keys for caps, five windows to one full layer.

Layers with a window turn by another theta.
"""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Linear, Model, RMSNorm, Rotary, Scaling, each, layer_names

from .gemma2 import TINY as GEMMA2
from .gemma2 import gemma2

YEAR, PARENT = 2025, "gemma2"
PAPER = "Kamath et al. 2025, Gemma 3 Technical Report"


def gemma3(
    *,
    layers: int = 26,
    eps: float = 1e-6,
    theta: float = 1e6,
    local_theta: float = 10000.0,
    local_scaling: Scaling | None = None,
    pattern: tuple[str, ...] | None = None,
    period: int = 6,
    score_cap: float | None = None,
    logit_cap: float | None = None,
    **arguments: Any,
) -> Model:
    """pattern: "window" or "full" for each layer; None is a full one at the end of each period.

    theta, scaling: of the full layers; local_theta, local_scaling: of those with a window.
    """
    usual = ["window" if (place + 1) % period else "full" for place in range(layers)]
    kinds = layer_names(pattern, usual, ("window", "full"))
    base = gemma2(
        layers=layers, eps=eps, theta=theta, pattern=kinds, score_cap=score_cap, logit_cap=logit_cap, **arguments
    )
    norm = RMSNorm(eps=eps, plus_one=True, late=True)

    def block(old: Block, kind: str) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        assert isinstance(body.rotary, Rotary)
        local = replace(body.rotary, theta=local_theta, scaling=local_scaling)
        body = replace(body, query_norm=norm, key_norm=norm, rotary=body.rotary if kind == "full" else local)
        return replace(old, attention=replace(old.attention, body=body))

    return replace(base, blocks=each(block, base.blocks, kinds))


TINY = GEMMA2 | {"score_cap": None, "logit_cap": None, "local_theta": 500.0, "period": 3}
SIZE = {"vocab": 262144, "heads": 4, "kv_heads": 1, "window": 512}
PUBLISHED = {
    "gemma3": {"vocab": 262208, "width": 2560, "layers": 34, "heads": 8, "kv_heads": 4, "mlp_width": 10240,
               "window": 1024, "scaling": Linear(factor=8.0)},
    "gemma3-270m": SIZE | {"width": 640, "layers": 18, "mlp_width": 2048},
    "gemma3-1b": SIZE | {"width": 1152, "layers": 26, "mlp_width": 6912},
}  # fmt: skip
