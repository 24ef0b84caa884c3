"""Hugging Face's spelling of M2M-100 and NLLB."""

from lineage.config import Index
from lineage.rules import Dialect, Drop, Reference, Tap

from .bart import keys
from .common import without
from .two_stacks import DEAD, FORMAT, HEAD, LAST, POSITIONS, SCALED, SHARED, TABLES, TAPS, stacks

COMPUTED = tuple(
    Drop(rule.sources[0] + end, "sines and cosines, which are computed", None)
    for rule in POSITIONS
    for end in ("", "s")
)
HUGGINGFACE = Dialect(
    spec="m2m_100",
    model_types=("m2m_100",),
    prefixes=("model.", ""),
    config=(*without(keys("relu", True, vocab=128112), "pad_token_id"), Index("pad_token_id", "padding", 1)),
    fixed={"eps": 1e-5, "bias": False, "skipped": True, "apart": True, "closed": True, "single": False},
    tensors=(*TABLES, *LAST, *stacks("norm_input"), HEAD),
    copies=SHARED,
    drops=(*COMPUTED, DEAD, *FORMAT),
    taps=(*TAPS, *SCALED, Tap("lm_head", "head")),
    references=(Reference("M2M100ForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
