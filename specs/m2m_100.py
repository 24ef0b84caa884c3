"""M2M-100 (Fan et al., 2020) and NLLB: the 2017 Transformer with norms before the branches, between many languages."""

from typing import Any

from lineage.components import Model

from .pegasus import norms_first
from .transformer import transformer

YEAR, PARENT = 2020, "transformer"
PAPER = "Fan et al. 2020, Beyond English-Centric Multilingual Machine Translation"


def m2m_100(
    *,
    vocab: int = 128112,
    width: int = 1024,
    layers: int = 12,
    heads: int = 16,
    mlp_width: int = 4096,
    eps: float = 1e-5,
    padding: int | None = 1,
    skipped: bool = True,
    apart: bool = True,
    closed: bool = True,
    single: bool = False,
    **arguments: Any,
) -> Model:
    """As the 2017 Transformer; positions skip padding, and have no end."""
    sizes: dict[str, Any] = {"vocab": vocab, "width": width, "layers": layers, "heads": heads, "mlp_width": mlp_width}
    places: dict[str, Any] = {
        "padding": padding,
        "skipped": skipped,
        "apart": apart,
        "closed": closed,
        "single": single,
    }
    return norms_first(transformer(eps=eps, **sizes, **places, **arguments))


TINY = {"vocab": 97, "width": 24, "layers": 2, "heads": 3, "mlp_width": 40, "padding": 3}
TINY |= {"decoder_layers": 3, "decoder_heads": 4, "decoder_mlp_width": 32}
SMALL: dict[str, object] = {"context": 1024, "decoder_layers": 12, "decoder_heads": 16, "decoder_mlp_width": 4096}
DEEP: dict[str, object] = {"layers": 24, "mlp_width": 8192, "decoder_layers": 24, "decoder_mlp_width": 8192}
NLLB: dict[str, object] = SMALL | {"vocab": 256206}
PUBLISHED: dict[str, dict[str, object]] = {
    "m2m-100-418m": SMALL,
    "m2m-100-1.2b": SMALL | DEEP,
    "nllb-200-distilled-600m": NLLB,
    "nllb-200-1.3b": NLLB | DEEP,
    "nllb-200-3.3b": NLLB | DEEP | {"width": 2048},
}
