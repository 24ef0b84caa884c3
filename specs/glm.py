"""GLM-4 (Zeng et al., 2024): Llama with neighbours turned, on half of each head's channels, and biases on q, k, v."""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, Model, Rotary, each

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Zeng et al. 2024, ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools"


def glm(
    *, share: float = 0.5, bias: bool = True, output_bias: bool | None = False, eps: float = 1.5625e-7, **arguments: Any
) -> Model:
    base = llama(share=share, bias=bias, output_bias=output_bias, eps=eps, **arguments)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        assert isinstance(body.rotary, Rotary)
        body = replace(body, rotary=replace(body.rotary, pairing="neighbours"))
        return replace(old, attention=replace(old.attention, body=body))

    return replace(base, blocks=each(block, base.blocks))


TINY = LLAMA
PUBLISHED = {
    "glm": {"vocab": 151552, "layers": 40, "kv_heads": 2, "head_size": 128, "mlp_width": 13696},
}
