"""Hugging Face's spelling of GPT-NeoX and Pythia: queries, keys and values fused head by head."""

from lineage.config import Choice, Flag, Inert, Number, Only, RotaryKeys, Size, inert
from lineage.rules import Copy, Dialect, Drop, PerHead, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON

LAYER, BLOCK = "{base}layers.{i}.", "blocks.{i}."
QKV = tuple(BLOCK + f"attention.body.{x}" for x in "qkv")

HUGGINGFACE = Dialect(
    spec="gpt_neox",
    model_types=("gpt_neox",),
    prefixes=("gpt_neox.", ""),
    config=(
        *(*COMMON, *CACHED),
        Size("vocab_size", "vocab", 50432),
        Size("hidden_size", "width", 6144),
        Size("num_hidden_layers", "layers", 44, most=4096),
        Size("num_attention_heads", "heads", 64),
        Size("intermediate_size", "mlp_width", 24576),
        Choice("hidden_act", "activation", "gelu", names=ACTIVATIONS),
        Number("layer_norm_eps", "eps", 1e-5),
        Flag("tie_word_embeddings", "tied", False),
        Flag("use_parallel_residual", "parallel", True),
        Flag("attention_bias", "bias", True),
        RotaryKeys("rope_parameters", share=0.25, older=("rotary_emb_base", "rotary_pct")),
        *(Only("is_decoder", False), Only("head_dim", None)),
        Inert("max_position_embeddings", "a length for people, and for rotary scalings that need one"),
        Inert("pad_token_id", "padding is told by the attention mask"),
        *inert("training only", "attention_dropout", "hidden_dropout", "classifier_dropout"),
    ),
    tensors=(
        Rule("{base}embed_in.weight", "embed.tokens.weight"),
        Rule(LAYER + "input_layernorm.{p}", BLOCK + "attention.norm_input.{p}"),
        Rule(LAYER + "post_attention_layernorm.{p}", BLOCK + "mlp.norm_input.{p}"),
        Rule(LAYER + "attention.query_key_value.{p}", tuple(x + ".{p}" for x in QKV), PerHead()),
        Rule(LAYER + "attention.dense.{p}", BLOCK + "attention.body.o.{p}"),
        Rule(LAYER + "mlp.dense_h_to_4h.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "mlp.dense_4h_to_h.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule("{base}final_layer_norm.{p}", "norm.{p}"),
        Rule("embed_out.weight", "head.weight"),
    ),
    memory=(Rule("lm_head.weight", "head.weight"),),
    copies=(Copy("embed_out.weight", of="{base}embed_in.weight", argument="tied"),),
    drops=(
        Drop(LAYER + "attention.bias", "the causal mask, as a buffer", "lower triangle"),
        Drop(LAYER + "attention.masked_bias", "the score of a masked pair, as a buffer", "-1e9"),
        Drop(LAYER + "attention.rotary_emb.inv_freq", "rotary frequencies, as a buffer", None),
    ),
    taps=(
        Tap(LAYER + "attention.dense", BLOCK + "attention.body.product", at="input", feeds=QKV),
        Tap(LAYER + "attention", BLOCK + "attention.body"),
        Tap(LAYER + "mlp.act", BLOCK + "mlp.body.act"),
        Tap(LAYER + "mlp", BLOCK + "mlp.body"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("lm_head", "head"),
        Tap(LAYER + "post_attention_layernorm", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=LAYER + "post_attention_layernorm"),
    ),
    references=(Reference("GPTNeoXForCausalLM", ("head",), {"logits": "logits"}),),
)
