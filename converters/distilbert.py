"""Hugging Face's spelling of DistilBERT: BERT without segments, with shorter names."""

from lineage.config import Choice, Flag, Index, Inert, Only, Size, inert
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .bert import EMBED, POSITION_IDS, SPELLINGS
from .common import ACTIVATIONS
from .heads import CLASSES, deep, plain, task

LAYER, BLOCK = "{base}transformer.layer.{i}.", "blocks.{i}."
RULES, SUMMARY = deep("pre_classifier", "classifier", "text", "choice")

HUGGINGFACE = Dialect(
    spec="bert",
    model_types=("distilbert",),
    prefixes=("distilbert.", ""),
    config=(
        *CLASSES,
        Index("pad_token_id", "padding", 0, nullable=True),
        Size("vocab_size", "vocab", 30522),
        Size("dim", "width", 768, ("hidden_size",)),
        Size("n_layers", "layers", 6, ("num_hidden_layers",), most=4096),
        Size("n_heads", "heads", 12, ("num_attention_heads",)),
        Size("hidden_dim", "mlp_width", 3072),
        Size("max_position_embeddings", "context", 512),
        Choice("activation", "activation", "gelu", names=ACTIVATIONS),
        Flag("tie_word_embeddings", "tied", True),
        Only("is_causal", False),
        Inert("sinusoidal_pos_embds", "how the table of positions was first filled"),
        Inert("tie_weights_", "a note of old versions: tie_word_embeddings decides"),
        *inert("training only", "dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout"),
    ),
    fixed={"segments": None, "eps": 1e-12},
    finds=(Find("vocab_", "head"),),
    tensors=(
        Rule(EMBED + "word_embeddings.weight", "embed.tokens.weight"),
        Rule(EMBED + "position_embeddings.weight", "embed.positions.weight"),
        Rule(EMBED + "LayerNorm.{p}", "embed.norm.{p}"),
        Rule(LAYER + "attention.q_lin.{p}", BLOCK + "attention.body.q.{p}"),
        Rule(LAYER + "attention.k_lin.{p}", BLOCK + "attention.body.k.{p}"),
        Rule(LAYER + "attention.v_lin.{p}", BLOCK + "attention.body.v.{p}"),
        Rule(LAYER + "attention.out_lin.{p}", BLOCK + "attention.body.o.{p}"),
        Rule(LAYER + "sa_layer_norm.{p}", BLOCK + "attention.norm_sum.{p}"),
        Rule(LAYER + "ffn.lin1.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "ffn.lin2.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule(LAYER + "output_layer_norm.{p}", BLOCK + "mlp.norm_sum.{p}"),
        Rule("vocab_transform.{p}", "head.transform.dense.{p}"),
        Rule("vocab_layer_norm.{p}", "head.transform.norm.{p}"),
        Rule("vocab_projector.weight", "head.weight"),
        Rule("vocab_projector.bias", "head.bias"),
        *(*RULES, *plain(tokens="classifier", span="qa_outputs")),
    ),
    copies=(Copy("vocab_projector.weight", of=EMBED + "word_embeddings.weight", argument="tied"),),
    drops=(POSITION_IDS,),
    taps=(
        Tap(EMBED[:-1], "embed"),
        Tap(
            LAYER + "attention.out_lin",
            BLOCK + "attention.body.product",
            at="input",
            feeds=tuple(BLOCK + f"attention.body.{x}" for x in "qkv"),
        ),
        Tap(LAYER + "attention", BLOCK + "attention.body"),
        Tap(LAYER + "ffn", BLOCK + "mlp.body"),
        Tap(LAYER + "sa_layer_norm", BLOCK + "attention", entry=LAYER[:-1]),
        Tap(LAYER + "output_layer_norm", BLOCK + "mlp", entry=LAYER + "ffn"),
        Tap("vocab_layer_norm", "head.transform.act", at="input", feeds=("head.transform.dense",)),
        Tap("vocab_layer_norm", "head.transform", entry="vocab_transform"),
        Tap("vocab_projector", "head", entry="vocab_transform"),
        Tap(LAYER + "ffn.activation", BLOCK + "mlp.body.act"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        *SUMMARY,
    ),
    spellings=SPELLINGS,
    references=(
        Reference("DistilBertForMaskedLM", ("head",), {"logits": "logits"}),
        *(task("DistilBert", name, "pre_classifier.", summary="relu") for name in ("text", "choice")),
        task("DistilBert", "tokens", "classifier."),
        task("DistilBert", "span", "qa_outputs."),
        Reference("DistilBertModel", (), {"hidden": "last_hidden_state"}),
    ),
)
