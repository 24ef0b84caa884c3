"""BART (Lewis et al., 2019): learned positions, GELU, and a norm of the embedding, else as in 2017."""

from dataclasses import replace
from typing import Any

from lineage.components import Consecutive, Embed, LayerNorm, LearnedPositions, Model

from .transformer import transformer

YEAR, PARENT = 2019, "transformer"
PAPER = "Lewis et al. 2019, BART: Denoising Sequence-to-Sequence Pre-training"


def bart(
    *,
    vocab: int = 50265,
    width: int = 1024,
    layers: int = 12,
    heads: int = 16,
    mlp_width: int = 4096,
    activation: str = "gelu",
    eps: float = 1e-5,
    context: int = 1024,
    scaled: bool = False,
    bias: bool = True,
    padding: int | None = 1,
    **arguments: Any,
) -> Model:
    """bias: of the logits; position ids begin at 2. The rest: of the 2017 Transformer."""
    sizes: dict[str, Any] = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "mlp_width": mlp_width}
    choices: dict[str, Any] = {"activation": activation, "eps": eps, "scaled": scaled, "bias": bias, "padding": padding}
    model = transformer(**sizes, **choices, **arguments)
    ids = Consecutive(offset=2)

    def embed(one: Embed) -> Embed:
        positions = LearnedPositions(length=context + ids.offset, ids=ids)
        return replace(one, positions=positions, norm=LayerNorm(eps=eps))

    assert model.encoder
    return replace(model, embed=embed(model.embed), encoder=replace(model.encoder, embed=embed(model.encoder.embed)))


TINY = {"vocab": 97, "width": 24, "layers": 2, "heads": 3, "mlp_width": 40, "padding": 3, "context": 160}
TINY |= {"decoder_layers": 3, "decoder_heads": 4, "decoder_mlp_width": 32}
BASE: dict[str, object] = {"width": 768, "layers": 6, "heads": 12, "mlp_width": 3072}
LARGE: dict[str, object] = {"decoder_layers": 12, "decoder_heads": 16, "decoder_mlp_width": 4096}
PUBLISHED: dict[str, dict[str, object]] = {
    "bart-large": LARGE,
    "bart": BASE | {"decoder_layers": 6, "decoder_heads": 12, "decoder_mlp_width": 3072},
    "bart-large-cnn": LARGE | {"vocab": 50264},
    "distilbart-cnn-12-6": LARGE | {"vocab": 50264, "decoder_layers": 6},
}
