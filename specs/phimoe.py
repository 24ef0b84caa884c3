"""Phi-3.5-MoE (Abdin et al., 2024): Mixtral with LayerNorm and biases, its two experts picked one after the other."""

from dataclasses import replace
from typing import Any

from lineage.components import Block, Experts, LayerNorm, Model, each

from .mixtral import TINY as MIXTRAL
from .mixtral import mixtral

YEAR, PARENT = 2024, "mixtral"
PAPER = "Abdin et al. 2024, Phi-3 Technical Report; Liu et al. 2024, GRIN: GRadient-INformed MoE"


def phimoe(
    *,
    vocab: int = 32064,
    mlp_width: int = 6400,
    experts: int = 16,
    eps: float = 1e-5,
    theta: float = 10000.0,
    bias: bool = True,
    head_bias: bool = True,
    jitter: float = 0.01,
    **arguments: Any,
) -> Model:
    """mlp_width: of one expert. jitter: how far below the best an expert may score and still share its weight."""
    base = mixtral(vocab=vocab, mlp_width=mlp_width, experts=experts, eps=eps, theta=theta, bias=bias, **arguments)
    norm = LayerNorm(eps=eps)

    def block(old: Block) -> Block:
        mlp = old.mlp.body
        assert isinstance(mlp, Experts)
        router = replace(mlp.router, score="mixer", normalise="none", jitter=jitter)
        return Block(
            attention=replace(old.attention, norm_input=norm),
            mlp=replace(old.mlp, norm_input=norm, body=replace(mlp, router=router)),
        )

    assert base.head is not None
    head = replace(base.head, bias=head_bias)
    return replace(base, blocks=each(block, base.blocks), norm=norm, head=head)


TINY = MIXTRAL | {"experts": 6, "top_k": 2, "jitter": 0.2}
PUBLISHED: dict[str, dict[str, Any]] = {"phi-3.5-moe": {}}
