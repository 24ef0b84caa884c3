"""Hugging Face's spelling of GPT-2: fused query-key-value, matrices stored [in, out] (Conv1D)."""

from lineage.config import Choice, Flag, Inert, Island, Number, Only, Size, inert
from lineage.rules import Copy, Dialect, Drop, Reference, Rule, Split, Tap, Transpose

from .common import ACTIVATIONS, CACHED, COMMON, PADDING

SUMMARY = inert(
    "the classification heads' summary, which these models lack",
    *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")),
)
DROPOUT = inert("training only", "attn_pdrop", "embd_pdrop", "resid_pdrop")
SIZES = (
    Size("n_embd", "width", 768, ("hidden_size",)),
    Size("n_layer", "layers", 12, ("num_hidden_layers",), most=4096),
    Size("n_head", "heads", 12, ("num_attention_heads",)),
    Number("layer_norm_epsilon", "eps", 1e-5),
    Flag("tie_word_embeddings", "tied", True),
)

LAYER, BLOCK = "{base}h.{i}.", "blocks.{i}."
QKV = tuple(BLOCK + f"attention.body.{x}." for x in "qkv")


def layer_rules(attention_norm: str, mlp_norm: str) -> tuple[Rule, ...]:
    """One block; the norms stand in the given slots of their residuals."""
    return (
        Rule(LAYER + "ln_1.{p}", BLOCK + f"attention.{attention_norm}.{{p}}"),
        Rule(LAYER + "attn.c_attn.weight", tuple(x + "weight" for x in QKV), Transpose(), Split()),
        Rule(LAYER + "attn.c_attn.bias", tuple(x + "bias" for x in QKV), Split()),
        Rule(LAYER + "attn.c_proj.weight", BLOCK + "attention.body.o.weight", Transpose()),
        Rule(LAYER + "attn.c_proj.bias", BLOCK + "attention.body.o.bias"),
        Rule(LAYER + "ln_2.{p}", BLOCK + f"mlp.{mlp_norm}.{{p}}"),
        Rule(LAYER + "mlp.c_fc.weight", BLOCK + "mlp.body.up.weight", Transpose()),
        Rule(LAYER + "mlp.c_fc.bias", BLOCK + "mlp.body.up.bias"),
        Rule(LAYER + "mlp.c_proj.weight", BLOCK + "mlp.body.down.weight", Transpose()),
        Rule(LAYER + "mlp.c_proj.bias", BLOCK + "mlp.body.down.bias"),
    )


PRODUCT = Tap(
    LAYER + "attn.c_proj", BLOCK + "attention.body.product", at="input", feeds=tuple(x.rstrip(".") for x in QKV)
)
TAPS = (
    PRODUCT,
    Tap(LAYER + "attn", BLOCK + "attention.body"),
    Tap(LAYER + "mlp.act", BLOCK + "mlp.body.act"),
    Tap(LAYER + "mlp", BLOCK + "mlp.body"),
    Tap(LAYER[:-1], BLOCK[:-1]),
    Tap("lm_head", "head"),
)
BUFFERS = (
    Drop(LAYER + "attn.bias", "the causal mask, as a buffer", "lower triangle"),
    Drop(LAYER + "attn.masked_bias", "the score of a masked pair, as a buffer", "-1e4"),
)

HUGGINGFACE = Dialect(
    spec="gpt2",
    model_types=("gpt2",),
    prefixes=("transformer.", ""),
    config=(
        *COMMON,
        *CACHED,
        *SUMMARY,
        *DROPOUT,
        *SIZES,
        PADDING,
        Size("vocab_size", "vocab", 50257),
        Size("n_positions", "context", 1024, ("max_position_embeddings",)),
        Size("n_inner", "mlp_width", None),
        Choice("activation_function", "activation", "gelu_new", names=ACTIVATIONS),
        Flag("scale_attn_weights", "scaled", True),
        Flag("scale_attn_by_inverse_layer_idx", "scaled_by_layer", False),
        Island("reorder_and_upcast_attn", "the order and precision of the same product"),
        Inert("n_ctx", "the length is n_positions"),
        Only("add_cross_attention", False),
    ),
    tensors=(
        Rule("{base}wte.weight", "embed.tokens.weight"),
        Rule("{base}wpe.weight", "embed.positions.weight"),
        *layer_rules("norm_input", "norm_input"),
        Rule("{base}ln_f.{p}", "norm.{p}"),
        Rule("lm_head.weight", "head.weight"),
    ),
    copies=(Copy("lm_head.weight", of="{base}wte.weight", argument="tied"),),
    drops=BUFFERS,
    taps=(
        *TAPS,
        Tap("{base}drop", "embed", entry="{base}wte"),
        Tap(LAYER + "ln_2", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=LAYER + "ln_2"),
    ),
    references=(Reference("GPT2LMHeadModel", ("head",), {"logits": "logits"}),),
)
