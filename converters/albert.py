"""Hugging Face's spelling of ALBERT: groups of layers, each one layer."""

from lineage.config import Choice, Index, Inert, Only, Size, inert
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .bert import EMBED, POSITION_IDS, REFUSED, SIZES, SPELLINGS
from .common import ACTIVATIONS
from .heads import CLASSES, plain, pooled

GROUP, BLOCK = "{base}encoder.albert_layer_groups.{i}.albert_layers.0.", "blocks.{i}."
QKV = tuple(BLOCK + f"attention.body.{x}" for x in "qkv")
ACT = next(entry for entry in SIZES if isinstance(entry, Choice))
USUAL = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384}
HUGGINGFACE = Dialect(
    spec="albert",
    model_types=("albert",),
    prefixes=("albert.", ""),
    config=(
        *(*CLASSES, *REFUSED),
        *(
            Size(e.key, e.argument, USUAL[e.key]) if isinstance(e, Size) and e.key in USUAL else e
            for e in SIZES
            if e != ACT
        ),
        Choice(ACT.key, "activation", "gelu_new", names=ACTIVATIONS),
        Size("vocab_size", "vocab", 30000),
        Size("embedding_size", "table_width", 128),
        Size("num_hidden_groups", "groups", 1, most=4096),
        Only("inner_group_num", 1),
        Index("pad_token_id", "padding", 0, nullable=True),
        Inert("net_structure_type", "an older key that the class does not read"),
        *inert("an older key that the class does not read", "gap_size", "num_memory_blocks", "down_scale_factor"),
        *inert("training only", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"),
    ),
    finds=(
        Find("predictions.", "head"),
        Find("{base}pooler.", "pooler"),
        Find("sop_classifier.", "next_sentence"),
    ),
    tensors=(
        Rule(EMBED + "word_embeddings.weight", "embed.tokens.weight"),
        Rule(EMBED + "position_embeddings.weight", "embed.positions.weight"),
        Rule(EMBED + "token_type_embeddings.weight", "embed.segments.weight"),
        Rule(EMBED + "LayerNorm.{p}", "embed.norm.{p}"),
        Rule("{base}encoder.embedding_hidden_mapping_in.{p}", "embed.projection.dense.{p}"),
        Rule(GROUP + "attention.query.{p}", BLOCK + "attention.body.q.{p}"),
        Rule(GROUP + "attention.key.{p}", BLOCK + "attention.body.k.{p}"),
        Rule(GROUP + "attention.value.{p}", BLOCK + "attention.body.v.{p}"),
        Rule(GROUP + "attention.dense.{p}", BLOCK + "attention.body.o.{p}"),
        Rule(GROUP + "attention.LayerNorm.{p}", BLOCK + "attention.norm_sum.{p}"),
        Rule(GROUP + "ffn.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(GROUP + "ffn_output.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule(GROUP + "full_layer_layer_norm.{p}", BLOCK + "mlp.norm_sum.{p}"),
        Rule("{base}pooler.{p}", "pooler.dense.{p}"),
        Rule("predictions.dense.{p}", "head.transform.dense.{p}"),
        Rule("predictions.LayerNorm.{p}", "head.transform.norm.{p}"),
        Rule("predictions.decoder.weight", "head.weight"),
        Rule("predictions.bias", "head.bias"),
        Rule("sop_classifier.classifier.{p}", "next_sentence.{p}"),
        *plain(text="classifier", choice="classifier", tokens="classifier", span="qa_outputs"),
    ),
    copies=(
        Copy("predictions.decoder.weight", of=EMBED + "word_embeddings.weight", argument="tied"),
        Copy("predictions.decoder.bias", of="predictions.bias"),
    ),
    drops=(POSITION_IDS,),
    taps=(
        Tap("{base}encoder.embedding_hidden_mapping_in", "embed", entry=EMBED[:-1]),
        Tap(GROUP + "attention.dense", BLOCK + "attention.body.product", at="input", feeds=QKV),
        Tap(GROUP + "attention.dense", BLOCK + "attention.body", entry=GROUP + "attention"),
        Tap(GROUP + "attention", BLOCK + "attention"),
        Tap(GROUP + "activation", BLOCK + "mlp.body.act"),
        Tap(GROUP + "ffn_output", BLOCK + "mlp.body", entry=GROUP + "ffn"),
        Tap(GROUP + "full_layer_layer_norm", BLOCK + "mlp", entry=GROUP + "ffn"),
        Tap(GROUP[:-1], BLOCK[:-1]),
        Tap("predictions", "head"),
        Tap("predictions.LayerNorm", "head.transform", entry="predictions.dense"),
        Tap("predictions.activation", "head.transform.act"),
    ),
    spellings=SPELLINGS,
    references=(
        Reference(
            "AlbertForPreTraining",
            ("head", "pooler", "next_sentence"),
            {"logits": "prediction_logits", "next_sentence": "sop_logits"},
        ),
        Reference("AlbertForMaskedLM", ("head",), {"logits": "logits"}),
        *pooled("Albert"),
        Reference("AlbertModel", ("pooler",), {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
        Reference("AlbertModel", (), {"hidden": "last_hidden_state"}),
    ),
)
