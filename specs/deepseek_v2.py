"""DeepSeek-V2 (2024): keys and values from one small vector a token; many small experts in groups, some shared."""

import math
from dataclasses import replace

from lineage.components import (
    Block,
    Causal,
    Experts,
    FeedForward,
    Groups,
    LatentAttention,
    Model,
    RMSNorm,
    Rotary,
    Router,
    Scaling,
    Yarn,
    each,
)

from .llama import llama
from .mixtral import with_experts

YEAR, PARENT = 2024, "llama"
PAPER = "DeepSeek-AI 2024, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model"
LATENT_NORM = RMSNorm(eps=1e-6)  # whatever the other norms' eps is


def deepseek_v2(
    *,
    vocab: int = 102400,
    width: int = 5120,
    layers: int = 60,
    heads: int = 128,
    mlp_width: int = 12288,
    mlp_bias: bool = False,
    activation: str = "silu",
    eps: float = 1e-6,
    tied: bool = False,
    padding: int | None = None,
    bias: bool = False,
    query_latent: int | None = 1536,
    latent: int = 512,
    plain: int = 128,
    rotary_width: int = 64,
    value_width: int = 128,
    theta: float = 10000.0,
    scaling: Scaling | None = None,
    heat: float = 0.0,
    experts: int = 160,
    top_k: int | None = None,
    expert_width: int = 1536,
    shared_experts: int = 2,
    dense_first: int = 1,
    method: str = "groups",
    groups: int | None = 8,
    open_groups: int | None = 3,
    scale: float = 16.0,
) -> Model:
    """mlp_width: of the first dense_first layers. expert_width: of one expert, also of one shared; top_k: None is 6.

    plain, rotary_width: channels of a key that are not turned, and that are. heat: scores of stretched positions are
    multiplied by (0.1 · heat · ln factor + 1)². method: "groups" opens the best groups of experts alone, "greedy" all.
    """
    base = llama(
        vocab=vocab, width=width, layers=layers, heads=1, head_size=rotary_width, mlp_width=mlp_width,
        mlp_bias=mlp_bias, activation=activation, eps=eps, tied=tied, padding=padding,
    )  # fmt: skip
    hot = 0.1 * heat * math.log(scaling.factor) + 1 if isinstance(scaling, Yarn) and scaling.factor > 1 else 1.0
    attention = LatentAttention(
        heads=heads, query_latent=query_latent, latent=latent, plain=plain, value_width=value_width, mask=Causal(),
        rotary=Rotary(theta=theta, width=rotary_width, pairing="neighbours", scaling=scaling, rounded="result"),
        query_norm=LATENT_NORM if query_latent else None, latent_norm=LATENT_NORM, bias=bias,
        scale=(plain + rotary_width) ** -0.5 * hot * hot,
    )  # fmt: skip
    chosen = Groups(count=groups or 1, keep=open_groups or 1) if method == "groups" else None
    router = Router(experts=experts, top_k=top_k or 6, normalise="none", groups=chosen, scale=scale, exact=True)
    shared = FeedForward(width=expert_width * shared_experts, activation=activation, bias=mlp_bias, gated=True)
    body = Experts(router=router, width=expert_width, activation=activation, shared=shared)

    def block(old: Block) -> Block:
        return replace(old, attention=replace(old.attention, body=attention))

    return with_experts(replace(base, blocks=each(block, base.blocks)), body, range(dense_first))


TINY = {
    "vocab": 101, "width": 24, "layers": 3, "heads": 3, "mlp_width": 40, "query_latent": 20, "latent": 16, "plain": 12,
    "rotary_width": 8, "value_width": 10, "experts": 8, "top_k": 3, "expert_width": 18, "shared_experts": 2,
    "dense_first": 1, "method": "groups", "groups": 4, "open_groups": 2,
}  # fmt: skip
LITE = {"width": 2048, "layers": 27, "heads": 16, "mlp_width": 10944, "query_latent": None, "experts": 64}
PUBLISHED = {
    "deepseek_v2": {"top_k": 6},
    "deepseek-v2-lite": LITE | {"top_k": 6, "expert_width": 1408, "method": "greedy", "scale": 1.0},
}
