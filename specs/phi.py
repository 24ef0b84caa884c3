"""Phi (Gunasekar et al., 2023): GPT-J with halves turned, biases in attention too, and a norm on heads if wanted."""

from dataclasses import replace

from lineage.components import Attention, Block, LayerNorm, Model, Rotary, Scaling, each, head_width

from .gptj import gptj

YEAR, PARENT = 2023, "gptj"
PAPER = "Gunasekar et al. 2023, Textbooks Are All You Need"


def phi(
    *,
    vocab: int = 51200,
    width: int = 2048,
    layers: int = 24,
    heads: int = 32,
    kv_heads: int | None = None,
    mlp_width: int = 8192,
    activation: str = "gelu_new",
    eps: float = 1e-5,
    theta: float = 10000.0,
    scaling: Scaling | None = None,
    share: float = 0.5,
    head_norms: bool = False,
    tied: bool = False,
    padding: int | None = None,
) -> Model:
    """share: of each head's channels, that is turned. head_norms: of queries and keys, each head by itself."""
    turned = int(head_width(width, heads) * share)
    base = gptj(
        vocab=vocab, context=None, width=width, layers=layers, heads=heads, mlp_width=mlp_width, activation=activation,
        eps=eps, rotary_width=turned, exact=False, tied=tied,
    )  # fmt: skip
    rotary, norm = Rotary(theta=theta, width=turned, scaling=scaling), LayerNorm(eps=eps) if head_norms else None

    def block(old: Block) -> Block:
        body = old.attention.body
        assert isinstance(body, Attention)
        body = replace(
            body, kv_heads=kv_heads or heads, bias=True, output_bias=True, rotary=rotary, query_norm=norm, key_norm=norm
        )
        return replace(old, attention=replace(old.attention, body=body))

    return replace(base, embed=replace(base.embed, padding=padding), blocks=each(block, base.blocks))


TINY = {"vocab": 101, "width": 48, "layers": 3, "heads": 6, "mlp_width": 40}
PUBLISHED = {
    "phi": {},
    "phi-1.5": {},
    "phi-2": {"width": 2560, "layers": 32, "heads": 32, "mlp_width": 10240, "share": 0.4},
}
