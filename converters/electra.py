"""Hugging Face's spelling of ELECTRA: BERT's, with a map behind the tables; encoders and generators."""

from lineage.config import Index, Inert, Size, inert
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .bert import BODY, DROPOUT, EMBED, POSITION_IDS, REFUSED, SIZES, SPELLINGS, TAPS
from .common import COMMON

NARROW = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
HUGGINGFACE = Dialect(
    spec="electra",
    model_types=("electra",),
    prefixes=("electra.", ""),
    config=(
        *(*COMMON, *DROPOUT, *REFUSED),
        *(Size(e.key, e.argument, NARROW[e.key]) if isinstance(e, Size) and e.key in NARROW else e for e in SIZES),
        Size("vocab_size", "vocab", 30522),
        Size("embedding_size", "table_width", 128),
        Index("pad_token_id", "padding", 0, nullable=True),
        *inert("of a head for whole sequences", "summary_type", "summary_use_proj", "summary_activation"),
        *inert("of a head for whole sequences", "summary_last_dropout", "summary_first_dropout"),
        Inert("summary_proj_to_labels", "of a head for whole sequences"),
    ),
    fixed={"head_activation": "gelu"},  # exact in the head, whatever hidden_act says
    finds=(Find("generator_predictions.", "head"),),
    tensors=(
        *BODY[:-1],
        Rule("{base}embeddings_project.{p}", "embed.projection.dense.{p}"),
        Rule("generator_predictions.dense.{p}", "head.transform.dense.{p}"),
        Rule("generator_predictions.LayerNorm.{p}", "head.transform.norm.{p}"),
        Rule("generator_lm_head.weight", "head.weight"),
        Rule("generator_lm_head.bias", "head.bias"),
    ),
    copies=(Copy("generator_lm_head.weight", of=EMBED + "word_embeddings.weight", argument="tied"),),
    drops=(POSITION_IDS,),
    taps=(
        *TAPS[1:-1],
        Tap("generator_predictions", "head.transform"),
        Tap("generator_predictions.activation", "head.transform.act"),
        Tap("generator_lm_head", "head", entry="generator_predictions"),
    ),
    spellings=SPELLINGS,
    references=(
        Reference("ElectraForMaskedLM", ("head",), {"logits": "logits"}),
        Reference("ElectraModel", (), {"hidden": "last_hidden_state"}),
    ),
)
