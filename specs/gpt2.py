"""GPT-2 (Radford et al., 2019): GPT with the norm moved inside the branch, and one more before the head."""

from dataclasses import replace

from lineage.components import Attention, Block, LayerNorm, Model, Residual, each, head_width

from .gpt import gpt

YEAR, PARENT = 2019, "gpt"
PAPER = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners"


def gpt2(
    *,
    vocab: int = 50257,
    context: int = 1024,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int | None = None,
    activation: str = "gelu_new",
    eps: float = 1e-5,
    tied: bool = True,
    scaled: bool = True,
    scaled_by_layer: bool = False,
) -> Model:
    """scaled: scores are divided by √head_width. scaled_by_layer: and by the layer's number, from 1 (Mistral-GPT2)."""
    base = gpt(
        vocab=vocab, context=context, width=width, layers=layers, heads=heads, mlp_width=mlp_width,
        activation=activation, eps=eps, tied=tied,
    )  # fmt: skip
    norm = LayerNorm(eps=eps)

    def block(old: Block, layer: int) -> Block:
        attention, mlp = old.attention.body, old.mlp.body
        divisor = layer + 1 if scaled_by_layer else 1
        if isinstance(attention, Attention) and not (scaled and divisor == 1):
            scale = head_width(width, heads) ** -0.5 if scaled else 1.0
            attention = replace(attention, scale=scale / divisor)
        return Block(attention=Residual(body=attention, norm_input=norm), mlp=Residual(body=mlp, norm_input=norm))

    return replace(base, blocks=each(block, base.blocks, range(layers) if scaled_by_layer else [0] * layers), norm=norm)


TINY = {"vocab": 101, "context": 160, "width": 24, "layers": 3, "heads": 3}
PUBLISHED = {
    "gpt2": {},
    "gpt2-medium": {"width": 1024, "layers": 24, "heads": 16},
    "gpt2-large": {"width": 1280, "layers": 36, "heads": 20},
    "gpt2-xl": {"width": 1600, "layers": 48, "heads": 25},
    "distilgpt2": {"layers": 6},
    "gpt3": {"width": 12288, "layers": 96, "heads": 96, "context": 2048},  # dense: which layers were not, nobody told
}
