"""DeBERTa 2 and 3 (He et al., 2020): BERT whose scores know how far apart two tokens are, by vectors of distances."""

from dataclasses import replace
from typing import Any

from lineage.components import Convolution, Disentangled, Distances, LayerNorm, Model, contradiction

from .bert import TINY as BERT
from .bert import bert

YEAR, PARENT = 2020, "bert"
PAPER = "He et al. 2020, DeBERTa: Decoding-enhanced BERT with Disentangled Attention"


def deberta_v2(
    *,
    vocab: int = 128100,
    context: int = 512,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    segments: int | None = None,
    eps: float = 1e-7,
    tied: bool = True,
    summary: str | None = "gelu",
    absolute: bool = False,
    relative: bool = True,
    span: int | None = 256,
    reach: int | None = None,
    table_norm: str = "layer_norm",
    keys: bool = True,
    queries: bool = True,
    shared: bool = True,
    head_size: int | None = None,
    kernel: int | None = None,
    conv_groups: int = 1,
    conv_activation: str = "tanh",
    late: bool = True,
    **arguments: Any,
) -> Model:
    """absolute: places are added to tokens; relative: distances are known. reach: of these, None is the context; span:
    of those that have a vector of their own, None is all. table_norm: of the vectors, "layer_norm" or "none". keys,
    queries, shared: see Disentangled. kernel, conv_groups, conv_activation: see Convolution. late: see Head.
    """
    base = bert(
        vocab=vocab, context=context, width=width, layers=layers, heads=heads, segments=segments, eps=eps,
        tied=tied or late, summary=summary, **arguments,
    )  # fmt: skip
    if head_size not in (None, width // heads):
        raise contradiction(f"heads of {head_size} channels do not make up the width", "head_size", "heads", "width")
    if not relative and table_norm != "none":
        raise contradiction("table_norm is of distances, and there are none", "table_norm", "relative")
    norm, far, first = LayerNorm(eps=eps), reach or context, base.blocks[0].attention
    usual: Any = first.body
    body = replace(
        usual,
        disentangled=Disentangled(keys=keys, queries=queries, shared=shared) if relative or keys or queries else None,
    )
    table = norm if table_norm == "layer_norm" else None
    distances = Distances(span=span or far, reach=far if span else None, norm=table)
    near = Convolution(kernel=kernel, groups=conv_groups, activation=conv_activation, norm=norm) if kernel else None
    return replace(
        base,
        embed=base.embed if absolute else replace(base.embed, positions=None),
        blocks=(replace(base.blocks[0], attention=replace(first, body=body)),) * layers,
        distances=distances if relative else None,
        convolution=near,
        head=replace(base.head, late=late) if base.head else None,
    )


LARGE = {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096}
XLARGE: dict[str, Any] = {
    "width": 1536, "layers": 24, "heads": 24, "mlp_width": 6144, "head_size": 64, "kernel": 3,
    "conv_activation": "gelu",
}  # fmt: skip
TINY = BERT | {"segments": None, "context": 40, "span": 8, "relative": True, "keys": True, "queries": True,
               "shared": True, "table_norm": "layer_norm", "absolute": False}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "deberta-v2-xlarge": XLARGE,
    "deberta-v2-xxlarge": XLARGE | {"layers": 48},
    "deberta-v3-xsmall": {"width": 384, "heads": 6, "mlp_width": 1536},
    "deberta-v3-small": {"layers": 6},
    "deberta-v3-base": {},
    "deberta-v3-large": LARGE,
    "mdeberta-v3-base": {"vocab": 251000},
}
