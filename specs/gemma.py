"""Gemma (Mesnard et al., 2024): Llama with wide heads, GELU gates, embeddings × √width, norms stored around 0."""

from dataclasses import replace
from typing import Any

from lineage.components import Model, RMSNorm

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Mesnard et al. 2024, Gemma: Open Models Based on Gemini Research and Technology"


def gemma(
    *,
    vocab: int = 256000,
    width: int = 3072,
    heads: int = 16,
    head_size: int | None = 256,
    mlp_width: int = 24576,
    layers: int = 28,
    activation: str = "gelu_tanh",
    eps: float = 1e-6,
    tied: bool = True,
    **arguments: Any,
) -> Model:
    base = llama(
        vocab=vocab, width=width, heads=heads, head_size=head_size, mlp_width=mlp_width, layers=layers,
        activation=activation, eps=eps, tied=tied, **arguments,
    )  # fmt: skip
    norm = RMSNorm(eps=eps, plus_one=True, late=True)
    block = base.blocks[0]
    block = replace(block, attention=replace(block.attention, norm_input=norm), mlp=replace(block.mlp, norm_input=norm))
    return replace(base, embed=replace(base.embed, scale=width**0.5), blocks=(block,) * layers, norm=norm)


TINY = LLAMA | {"activation": "gelu_tanh"}
PUBLISHED = {
    "gemma": {"kv_heads": 16},
    "gemma-2b": {"width": 2048, "layers": 18, "heads": 8, "kv_heads": 1, "mlp_width": 16384},
}
