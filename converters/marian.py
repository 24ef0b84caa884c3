"""Hugging Face's spelling of Marian (opus-mt): the 2017 Transformer with sines before cosines."""

from lineage.config import Flag, Index, Only, Size, Under
from lineage.rules import Copy, Dialect, Reference

from .stack_keys import OTHERS, sizes
from .two_stacks import (
    BIAS,
    DEAD,
    HEAD,
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
    spec="transformer",
    model_types=("marian",),
    prefixes=("model.", ""),
    config=(
        *OTHERS,
        *sizes(1024, 12, 16, 4096, "gelu"),
        Size("vocab_size", "vocab", 58101),
        Size("decoder_vocab_size", "target_vocab", None),
        Flag("scale_embedding", "scaled", False),
        Under("share_encoder_decoder_embeddings", "shared", True, of="tie_word_embeddings"),
        Flag("tie_word_embeddings", "tied", True),
        Index("pad_token_id", "padding", 58100, nullable=True),
        Only("is_decoder", False),
    ),
    fixed={"eps": 1e-5, "apart": True, "skipped": False, "closed": False, "single": True},
    finds=(BIAS, TABLE),
    tensors=(*TABLES, *POSITIONS, *stacks("norm_sum"), HEAD, LOGITS_BIAS),
    copies=(*SHARED, Copy("lm_head.weight", of="{base}decoder.embed_tokens.weight", argument="tied")),
    drops=(*WAVES, DEAD),
    taps=(*TAPS, WHOLE),
    references=(Reference("MarianMTModel", ("head",), {"logits": "logits"}),),
)
