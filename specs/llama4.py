"""Llama 4's text model (Meta, 2025): experts fed weighed inputs, chunks, and layers without rotary positions."""

from dataclasses import replace
from typing import Any

from lineage.components import (
    Attention,
    Block,
    Causal,
    Chunked,
    Experts,
    FeedForward,
    Mask,
    Model,
    RMSNorm,
    Rotary,
    Router,
    Temperature,
    each,
    layer_names,
)

from .llama import TINY as LLAMA
from .llama import llama
from .mixtral import with_experts

YEAR, PARENT = 2025, "llama"
PAPER = "Meta 2025, The Llama 4 herd: The beginning of a new era of natively multimodal AI innovation"


def llama4(
    *,
    vocab: int = 202048,
    width: int = 5120,
    layers: int = 48,
    heads: int = 40,
    kv_heads: int | None = 8,
    head_size: int | None = 128,
    mlp_width: int = 16384,
    activation: str = "silu",
    eps: float = 1e-5,
    theta: float = 500000.0,
    turned: tuple[str, ...] | None = None,
    period: int = 4,
    chunk: int | None = 8192,
    pattern: tuple[str, ...] | None = None,
    head_norms: bool = True,
    tempered: bool = True,
    heat: float = 0.1,
    heat_length: float = 8192.0,
    experts: int = 16,
    top_k: int = 1,
    expert_width: int = 8192,
    sparse: tuple[int, ...] | None = None,
    sparse_step: int = 1,
    **arguments: Any,
) -> Model:
    """turned: "rotary" or "plain" for each layer; None is a plain one at the end of each period. Rotary layers have
    chunks, and norms of each head if head_norms; plain ones a temperature, if tempered; pattern: "chunk" or "full".

    sparse: the layers with experts; None is one at the end of each sparse_step. mlp_width: of the others; expert_width:
    of one expert, also of the one shared.
    """
    base = llama(
        vocab=vocab, width=width, layers=layers, heads=heads, kv_heads=kv_heads, head_size=head_size,
        mlp_width=mlp_width, activation=activation, eps=eps, theta=theta, **arguments,
    )  # fmt: skip
    alternating = ["rotary" if (place + 1) % period else "plain" for place in range(layers)]
    places = layer_names(turned[:layers] if turned else None, alternating, ("rotary", "plain"))
    usual = ["chunk" if chunk and place == "rotary" else "full" for place in places]
    kinds = layer_names(pattern, usual, ("chunk", "full") if chunk else ("full",))
    masks: dict[str, Mask] = {"full": Causal()}
    if chunk:
        masks["chunk"] = Chunked(length=chunk)
    norm = RMSNorm(eps=eps, weight=False) if head_norms else None
    hot = Temperature(scale=heat, length=heat_length) if tempered else None
    router = Router(experts=experts, top_k=top_k, score="none", normalise="sigmoid", rounded=True)
    shared = FeedForward(width=expert_width, activation=activation, bias=False, gated=True)
    body = Experts(router=router, width=expert_width, activation=activation, shared=shared, early=True)
    chosen = range(sparse_step - 1, layers, sparse_step) if sparse is None else sparse
    blocks = each(lambda old, place, kind: attending(old, place, masks[kind], norm, hot), base.blocks, places, kinds)
    return with_experts(replace(base, blocks=blocks), body, set(range(layers)) - set(chosen))


def attending(old: Block, place: str, mask: Mask, norm: RMSNorm | None, hot: Temperature | None) -> Block:
    body = old.attention.body
    assert isinstance(body, Attention)
    if place == "plain":
        body = replace(body, mask=mask, rotary=None, temperature=hot)
    else:
        assert isinstance(body.rotary, Rotary)
        rotary = replace(body.rotary, pairing="neighbours", rounded="result")
        body = replace(body, mask=mask, rotary=rotary, query_norm=norm, key_norm=norm)
    return replace(old, attention=replace(old.attention, body=body))


TINY = LLAMA | {"layers": 4, "chunk": 9, "heat_length": 16.0, "experts": 4, "expert_width": 20, "sparse_step": 2}
PUBLISHED = {"llama-4-scout": {}, "llama-4-maverick": {"experts": 128, "sparse_step": 2, "head_norms": False}}
