"""MPNet (Song et al., 2020): BERT without segments, with a bias by distance that all layers share."""

from dataclasses import replace
from typing import Any

from lineage.components import Model, RelativeBias

from .bert import TINY as BERT
from .bert import bert

YEAR, PARENT = 2020, "bert"
PAPER = "Song et al. 2020, MPNet: Masked and Permuted Pre-training for Language Understanding"


def mpnet(
    *,
    vocab: int = 30527,
    context: int = 514,
    heads: int = 12,
    buckets: int = 32,
    eps: float = 1e-5,
    pad: int | None = 1,
    segments: int | None = None,
    head_activation: str | None = "gelu",
    **arguments: Any,
) -> Model:
    base = bert(
        vocab=vocab,
        context=context,
        heads=heads,
        eps=eps,
        pad=pad,
        segments=segments,
        head_activation=head_activation,
        **arguments,
    )
    return replace(base, position_bias=RelativeBias(buckets=buckets, distance=128, heads=heads, both_ways=True))


TINY = BERT
PUBLISHED: dict[str, dict[str, object]] = {"mpnet": {}}
