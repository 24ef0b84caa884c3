"""Hugging Face's spelling of GPT-J: GPT-2's, with separate projections in the usual direction."""

from lineage.config import Choice, Flag, Size, inert
from lineage.rules import Copy, Dialect, Drop, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON, PADDING
from .gpt2 import BLOCK, DROPOUT, LAYER, SIZES, SUMMARY

BODY = BLOCK + "attention.body."

HUGGINGFACE = Dialect(
    spec="gptj",
    model_types=("gptj",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, *SUMMARY, *DROPOUT, PADDING),
        *(
            Size("n_embd", "width", 4096, ("hidden_size",)),
            Size("n_layer", "layers", 28, ("num_hidden_layers",), most=4096),
        ),
        Size("n_head", "heads", 16, ("num_attention_heads",)),
        SIZES[3],
        Flag("tie_word_embeddings", "tied", False),
        Size("vocab_size", "vocab", 50400),
        Size("n_positions", "context", 2048, ("max_position_embeddings",)),
        Size("n_inner", "mlp_width", None),
        Size("rotary_dim", "rotary_width", 64),
        Choice("activation_function", "activation", "gelu_new", names=ACTIVATIONS),
        *inert(
            "a switch of the code it was trained with, which today's class does not read",
            "rotary",
            "scale_attn_weights",
        ),
    ),
    tensors=(
        Rule("{base}wte.weight", "embed.tokens.weight"),
        Rule(LAYER + "ln_1.{p}", BLOCK + "norm_input.{p}"),
        *(Rule(LAYER + f"attn.{x}_proj.weight", BODY + f"{x}.weight") for x in "qkv"),
        Rule(LAYER + "attn.out_proj.weight", BODY + "o.weight"),
        Rule(LAYER + "mlp.fc_in.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "mlp.fc_out.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule("{base}ln_f.{p}", "norm.{p}"),
        Rule("lm_head.{p}", "head.{p}"),
    ),
    copies=(Copy("lm_head.weight", of="{base}wte.weight", argument="tied"),),
    drops=(
        Drop(LAYER + "attn.bias", "the causal mask, as a buffer", "lower triangle"),
        Drop(LAYER + "attn.masked_bias", "the score of a masked pair, as a buffer", "-1e9"),
    ),
    taps=(
        Tap(LAYER + "attn.out_proj", BODY + "product", at="input", feeds=tuple(BODY + x for x in "qkv")),
        Tap(LAYER + "attn", BODY[:-1]),
        Tap(LAYER + "mlp.act", BLOCK + "mlp.body.act"),
        Tap(LAYER + "mlp", BLOCK + "mlp.body"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("lm_head", "head"),
    ),
    references=(Reference("GPTJForCausalLM", ("head",), {"logits": "logits"}),),
)
