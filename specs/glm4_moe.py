"""GLM-4.5 (Zeng et al., 2025): grouped heads, half of each turned, over the experts of DeepSeek-V3."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Experts, FeedForward, Model, RMSNorm, Router, each

from .deepseek_v3 import corrected
from .llama import TINY as LLAMA
from .llama import llama
from .mixtral import with_experts

YEAR, PARENT = 2025, "llama"
PAPER = "Zeng et al. 2025, GLM-4.5: Agentic, Reasoning, and Coding (ARC) Foundation Models"


def glm4_moe(
    *,
    vocab: int = 151552,
    width: int = 5120,
    layers: int = 92,
    heads: int = 96,
    kv_heads: int | None = 8,
    head_size: int | None = 128,
    mlp_width: int = 12288,
    activation: str = "silu",
    eps: float = 1e-5,
    theta: float = 1e6,
    share: float = 0.5,
    bias: bool = True,
    output_bias: bool | None = False,
    head_norms: bool = True,
    experts: int = 160,
    top_k: int = 8,
    expert_width: int = 1536,
    shared_experts: int = 1,
    dense_first: int = 3,
    groups: int = 1,
    open_groups: int = 1,
    scale: float = 2.5,
    normalise: bool = True,
    **arguments: Any,
) -> Model:
    """head_size: None is width / heads, rounded down. share: of a head that is turned. head_norms: of each
    head's query and key.

    mlp_width: of the first dense_first layers. expert_width: of one expert, also of one shared.
    """
    base = llama(
        vocab=vocab, width=width, layers=layers, heads=heads, kv_heads=kv_heads, head_size=head_size or width // heads,
        mlp_width=mlp_width, activation=activation, eps=eps, theta=theta, share=share, bias=bias,
        output_bias=output_bias,
        **arguments,
    )  # fmt: skip
    norm = RMSNorm(eps=eps) if head_norms else None

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        return replace(old, attention=replace(old.attention, body=replace(body, query_norm=norm, key_norm=norm)))

    shared = FeedForward(width=expert_width * shared_experts, activation=activation, bias=False, gated=True)
    router = Router(experts=experts, top_k=top_k, scale=scale)
    body = Experts(router=router, width=expert_width, activation=activation, shared=shared)
    body = corrected(body, groups, open_groups, normalise)
    return with_experts(replace(base, blocks=each(block, base.blocks)), body, range(dense_first))


TINY = LLAMA | {
    "share": 0.5, "experts": 8, "top_k": 3, "expert_width": 18, "shared_experts": 2, "dense_first": 1, "groups": 4,
    "open_groups": 2,
}  # fmt: skip
AIR = {"width": 4096, "layers": 46, "mlp_width": 10944, "experts": 128, "expert_width": 1408, "dense_first": 1}
PUBLISHED: dict[str, dict[str, Any]] = {
    "glm-4.5": {},
    "glm-4.5-air": AIR | {"head_norms": False, "scale": 1.0},
}
