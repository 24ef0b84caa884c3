"""Hugging Face's spelling of ModernBERT: queries, keys and values in one map, gate and up in another."""

from lineage.config import Choice, Flag, Index, Inert, Number, Only, Pattern, RotaryKinds, Size, inert
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Split, Tap

from .common import ACTIVATIONS, KINDS
from .heads import CLASSES, of, plain, task

LAYER, BLOCK = "{base}layers.{i}.", "blocks.{i}."
KINDS_OF_HEAD = ("text", "choice", "tokens", "span")
QKV = tuple(BLOCK + f"attention.body.{x}" for x in "qkv")
HUGGINGFACE = Dialect(
    spec="modernbert",
    model_types=("modernbert",),
    prefixes=("model.", ""),
    config=(
        *CLASSES,
        Size("vocab_size", "vocab", 50368),
        Size("hidden_size", "width", 768),
        Size("num_hidden_layers", "layers", 22, most=4096),
        Size("num_attention_heads", "heads", 12),
        Size("intermediate_size", "mlp_width", 1152),
        Choice("hidden_activation", "activation", "gelu", names=ACTIVATIONS),
        Choice("classifier_activation", "head_activation", "gelu", names=ACTIVATIONS),
        Number("norm_eps", "eps", 1e-5),
        Flag("norm_bias", "norm_bias", False),
        Flag("attention_bias", "bias", False),
        Flag("mlp_bias", "mlp_bias", False),
        Flag("decoder_bias", "head_bias", True),
        Flag("classifier_bias", "transform_bias", False),
        Size("local_attention", "span", 128),
        Pattern("layer_types", "pattern", None, names=KINDS),
        Size("global_attn_every_n_layers", "period", 3, quiet=True),
        RotaryKinds(
            "rope_parameters",
            {
                "full_attention": ("", 160000.0, "global_rope_theta"),
                "sliding_attention": ("local_", 10000.0, "local_rope_theta"),
            },
        ),
        Index("pad_token_id", "padding", 50283, nullable=True),
        Flag("tie_word_embeddings", "tied", True),
        Inert("max_position_embeddings", "a length for people, and for rotary scalings that need one"),
        Inert("cls_token_id", "which token is which: the tokenizer's concern"),
        Choice("classifier_pooling", "pooling", "cls", names={"cls": "first", "mean": "mean"}),
        *inert("training only", "attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout"),
        Inert("initializer_cutoff_factor", "training only"),
        *inert("which kernel computes the same product", "deterministic_flash_attn", "reference_compile"),
        *inert("which logits are computed at all", "sparse_prediction", "sparse_pred_ignore_index"),
        *inert("an older key that the class does not read", "position_embedding_type", "layer_norm_eps"),
        Inert("repad_logits_with_grad", "an older key that the class does not read"),
        *(Only(key, None) for key in ("head_dim", "num_key_value_heads", "attention_chunk_size", "sliding_window")),
        *(Only(key, False) for key in ("is_causal", "is_decoder")),
    ),
    finds=(Find("head.", "head"),),
    tensors=(
        Rule("{base}embeddings.tok_embeddings.weight", "embed.tokens.weight"),
        Rule("{base}embeddings.norm.{p}", "embed.norm.{p}"),
        Rule(LAYER + "attn_norm.{p}", BLOCK + "attention.norm_input.{p}"),
        Rule(LAYER + "attn.Wqkv.{p}", tuple(x + ".{p}" for x in QKV), Split()),
        Rule(LAYER + "attn.Wo.{p}", BLOCK + "attention.body.o.{p}"),
        Rule(LAYER + "mlp_norm.{p}", BLOCK + "mlp.norm_input.{p}"),
        Rule(LAYER + "mlp.Wi.{p}", (BLOCK + "mlp.body.gate.{p}", BLOCK + "mlp.body.up.{p}"), Split()),
        Rule(LAYER + "mlp.Wo.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule("{base}final_norm.{p}", "norm.{p}"),
        Rule("head.dense.{p}", "classifier.transform.dense.{p}", where=of(*KINDS_OF_HEAD)),
        Rule("head.norm.{p}", "classifier.transform.norm.{p}", where=of(*KINDS_OF_HEAD)),
        *plain(**dict.fromkeys(KINDS_OF_HEAD, "classifier")),
        Rule("head.dense.{p}", "head.transform.dense.{p}"),
        Rule("head.norm.{p}", "head.transform.norm.{p}"),
        Rule("decoder.weight", "head.weight"),
        Rule("decoder.bias", "head.bias"),
    ),
    copies=(Copy("decoder.weight", of="{base}embeddings.tok_embeddings.weight", argument="tied"),),
    taps=(
        Tap("{base}embeddings", "embed"),
        Tap(LAYER + "attn.Wo", BLOCK + "attention.body.product", at="input", feeds=QKV),
        Tap(LAYER + "attn", BLOCK + "attention.body"),
        Tap(LAYER + "mlp_norm", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER + "mlp.act", BLOCK + "mlp.body.act"),
        Tap(LAYER + "mlp", BLOCK + "mlp.body"),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=LAYER + "mlp_norm"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("head", "head.transform"),
        Tap("head.act", "head.transform.act"),
        Tap("decoder", "head", entry="head"),
        Tap("head", "classifier.transform"),
        Tap("head.act", "classifier.transform.act"),
        Tap("classifier", "classifier", entry="head"),
    ),
    references=(
        Reference("ModernBertForMaskedLM", ("head",), {"logits": "logits"}),
        *(task("ModernBert", name, "classifier.", head=False) for name in KINDS_OF_HEAD),
        Reference("ModernBertModel", (), {"hidden": "last_hidden_state"}),
    ),
)
