"""Hugging Face's spelling of ELECTRA: BERT's, with a map behind the tables; generators and discriminators."""

from lineage.config import Index, Only, Size, inert
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .bert import BODY, DROPOUT, EMBED, POSITION_IDS, REFUSED, SIZES, SPELLINGS, TAPS
from .heads import CLASSES, deep, plain, task

TEXTS = deep("classifier.dense", "classifier.out_proj", "text")
CHOICES = deep("sequence_summary.summary", "classifier", "choice")
REPLACED = deep("discriminator_predictions.dense", "discriminator_predictions.dense_prediction", "replaced")
NARROW = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
HUGGINGFACE = Dialect(
    spec="electra",
    model_types=("electra",),
    prefixes=("electra.", ""),
    config=(
        *(*CLASSES, *DROPOUT, *REFUSED),
        *(Size(e.key, e.argument, NARROW[e.key]) if isinstance(e, Size) and e.key in NARROW else e for e in SIZES),
        Size("vocab_size", "vocab", 30522),
        Size("embedding_size", "table_width", 128),
        Index("pad_token_id", "padding", 0, nullable=True),
        *(Only("summary_type", "first"), Only("summary_use_proj", True), Only("summary_activation", "gelu")),
        Only("summary_proj_to_labels", False, nullable=True),
        *inert("training only", "summary_last_dropout", "summary_first_dropout"),
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
        *(*TEXTS[0], *CHOICES[0], *REPLACED[0], *plain(tokens="classifier", span="qa_outputs")),
    ),
    copies=(Copy("generator_lm_head.weight", of=EMBED + "word_embeddings.weight", argument="tied"),),
    drops=(POSITION_IDS,),
    taps=(
        *TAPS[1:-1],
        Tap("generator_predictions", "head.transform"),
        Tap("generator_predictions.activation", "head.transform.act"),
        Tap("generator_lm_head", "head", entry="generator_predictions"),
        *(*TEXTS[1], *CHOICES[1], *REPLACED[1]),
    ),
    spellings=SPELLINGS,
    references=(
        Reference("ElectraForMaskedLM", ("head",), {"logits": "logits"}),
        task("Electra", "text", "classifier.out_proj.", summary="gelu"),
        task("Electra", "choice", "sequence_summary.", summary="gelu"),
        task("Electra", "tokens", "classifier.weight"),
        task("Electra", "span", "qa_outputs."),
        task("Electra", "replaced", "discriminator_predictions."),
        Reference("ElectraModel", (), {"hidden": "last_hidden_state"}),
    ),
)
