"""Falcon (Almazrouei et al., 2023): GPT-NeoX with one key-value head for all queries, or a few, and no biases."""

from dataclasses import replace

from lineage.components import Alibi, Attention, Block, FeedForward, Model, Scaling, contradiction, each

from .gpt_neox import gpt_neox
from .gptj import side_by_side

YEAR, PARENT = 2023, "gpt_neox"
PAPER = "Almazrouei et al. 2023, The Falcon Series of Open Language Models"


def falcon(
    *,
    vocab: int = 65024,
    width: int = 4544,
    layers: int = 32,
    heads: int = 71,
    kv_heads: int | None = None,
    mlp_width: int | None = None,
    activation: str = "gelu",
    eps: float = 1e-5,
    theta: float = 10000.0,
    scaling: Scaling | None = None,
    grouped: bool = False,
    multi_query: bool = True,
    parallel: bool = True,
    norms: int | None = None,
    alibi: bool = False,
    bias: bool = False,
    tied: bool = True,
) -> Model:
    """grouped: kv_heads counts (40B on); else there is one if multi_query, and one for each query if not.

    norms: of a layer with parallel branches; None is two where grouped, else one. alibi: in place of rotary positions.
    """
    count = (kv_heads or heads) if grouped else 1 if multi_query else heads
    norms = norms or (2 if grouped else 1)
    if grouped and not parallel:
        raise contradiction("layers of grouped heads are parallel", "grouped", "parallel")
    if parallel and norms > (2 if grouped else 1):
        raise contradiction(f"{norms} norms in a parallel layer", "norms", "grouped")
    if not grouped and not multi_query and kv_heads not in (None, heads):
        raise contradiction(f"{kv_heads} key-value heads, neither grouped nor one", "kv_heads", "grouped")
    base = gpt_neox(
        vocab=vocab, width=width, layers=layers, heads=heads, mlp_width=mlp_width or 4 * width, activation=activation,
        eps=eps, theta=theta, scaling=scaling, share=1.0, parallel=parallel, bias=bias, tied=tied,
    )  # fmt: skip

    def block(old: Block) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        assert isinstance(attention, Attention)
        assert isinstance(mlp, FeedForward)
        attention = replace(attention, kv_heads=count)
        if alibi:
            slopes = Alibi(scale=attention.head_width**-0.5, rounded=True)
            attention = replace(attention, rotary=None, position_bias=slopes)
        mlp = replace(mlp, bias=bias)
        new = replace(old, attention=replace(old.attention, body=attention), mlp=replace(old.mlp, body=mlp))
        return side_by_side(new) if parallel and norms == 1 else new

    return replace(base, blocks=each(block, base.blocks))


TINY = {"vocab": 101, "width": 48, "layers": 3, "heads": 6, "mlp_width": 40}
PUBLISHED = {
    "falcon": {},
    "falcon-7b": {},
    "falcon-40b": {"width": 8192, "layers": 60, "heads": 128, "kv_heads": 8, "grouped": True},
    "falcon-180b": {"width": 14848, "layers": 80, "heads": 232, "kv_heads": 8, "grouped": True},
    "falcon-rw-1b": {
        "vocab": 50304, "width": 2048, "layers": 24, "heads": 32, "alibi": True, "bias": True, "multi_query": False,
        "parallel": False,
    },
}  # fmt: skip
