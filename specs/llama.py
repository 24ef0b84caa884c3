"""Llama (Touvron et al., 2023): RMSNorm, rotary positions, SwiGLU, no biases, grouped heads from 2-70B on."""

from dataclasses import replace

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
    layer_names,
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
    share: float = 1.0,
    window: int | None = None,
    full_layers: int = 0,
    pattern: tuple[str, ...] | None = None,
    bias: bool = False,
    output_bias: bool | None = None,
    mlp_bias: bool = False,
    tied: bool = False,
    padding: int | None = None,
) -> Model:
    """kv_heads: None is heads. head_size: None is width / heads. bias: of q, k, v; output_bias: of o, None is bias.

    share: of each head's channels, that is turned. window: of all layers but the first full_layers; or of those that
    the pattern, "window" or "full" for each layer, gives one.
    """
    norm, size = RMSNorm(eps=eps), head_size or head_width(width, heads)
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads or heads,
        head_width=size,
        mask=Causal(),
        bias=bias,
        output_bias=bias if output_bias is None else output_bias,
        rotary=Rotary(theta=theta, width=int(size * share), scaling=scaling),
    )
    mlp = FeedForward(width=mlp_width, activation=activation, bias=mlp_bias, gated=True)
    usual = tuple("window" if window and place >= full_layers else "full" for place in range(layers))
    masks = {"full": Causal(), "window": Causal(window=window)}
    kinds = layer_names(pattern, usual, masks if window else {"full": Causal()})
    block = Block(attention=Residual(body=attention, norm_input=norm), mlp=Residual(body=mlp, norm_input=norm))
    of_kind = {
        k: replace(block, attention=Residual(body=replace(attention, mask=masks[k]), norm_input=norm)) for k in masks
    }
    embed, head = Embed(vocab=vocab, width=width, padding=padding), Head(vocab=vocab, tied=tied)
    return Model(embed=embed, blocks=tuple(of_kind[kind] for kind in kinds), norm=norm, head=head)


TINY = {
    "vocab": 101, "width": 24, "layers": 3, "heads": 6, "kv_heads": 2, "head_size": 8, "mlp_width": 40, "padding": 3,
}  # fmt: skip
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
