"""PEGASUS (Zhang et al., 2019): the 2017 Transformer with norms before the branches, and one behind each stack."""

from dataclasses import replace
from typing import Any

from lineage.components import Block, Model, Residual, each

from .transformer import transformer

YEAR, PARENT = 2019, "transformer"
PAPER = "Zhang et al. 2019, PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive Summarization"


def norms_first(model: Model) -> Model:
    """Each norm that follows a sum moved before its branch, and one more behind each stack (Xiong et al. 2020)."""

    def branch(one: Residual) -> Residual:
        return replace(one, norm_input=one.norm_sum, norm_sum=None)

    def block(one: Block) -> Block:
        cross = branch(one.cross) if one.cross else None
        return replace(one, attention=branch(one.attention), cross=cross, mlp=branch(one.mlp))

    encoder = norms_first(model.encoder) if model.encoder else None
    last = model.blocks[0].mlp.norm_sum
    return replace(model, encoder=encoder, blocks=each(block, model.blocks), norm=last)


def pegasus(
    *,
    vocab: int = 96103,
    width: int = 1024,
    layers: int = 16,
    heads: int = 16,
    mlp_width: int = 4096,
    eps: float = 1e-5,
    context: int = 512,
    bias: bool = True,
    padding: int | None = 0,
    apart: bool = True,
    **arguments: Any,
) -> Model:
    """As the 2017 Transformer."""
    sizes: dict[str, Any] = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "mlp_width": mlp_width}
    choices: dict[str, Any] = {"eps": eps, "context": context, "bias": bias, "padding": padding, "apart": apart}
    return norms_first(transformer(**sizes, **choices, **arguments))


TINY = {"vocab": 97, "width": 24, "layers": 2, "heads": 3, "mlp_width": 40, "padding": 3, "context": 160}
TINY |= {"decoder_layers": 3, "decoder_heads": 4, "decoder_mlp_width": 32}
SIXTEEN: dict[str, object] = {
    "activation": "relu",
    "decoder_heads": 16,
    "decoder_mlp_width": 4096,
    "decoder_layers": 16,
}
PUBLISHED: dict[str, dict[str, object]] = {
    "pegasus": SIXTEEN,
    "pegasus-large": SIXTEEN | {"context": 1024},
    "distill-pegasus-xsum-16-4": SIXTEEN | {"decoder_layers": 4},
}
