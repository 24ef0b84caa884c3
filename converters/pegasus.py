"""Hugging Face's spelling of PEGASUS."""

from lineage.rules import Dialect, Reference

from .bart import keys
from .two_stacks import (
    BIAS,
    DEAD,
    HEAD,
    LAST,
    LOGITS_BIAS,
    POSITIONS,
    SHARED,
    TABLE,
    TABLES,
    TAPS,
    WAVES,
    WHOLE,
    stacks,
)

HUGGINGFACE = Dialect(
    spec="pegasus",
    model_types=("pegasus",),
    prefixes=("model.", ""),
    config=keys(padding=0),
    fixed={"eps": 1e-5, "apart": True},
    finds=(BIAS, TABLE),
    tensors=(*TABLES, *POSITIONS, *LAST, *stacks("norm_input"), HEAD, LOGITS_BIAS),
    copies=SHARED,
    drops=(*WAVES, DEAD),
    taps=(*TAPS, WHOLE),
    references=(Reference("PegasusForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
