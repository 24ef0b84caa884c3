"""Hugging Face's spelling of T5, Flan-T5 and T5 1.1, and of mT5."""

from dataclasses import replace

from lineage.config import After, Coded, Entry, Inert, Number, Only, Size, inert
from lineage.rules import Dialect, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON, PADDING, without
from .t5_layers import COPIES, DROPS, RULES, SIDES, TAPS

BRANCH = ".block.{i}.layer."


def sizes(width: int, mlp_width: int, layers: int, heads: int, vocab: int = 32128) -> tuple[Entry, ...]:
    """The keys of sizes and of what stands for positions."""
    return (
        *(*without(COMMON, "is_encoder_decoder"), *CACHED),
        Only("is_encoder_decoder", True),
        Only("is_decoder", False),
        Size("vocab_size", "vocab", vocab),
        Size("d_model", "width", width, ("hidden_size",)),
        Size("d_ff", "mlp_width", mlp_width),
        Size("num_heads", "heads", heads, ("num_attention_heads",)),
        Size("relative_attention_num_buckets", "buckets", 32),
        Size("relative_attention_max_distance", "distance", 128),
        Number("layer_norm_epsilon", "eps", 1e-6),
        PADDING,
        Inert("decoder_start_token_id", "which token a target begins with: how generation is called"),
        *inert("training only", "dropout_rate", "initializer_factor", "classifier_dropout"),
    )


def keys(layers: int, act: str, *size: int) -> tuple[Entry, ...]:
    """Those with an activation by name and code. size: see `sizes`."""
    width, mlp_width, heads, vocab = size
    return (
        *sizes(width, mlp_width, layers, heads, vocab),
        Size("d_kv", "head_size", 64, ("head_dim",)),
        Size("num_layers", "layers", layers, ("num_hidden_layers",), most=4096),
        Size("num_decoder_layers", "decoder_layers", None, most=4096),
        Coded("feed_forward_proj", act, ACTIVATIONS, {"gated-gelu": "gelu_new"}, "dense_act_fn", "is_gated_act"),
    )


def is_gated(model: object) -> bool:
    """Whether its feed-forward networks have gates."""
    return bool(model.blocks[0].mlp.body.gated)  # type: ignore[attr-defined]


def is_plain(model: object) -> bool:
    """Whether they have none."""
    return not is_gated(model)


DENSE = tuple(
    Rule(f"{side}{BRANCH}{place}.DenseReluDense.{a}.weight", f"{ours}blocks.{{i}}.mlp.body.{b}.weight", where=where)
    for side, ours, place in SIDES
    for a, b, where in (
        ("wi", "up", is_plain),
        ("wi_0", "gate", is_gated),
        ("wi_1", "up", is_gated),
        ("wo", "down", None),
    )
)
WITHIN = tuple(
    Tap(f"{side}{BRANCH}{place}.DenseReluDense{a}", f"{ours}blocks.{{i}}.mlp.body{b}")
    for side, ours, place in SIDES
    for a, b in (("", ""), (".act", ".act"))
)
HUGGINGFACE = Dialect(
    spec="t5",
    model_types=("t5",),
    config=(
        *keys(6, "relu", 512, 2048, 8, 32128),
        After("scale_decoder_outputs", "scaled", True, of="tie_word_embeddings"),
    ),
    fixed={"tied": True},
    tensors=(*RULES, *DENSE),
    copies=COPIES,
    drops=DROPS,
    taps=(*TAPS, *WITHIN),
    references=(Reference("T5ForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
MULTILINGUAL = replace(
    HUGGINGFACE,
    model_types=("mt5",),
    config=(
        *keys(8, "gated-gelu", 512, 1024, 6, 250112),
        Inert("tie_word_embeddings", "the tensors in the file decide, and the class overrules the key"),
    ),
    fixed={"tied": True, "scaled": False},
    references=(Reference("MT5ForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
