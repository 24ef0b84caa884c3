"""ALBERT (Lan et al., 2019): BERT with a narrow token table, and one layer that runs at every depth."""

from dataclasses import replace
from typing import Any

from lineage.components import Model

from .bert import TINY as BERT
from .bert import bert
from .electra import narrow

YEAR, PARENT = 2019, "bert"
PAPER = "Lan et al. 2019, ALBERT: A Lite BERT for Self-supervised Learning of Language Representations"


def albert(
    *,
    vocab: int = 30000,
    width: int = 768,
    table_width: int = 128,
    layers: int = 12,
    groups: int = 1,
    activation: str = "gelu_new",
    **arguments: Any,
) -> Model:
    """groups: of neighbouring layers that are one; table_width: of the token table and the head."""
    base = bert(vocab=vocab, width=width, layers=groups, activation=activation, **arguments)
    order = tuple(depth * groups // layers for depth in range(layers))
    return replace(narrow(base, table_width, True), order=order)


TINY = BERT | {"table_width": 16}
PUBLISHED = {
    "albert-base": {},
    "albert-large": {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096},
    "albert-xlarge": {"width": 2048, "layers": 24, "heads": 16, "mlp_width": 8192},
    "albert-xxlarge": {"width": 4096, "layers": 12, "heads": 64, "mlp_width": 16384},
}
