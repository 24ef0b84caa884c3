"""GPT (Radford et al., 2018): the decoder of the 2017 Transformer alone, with learned positions and GELU."""

from lineage.components import (
    Attention,
    Block,
    Causal,
    Embed,
    FeedForward,
    Head,
    LayerNorm,
    LearnedPositions,
    Model,
    Residual,
    head_width,
)

YEAR, PARENT = 2018, "transformer"
PAPER = "Radford et al. 2018, Improving Language Understanding by Generative Pre-Training"


def gpt(
    *,
    vocab: int = 40478,
    context: int = 512,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int | None = None,
    activation: str = "gelu_new",
    eps: float = 1e-5,
    tied: bool = True,
) -> Model:
    norm = LayerNorm(eps=eps)
    attention = Attention(
        heads=heads, kv_heads=heads, head_width=head_width(width, heads), mask=Causal(), bias=True, output_bias=True
    )
    mlp = FeedForward(width=4 * width if mlp_width is None else mlp_width, activation=activation, bias=True)
    block = Block(attention=Residual(body=attention, norm_sum=norm), mlp=Residual(body=mlp, norm_sum=norm))
    return Model(
        embed=Embed(vocab=vocab, width=width, positions=LearnedPositions(length=context)),
        blocks=(block,) * layers,
        head=Head(vocab=vocab, tied=tied),
    )


TINY = {"vocab": 101, "context": 160, "width": 24, "layers": 3, "heads": 3}
PUBLISHED: dict[str, dict[str, int]] = {"gpt": {}}
