"""Hugging Face's spelling of BLOOM: Megatron's names, queries, keys and values fused head by head."""

from lineage.config import Flag, Number, Only, Size, inert
from lineage.rules import Copy, Dialect, PerHead, Reference, Rule, Tap

from .common import CACHED, COMMON, PADDING

LAYER, BLOCK = "{base}h.{i}.", "blocks.{i}."
ATTENTION, MLP = LAYER + "self_attention.", LAYER + "mlp."
QKV = tuple(BLOCK + f"attention.body.{x}" for x in "qkv")

RULES = (
    Rule(ATTENTION + "query_key_value.{p}", tuple(x + ".{p}" for x in QKV), PerHead()),
    Rule(ATTENTION + "dense.{p}", BLOCK + "attention.body.o.{p}"),
    Rule(MLP + "dense_h_to_4h.{p}", BLOCK + "mlp.body.up.{p}"),
    Rule(MLP + "dense_4h_to_h.{p}", BLOCK + "mlp.body.down.{p}"),
)
TABLE = Rule("{base}word_embeddings.weight", "embed.tokens.weight")
ENDS = (Rule("{base}ln_f.{p}", "norm.{p}"), Rule("lm_head.weight", "head.weight"))
TIED = Copy("lm_head.weight", of="{base}word_embeddings.weight", argument="tied")
TAPS = (
    Tap(ATTENTION + "dense", BLOCK + "attention.body.product", at="input", feeds=QKV),
    Tap(ATTENTION + "dense", BLOCK + "attention.body", entry=ATTENTION + "query_key_value"),
    Tap(MLP + "dense_4h_to_h", BLOCK + "mlp.body", entry=MLP + "dense_h_to_4h"),
    Tap(LAYER[:-1], BLOCK[:-1]),
    Tap("lm_head", "head"),
)

HUGGINGFACE = Dialect(
    spec="bloom",
    model_types=("bloom",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, PADDING),
        *(Size("vocab_size", "vocab", 250880), Size("hidden_size", "width", 64, ("n_embed",))),
        Size("n_layer", "layers", 2, ("num_hidden_layers",), most=4096),
        Size("n_head", "heads", 8, ("num_attention_heads",)),
        Number("layer_norm_epsilon", "eps", 1e-5),
        Flag("apply_residual_connection_post_layernorm", "normed", False),
        Flag("tie_word_embeddings", "tied", True),
        Only("slow_but_exact", False),  # with slices it also leaves out two biases
        *inert("how slow_but_exact would slice, and that is refused", "pretraining_tp"),
        *inert("training only", "hidden_dropout", "attention_dropout"),
        *inert(
            "of the code that it was trained with; today's class does not read it",
            *("attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add"),
            *("skip_bias_add_qkv", "offset_alibi", "seq_length", "n_inner", "unk_token_id"),
        ),
    ),
    tensors=(
        *(TABLE, Rule("{base}word_embeddings_layernorm.{p}", "embed.norm.{p}")),
        Rule(LAYER + "input_layernorm.{p}", BLOCK + "attention.norm_input.{p}"),
        Rule(LAYER + "post_attention_layernorm.{p}", BLOCK + "mlp.norm_input.{p}"),
        *(*RULES, *ENDS),
    ),
    copies=(TIED,),
    taps=(
        *TAPS,
        Tap(MLP + "gelu_impl", BLOCK + "mlp.body.act"),
        Tap("{base}word_embeddings_layernorm", "embed", entry="{base}word_embeddings"),
        Tap(LAYER + "self_attention", BLOCK + "attention", entry=LAYER[:-1]),  # the stream is added inside
        Tap(LAYER + "mlp", BLOCK + "mlp", entry=LAYER + "post_attention_layernorm"),
    ),
    references=(Reference("BloomForCausalLM", ("head",), {"logits": "logits"}),),
)
