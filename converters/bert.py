"""Hugging Face's spelling of BERT."""

from lineage.config import Choice, Flag, Index, Number, Only, Size, inert
from lineage.rules import Copy, Dialect, Drop, Find, Reference, Rule, Tap

from .common import ACTIVATIONS
from .heads import CLASSES, plain, pooled

DROPOUT = inert("training only", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
SIZES = (
    Size("hidden_size", "width", 768),
    Size("num_hidden_layers", "layers", 12, most=4096),
    Size("num_attention_heads", "heads", 12),
    Size("intermediate_size", "mlp_width", 3072),
    Size("max_position_embeddings", "context", 512),
    Size("type_vocab_size", "segments", 2),
    Choice("hidden_act", "activation", "gelu", names=ACTIVATIONS),
    Number("layer_norm_eps", "eps", 1e-12),
    Flag("tie_word_embeddings", "tied", True),
)
REFUSED = (
    *(Only(key, False) for key in ("is_decoder", "is_causal", "add_cross_attention")),
    Only("position_embedding_type", "absolute"),
)

LAYER, BLOCK, EMBED = "{base}encoder.layer.{i}.", "blocks.{i}.", "{base}embeddings."
QKV, TRANSFORM = tuple(BLOCK + f"attention.body.{x}" for x in "qkv"), "cls.predictions.transform"

BODY = (
    Rule(EMBED + "word_embeddings.weight", "embed.tokens.weight"),
    Rule(EMBED + "position_embeddings.weight", "embed.positions.weight"),
    Rule(EMBED + "token_type_embeddings.weight", "embed.segments.weight"),
    Rule(EMBED + "LayerNorm.{p}", "embed.norm.{p}"),
    Rule(LAYER + "attention.self.query.{p}", BLOCK + "attention.body.q.{p}"),
    Rule(LAYER + "attention.self.key.{p}", BLOCK + "attention.body.k.{p}"),
    Rule(LAYER + "attention.self.value.{p}", BLOCK + "attention.body.v.{p}"),
    Rule(LAYER + "attention.output.dense.{p}", BLOCK + "attention.body.o.{p}"),
    Rule(LAYER + "attention.output.LayerNorm.{p}", BLOCK + "attention.norm_sum.{p}"),
    Rule(LAYER + "intermediate.dense.{p}", BLOCK + "mlp.body.up.{p}"),
    Rule(LAYER + "output.dense.{p}", BLOCK + "mlp.body.down.{p}"),
    Rule(LAYER + "output.LayerNorm.{p}", BLOCK + "mlp.norm_sum.{p}"),
    Rule("{base}pooler.dense.{p}", "pooler.dense.{p}"),
)
TAPS = (
    Tap(EMBED[:-1], "embed"),
    Tap(LAYER + "attention.self", BLOCK + "attention.body.product", feeds=QKV),
    Tap(LAYER + "attention.output.dense", BLOCK + "attention.body", entry=LAYER + "attention.self"),
    Tap(LAYER + "output.dense", BLOCK + "mlp.body", entry=LAYER + "intermediate.dense"),
    Tap(LAYER + "intermediate.intermediate_act_fn", BLOCK + "mlp.body.act"),
    Tap(LAYER + "attention.output", BLOCK + "attention", entry=LAYER[:-1]),
    Tap(LAYER + "output", BLOCK + "mlp", entry=LAYER + "intermediate"),
    Tap(LAYER[:-1], BLOCK[:-1]),
    Tap("{base}pooler", "pooler"),
)
POSITION_IDS = Drop(EMBED + "position_ids", "the numbers of the positions, as a buffer", "0, 1, 2, …")
SPELLINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

HUGGINGFACE = Dialect(
    spec="bert",
    model_types=("bert",),
    prefixes=("bert.", ""),
    config=(
        *(*CLASSES, *DROPOUT, *SIZES, *REFUSED),
        Index("pad_token_id", "padding", 0, nullable=True),
        Size("vocab_size", "vocab", 30522),
    ),
    finds=(
        Find("cls.predictions.", "head"),
        Find("{base}pooler.", "pooler"),
        Find("cls.seq_relationship.", "next_sentence"),
    ),
    tensors=(
        *BODY,
        Rule("cls.predictions.transform.dense.{p}", "head.transform.dense.{p}"),
        Rule("cls.predictions.transform.LayerNorm.{p}", "head.transform.norm.{p}"),
        *(Rule("cls.predictions.decoder.weight", "head.weight"), Rule("cls.predictions.bias", "head.bias")),
        Rule("cls.seq_relationship.{p}", "next_sentence.{p}"),
        *plain(text="classifier", choice="classifier", tokens="classifier", span="qa_outputs"),
    ),
    copies=(
        Copy("cls.predictions.decoder.weight", of=EMBED + "word_embeddings.weight", argument="tied"),
        Copy("cls.predictions.decoder.bias", of="cls.predictions.bias"),
    ),
    drops=(POSITION_IDS,),
    taps=(*TAPS, Tap(TRANSFORM, "head.transform"), Tap(TRANSFORM + ".transform_act_fn", "head.transform.act")),
    spellings=SPELLINGS,
    references=(
        Reference(
            "BertForPreTraining",
            ("head", "pooler", "next_sentence"),
            {"logits": "prediction_logits", "next_sentence": "seq_relationship_logits"},
        ),
        Reference("BertForMaskedLM", ("head",), {"logits": "logits"}),
        Reference("BertForNextSentencePrediction", ("pooler", "next_sentence"), {"next_sentence": "logits"}),
        *pooled("Bert"),
        Reference("BertModel", ("pooler",), {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
        Reference("BertModel", (), {"hidden": "last_hidden_state"}),
    ),
)
