"""Hugging Face's spelling of FSMT (fairseq's wmt19): the 2017 Transformer with a vocabulary for each language."""

from lineage.config import Flag, Index, Inert, Size, Twin
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .stack_keys import OTHERS, sizes
from .two_stacks import POSITIONS, TAPS, stacks

WORDS, HEAD = "{base}decoder.embed_tokens.weight", "{base}decoder.output_projection.weight"
HUGGINGFACE = Dialect(
    spec="transformer",
    model_types=("fsmt",),
    prefixes=("model.", ""),
    config=(
        *OTHERS,
        *sizes(1024, 12, 16, 4096, "relu"),
        Size("src_vocab_size", "vocab", 42024),
        Size("tgt_vocab_size", "target_vocab", 42024, ("vocab_size",)),
        Flag("scale_embedding", "scaled", True),
        Twin("tie_word_embeddings", "tied", False, others=("shared",)),
        Index("pad_token_id", "padding", 1),
        Inert("langs", "names of the languages, for the tokenizer"),
        Inert("decoder", "a part of old configs that the class drops"),
    ),
    fixed={"eps": 1e-5, "bias": False, "apart": True, "skipped": True, "closed": True, "single": False, "early": True},
    finds=(Find("{base}encoder.embed_positions.weight", "table"),),
    tensors=(
        Rule(
            ("{base}encoder.embed_tokens.weight", WORDS),
            ("encoder.embed.tokens.weight", "embed.tokens.weight"),
            where=lambda model: not model.embed.tied,
        ),
        Rule(WORDS, "encoder.embed.tokens.weight", where=lambda model: model.embed.tied),
        *POSITIONS,
        *stacks("norm_sum"),
        Rule(HEAD, "head.weight"),
    ),
    copies=(
        Copy("{base}encoder.embed_tokens.weight", of=WORDS, argument="shared"),
        Copy(HEAD, of=WORDS, argument="tied"),
    ),
    taps=(*TAPS, Tap(HEAD.removesuffix(".weight"), "head")),
    references=(Reference("FSMTForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
