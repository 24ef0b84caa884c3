"""StarCoder2 (Lozhkov et al., 2024): Llama's attention with a window, GPT-2's norms, biases and feed-forward net."""

from dataclasses import replace
from typing import Any

from lineage.components import Block, FeedForward, LayerNorm, Model, each

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Lozhkov et al. 2024, StarCoder 2 and The Stack v2: The Next Generation"


def starcoder2(
    *,
    activation: str = "gelu_tanh",
    eps: float = 1e-5,
    bias: bool = True,
    mlp_bias: bool | None = None,
    tied: bool = True,
    **arguments: Any,
) -> Model:
    """bias: of every linear map; mlp_bias: of the feed-forward network's, None is bias."""
    own = bias if mlp_bias is None else mlp_bias
    base = llama(activation=activation, eps=eps, bias=bias, mlp_bias=own, tied=tied, **arguments)
    norm = LayerNorm(eps=eps)

    def block(old: Block) -> Block:
        body = old.mlp.body
        assert isinstance(body, FeedForward)
        mlp = replace(old.mlp, body=replace(body, gated=False), norm_input=norm)
        return replace(old, attention=replace(old.attention, norm_input=norm), mlp=mlp)

    return replace(base, blocks=each(block, base.blocks), norm=norm)


TINY = LLAMA | {"activation": "gelu_tanh", "window": 7}
SIZE = {"vocab": 49152, "kv_heads": 4, "window": 4096, "theta": 1e6}
PUBLISHED = {
    "starcoder2": {"vocab": 49152, "width": 3072, "layers": 30, "heads": 24, "kv_heads": 2, "mlp_width": 12288,
                   "window": 4096, "theta": 999999.4420358813},
    "starcoder2-7b": SIZE | {"width": 4608, "layers": 32, "heads": 36, "mlp_width": 18432},
    "starcoder2-15b": SIZE | {"width": 6144, "layers": 40, "heads": 48, "mlp_width": 24576, "theta": 1e5,
                       "tied": False},
}  # fmt: skip
