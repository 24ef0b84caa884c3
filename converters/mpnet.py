"""Hugging Face's spelling of MPNet: BERT's, with short names for attention and one bias for all layers."""

from lineage.config import Choice, Flag, Inert, Number, Only, Size
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .bert import BODY, DROPOUT, EMBED, POSITION_IDS, REFUSED, SPELLINGS
from .common import ACTIVATIONS
from .heads import CLASSES, apart, deep, plain

LAYER, BLOCK = "{base}encoder.layer.{i}.", "blocks.{i}."
OTHERS = tuple(rule for rule in BODY if ".attention." not in rule.sources[0] and "token_type" not in rule.sources[0])
RULES, SUMMARY = deep("classifier.dense", "classifier.out_proj", "text")
HUGGINGFACE = Dialect(
    spec="mpnet",
    model_types=("mpnet",),
    prefixes=("mpnet.", ""),
    config=(
        *(*CLASSES, *DROPOUT, *REFUSED),
        Size("vocab_size", "vocab", 30527),
        Size("hidden_size", "width", 768),
        Size("num_hidden_layers", "layers", 12, most=4096),
        Size("num_attention_heads", "heads", 12),
        Size("intermediate_size", "mlp_width", 3072),
        Size("max_position_embeddings", "context", 512),
        Choice("hidden_act", "activation", "gelu", names=ACTIVATIONS),
        Number("layer_norm_eps", "eps", 1e-12),
        Only("relative_attention_num_buckets", 32),  # the code sorts into 32, whatever the table's length
        Flag("tie_word_embeddings", "tied", True),
        Inert("pad_token_id", "the code takes token 1 for padding, whatever the config says"),
    ),
    fixed={"pad": 1, "buckets": 32, "head_activation": "gelu"},
    finds=(Find("lm_head.", "head"), Find("{base}pooler.", "pooler")),
    tensors=(
        *OTHERS,
        *(Rule(LAYER + f"attention.attn.{x}.{{p}}", BLOCK + f"attention.body.{x}.{{p}}") for x in "qkvo"),
        Rule(LAYER + "attention.LayerNorm.{p}", BLOCK + "attention.norm_sum.{p}"),
        Rule("{base}encoder.relative_attention_bias.weight", "position_bias.weight"),
        Rule("lm_head.dense.{p}", "head.transform.dense.{p}"),
        Rule("lm_head.layer_norm.{p}", "head.transform.norm.{p}"),
        Rule("lm_head.decoder.weight", "head.weight"),
        Rule("lm_head.bias", "head.bias"),
        *(*RULES, *plain(choice="classifier", tokens="classifier", span="qa_outputs")),
    ),
    copies=(
        Copy("lm_head.decoder.weight", of=EMBED + "word_embeddings.weight", argument="tied"),
        Copy("lm_head.decoder.bias", of="lm_head.bias"),
    ),
    drops=(POSITION_IDS,),
    taps=(
        Tap(EMBED[:-1], "embed"),
        Tap(
            LAYER + "attention.attn.o",
            BLOCK + "attention.body.product",
            at="input",
            feeds=tuple(BLOCK + f"attention.body.{x}" for x in "qkv"),
        ),
        Tap(LAYER + "attention.attn", BLOCK + "attention.body"),
        Tap(LAYER + "attention", BLOCK + "attention"),
        Tap(LAYER + "output.dense", BLOCK + "mlp.body", entry=LAYER + "intermediate.dense"),
        Tap(LAYER + "intermediate.intermediate_act_fn", BLOCK + "mlp.body.act"),
        Tap(LAYER + "output", BLOCK + "mlp", entry=LAYER + "intermediate"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap(
            "{base}encoder.relative_attention_bias", "position_bias", at="nothing"
        ),  # ours is of places, theirs a table
        Tap("{base}pooler", "pooler"),
        Tap("lm_head.layer_norm", "head.transform.act", at="input", feeds=("head.transform.dense",)),
        Tap("lm_head.layer_norm", "head.transform", entry="lm_head"),
        *SUMMARY,
    ),
    spellings=SPELLINGS,
    references=(
        Reference("MPNetForMaskedLM", ("head",), {"logits": "logits"}),
        *apart("MPNet"),
        Reference("MPNetModel", ("pooler",), {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
        Reference("MPNetModel", (), {"hidden": "last_hidden_state"}),
    ),
)
