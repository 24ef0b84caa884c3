"""Hugging Face's spelling of BART and of mBART, which is BART with its norms moved."""

from dataclasses import replace

from lineage.config import Entry, Flag, Index, Only, Size, Twin
from lineage.rules import Dialect, Reference

from .stack_keys import OTHERS, sizes
from .two_stacks import (
    BIAS,
    DEAD,
    FORMAT,
    HEAD,
    LAST,
    LOGITS_BIAS,
    NORMS,
    POSITIONS,
    SCALED,
    SHARED,
    TABLES,
    TAPS,
    WHOLE,
    stacks,
)


def keys(act: str = "gelu", scaled: bool = False, padding: int = 1, vocab: int = 50265) -> tuple[Entry, ...]:
    """The keys of models whose tables are one unless all are apart."""
    return (
        *OTHERS,
        *sizes(1024, 12, 16, 4096, act),
        Size("vocab_size", "vocab", vocab),
        Flag("scale_embedding", "scaled", scaled),
        Twin("tie_word_embeddings", "tied", True, others=("shared",)),
        Index("pad_token_id", "padding", padding, nullable=True),
        Only("is_decoder", False),
    )


HUGGINGFACE = Dialect(
    spec="bart",
    model_types=("bart",),
    prefixes=("model.", ""),
    config=keys(),
    fixed={"eps": 1e-5},
    finds=(BIAS,),
    tensors=(*TABLES, *POSITIONS, *NORMS, *stacks("norm_sum"), HEAD, LOGITS_BIAS),
    copies=SHARED,
    drops=(DEAD, *FORMAT),
    taps=(*TAPS, WHOLE, *SCALED),
    references=(Reference("BartForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
MULTILINGUAL = replace(
    HUGGINGFACE,
    spec="mbart",
    model_types=("mbart",),
    tensors=(*TABLES, *POSITIONS, *NORMS, *LAST, *stacks("norm_input"), HEAD, LOGITS_BIAS),
    references=(Reference("MBartForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
