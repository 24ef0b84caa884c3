"""Qwen3 (Yang et al., 2025): Llama with a norm on each head's query and key."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Model, RMSNorm, each

from .llama import TINY as TINY
from .llama import llama

YEAR, PARENT = 2025, "llama"
PAPER = "Yang et al. 2025, Qwen3 Technical Report"


def qwen3(*, eps: float = 1e-6, **arguments: Any) -> Model:
    base, norm = llama(eps=eps, **arguments), RMSNorm(eps=eps)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        return replace(old, attention=replace(old.attention, body=replace(body, query_norm=norm, key_norm=norm)))

    return replace(base, blocks=each(block, base.blocks))


SIZE = {"vocab": 151936, "kv_heads": 8, "head_size": 128, "theta": 1e6}
PUBLISHED = {
    "qwen3": SIZE | {"heads": 32, "layers": 36, "mlp_width": 12288},
    "qwen3-0.6b": SIZE | {"width": 1024, "layers": 28, "heads": 16, "mlp_width": 3072, "tied": True},
}
