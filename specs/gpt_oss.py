"""gpt-oss (OpenAI, 2025): Mixtral with a learned sink in every head, windows in every other layer, clamped gates."""

from dataclasses import replace
from typing import Any

from lineage.components import (
    Attention,
    Block,
    Causal,
    Clamp,
    Experts,
    Model,
    RMSNorm,
    Scaling,
    Yarn,
    each,
    layer_names,
)

from .mixtral import TINY as MIXTRAL
from .mixtral import mixtral

YEAR, PARENT = 2025, "mixtral"
PAPER = "OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card"
STRETCH = Yarn(factor=32.0, length=4096, whole=False)


def gpt_oss(
    *,
    vocab: int = 201088,
    width: int = 2880,
    layers: int = 36,
    heads: int = 64,
    head_size: int | None = 64,
    mlp_width: int = 2880,
    experts: int = 128,
    top_k: int = 4,
    eps: float = 1e-5,
    theta: float = 150000.0,
    scaling: Scaling | None = STRETCH,
    bias: bool = True,
    window: int = 128,
    pattern: tuple[str, ...] | None = None,
    limit: float = 7.0,
    slope: float = 1.702,
    **arguments: Any,
) -> Model:
    """pattern: "window" or "full" for each layer; None is windows in layers 0, 2, 4 … limit, slope: of the gates."""
    base = mixtral(
        vocab=vocab, width=width, layers=layers, heads=heads, head_size=head_size, mlp_width=mlp_width, experts=experts,
        top_k=top_k, eps=eps, theta=theta, scaling=scaling, bias=bias, **arguments,
    )  # fmt: skip
    norm = RMSNorm(eps=eps, late=True)
    usual = [("window", "full")[place % 2] for place in range(layers)]

    def block(old: Block, kind: str) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, Attention)
        assert isinstance(mlp, Experts)
        attention = replace(attention, mask=Causal(window=window if kind == "window" else None), sinks=True)
        router = replace(mlp.router, score="none", normalise="softmax", bias=True, rounded=True)
        mlp = replace(mlp, router=router, bias=True, clamp=Clamp(limit=limit, slope=slope))
        return Block(
            attention=replace(old.attention, body=attention, norm_input=norm),
            mlp=replace(old.mlp, body=mlp, norm_input=norm),
        )

    kinds = layer_names(pattern, usual, ("window", "full"))
    blocks = each(block, base.blocks, kinds)
    return replace(base, blocks=blocks, norm=norm)


TINY = MIXTRAL | {
    "window": 7, "limit": 0.8, "slope": 1.5, "scaling": Yarn(factor=4.0, length=40, whole=False), "theta": 10000.0,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt-oss-120b": {},
    "gpt-oss-20b": {"layers": 24, "experts": 32},
}
