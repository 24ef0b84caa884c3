"""mBART (Liu et al., 2020): BART with norms before the branches, one behind each stack, and scaled tokens."""

from typing import Any

from lineage.components import Model

from .bart import bart
from .pegasus import norms_first

YEAR, PARENT = 2020, "bart"
PAPER = "Liu et al. 2020, Multilingual Denoising Pre-training for Neural Machine Translation"


def mbart(*, vocab: int = 250027, activation: str = "gelu", scaled: bool = True, **arguments: Any) -> Model:
    """The arguments of BART."""
    return norms_first(bart(vocab=vocab, activation=activation, scaled=scaled, **arguments))


TINY = {"vocab": 97, "width": 24, "layers": 2, "heads": 3, "mlp_width": 40, "padding": 3, "context": 160}
TINY |= {"decoder_layers": 3, "decoder_heads": 4, "decoder_mlp_width": 32}
LARGE: dict[str, object] = {"decoder_layers": 12, "decoder_heads": 16, "decoder_mlp_width": 4096}
PUBLISHED: dict[str, dict[str, object]] = {
    "mbart": LARGE,
    "mbart-50": LARGE | {"vocab": 250054, "activation": "relu"},
}
