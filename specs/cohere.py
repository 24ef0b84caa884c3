"""Command R (Cohere, 2024): Llama with both branches side by side on one LayerNorm, neighbours turned, logits scaled.

R+ norms each head's queries and keys by weights of its own.
"""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, LayerNorm, Model, Residual, Rotary, each

from .llama import TINY as LLAMA
from .llama import llama

YEAR, PARENT = 2024, "llama"
PAPER = "Cohere 2024, Command R and Command R+ (the released code and model cards)"


def cohere(
    *,
    vocab: int = 256000,
    eps: float = 1e-5,
    theta: float = 500000.0,
    tied: bool = True,
    head_norms: bool = False,
    logit_scale: float = 0.0625,
    **arguments: Any,
) -> Model:
    """head_norms: of queries and keys, one for each head."""
    base, norm = (
        llama(vocab=vocab, eps=eps, theta=theta, tied=tied, **arguments),
        LayerNorm(eps=eps, bias=False, exact=True),
    )

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        assert isinstance(body.rotary, Rotary)
        body = replace(body, rotary=replace(body.rotary, pairing="neighbours", rounded="both"))
        if head_norms:
            query, key = (replace(norm, tables=count) for count in (body.heads, body.kv_heads))
            body = replace(body, query_norm=query, key_norm=key)
        both = {"attention": Residual(body=body), "mlp": Residual(body=old.mlp.body)}
        return Block(**both, parallel=True, norm_input=norm, stream_first=True)

    assert base.head is not None
    return replace(base, blocks=each(block, base.blocks), norm=norm, head=replace(base.head, scale=logit_scale))


TINY = LLAMA | {"tied": True}
PUBLISHED = {
    "cohere": {"width": 8192, "layers": 40, "heads": 64, "mlp_width": 22528, "theta": 8e6},
    "command-r-plus": {"width": 12288, "layers": 64, "heads": 96, "kv_heads": 8, "mlp_width": 33792, "theta": 75e6,
                       "head_norms": True, "logit_scale": 0.833333},
}  # fmt: skip
