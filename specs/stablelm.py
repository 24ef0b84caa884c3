"""StableLM (Tow et al., 2023): Llama with LayerNorm and a quarter of each head's channels turned.

The 12b form is parallel, and norms each head's queries and keys by weights of its own.
"""

from dataclasses import replace
from typing import Any

from lineage.components import Attention, Block, LayerNorm, Model, Residual, each

from .llama import llama

YEAR, PARENT = 2023, "llama"
PAPER = "Tow et al. 2023, StableLM 3B 4E1T"


def stablelm(
    *,
    eps: float = 1e-5,
    share: float = 0.25,
    output_bias: bool | None = False,
    head_norms: bool = False,
    parallel: bool = False,
    **arguments: Any,
) -> Model:
    """parallel: both branches read one norm. head_norms: of queries and keys, one for each head."""
    base = llama(eps=eps, share=share, output_bias=output_bias, **arguments)
    norm = LayerNorm(eps=eps)

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        if head_norms:
            query, key = (LayerNorm(eps=eps, bias=False, tables=count) for count in (body.heads, body.kv_heads))
            body = replace(body, query_norm=query, key_norm=key)
        each = None if parallel else norm
        return Block(
            attention=Residual(body=body, norm_input=each),
            mlp=Residual(body=old.mlp.body, norm_input=each),
            parallel=parallel,
            norm_input=norm if parallel else None,
            stream_first=parallel,
        )

    return replace(base, blocks=each(block, base.blocks), norm=norm)


TINY = {"vocab": 101, "width": 48, "layers": 3, "heads": 6, "kv_heads": 2, "mlp_width": 40, "padding": 3}
PUBLISHED = {
    "stablelm": {"vocab": 50304, "width": 2560, "kv_heads": 32, "mlp_width": 6912},
    "stablelm-2-1.6b": {"vocab": 100352, "width": 2048, "layers": 24, "kv_heads": 32, "mlp_width": 5632,
                        "bias": True},
    "stablelm-2-12b": {"vocab": 100352, "width": 5120, "layers": 40, "kv_heads": 8, "mlp_width": 13824,
                       "head_norms": True, "parallel": True},
}  # fmt: skip
