"""Llama (Touvron et al., 2023): RMSNorm, rotary positions, SwiGLU, no biases, grouped heads from 2-70B on."""

from lineage.components import (
    Attention,
    Block,
    Causal,
    Embed,
    FeedForward,
    Head,
    Model,
    Residual,
    RMSNorm,
    Rotary,
    Scaling,
    head_width,
)

YEAR, PARENT = 2023, "gpt2"
PAPER = "Touvron et al. 2023, LLaMA: Open and Efficient Foundation Language Models"


def llama(
    *,
    vocab: int = 32000,
    width: int = 4096,
    layers: int = 32,
    heads: int = 32,
    kv_heads: int | None = None,
    head_size: int | None = None,
    mlp_width: int = 11008,
    activation: str = "silu",
    eps: float = 1e-6,
    theta: float = 10000.0,
    scaling: Scaling | None = None,
    window: int | None = None,
    bias: bool = False,
    output_bias: bool | None = None,
    mlp_bias: bool = False,
    tied: bool = False,
    padding: int | None = None,
) -> Model:
    """kv_heads: None is heads. head_size: None is width / heads. bias: of q, k, v; output_bias: of o, None is bias."""
    norm, size = RMSNorm(eps=eps), head_size or head_width(width, heads)
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads or heads,
        head_width=size,
        mask=Causal(window=window),
        bias=bias,
        output_bias=bias if output_bias is None else output_bias,
        rotary=Rotary(theta=theta, width=size, scaling=scaling),
    )
    mlp = FeedForward(width=mlp_width, activation=activation, bias=mlp_bias, gated=True)
    block = Block(attention=Residual(body=attention, norm_input=norm), mlp=Residual(body=mlp, norm_input=norm))
    embed, head = Embed(vocab=vocab, width=width, padding=padding), Head(vocab=vocab, tied=tied)
    return Model(embed=embed, blocks=(block,) * layers, norm=norm, head=head)


TINY = {"vocab": 101, "width": 24, "layers": 3, "heads": 6, "kv_heads": 2, "head_size": 8, "mlp_width": 40}
LLAMA_3 = {"vocab": 128256, "kv_heads": 8, "mlp_width": 14336, "eps": 1e-5, "theta": 500000.0}
LLAMA_2_70B = {"width": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "mlp_width": 28672, "eps": 1e-5}
SMOLLM2 = {"vocab": 49152, "width": 576, "layers": 30, "heads": 9, "kv_heads": 3, "mlp_width": 1536, "eps": 1e-5}
PUBLISHED = {
    "llama": {},
    "llama-7b": {},
    "llama-13b": {"width": 5120, "layers": 40, "heads": 40, "mlp_width": 13824},
    "llama-2-70b": LLAMA_2_70B,
    "llama-3-8b": LLAMA_3,
    "smollm2-135m": SMOLLM2 | {"theta": 100000.0, "tied": True},
}
