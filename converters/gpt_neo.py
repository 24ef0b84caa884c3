"""Hugging Face's spelling of GPT-Neo: GPT-2's, with separate projections, one module deeper, in the usual direction."""

from lineage.config import Choice, Flag, Number, Repeats, Size, inert
from lineage.rules import Copy, Dialect, Drop, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON, PADDING
from .gpt2 import BLOCK, LAYER, SUMMARY

INNER, BODY = LAYER + "attn.attention.", BLOCK + "attention.body."
LAYERS = Size("num_layers", "layers", 24, ("num_hidden_layers",), most=4096)

HUGGINGFACE = Dialect(
    spec="gpt_neo",
    model_types=("gpt_neo",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, *SUMMARY, PADDING),
        *(LAYERS, Size("num_heads", "heads", 16, ("num_attention_heads",)), Size("hidden_size", "width", 2048)),
        Size("vocab_size", "vocab", 50257),
        Size("max_position_embeddings", "context", 2048),
        Size("intermediate_size", "mlp_width", None),
        Size("window_size", "window", 256),
        Repeats(
            "attention_types",
            "pattern",
            [[["global", "local"], 12]],
            names={"global": "full", "local": "window"},
            each="attention_layers",
            layers=LAYERS,
        ),
        Choice("activation_function", "activation", "gelu_new", names=ACTIVATIONS),
        Number("layer_norm_epsilon", "eps", 1e-5),
        Flag("tie_word_embeddings", "tied", True),
        *inert("training only", "resid_dropout", "embed_dropout", "attention_dropout", "classifier_dropout"),
        *inert("asked on the flash path alone", "_is_quantized"),
    ),
    tensors=(
        Rule("{base}wte.weight", "embed.tokens.weight"),
        Rule("{base}wpe.weight", "embed.positions.weight"),
        Rule(LAYER + "ln_1.{p}", BLOCK + "attention.norm_input.{p}"),
        *(Rule(INNER + f"{x}_proj.weight", BODY + f"{x}.weight") for x in "qkv"),
        Rule(INNER + "out_proj.{p}", BODY + "o.{p}"),
        Rule(LAYER + "ln_2.{p}", BLOCK + "mlp.norm_input.{p}"),
        Rule(LAYER + "mlp.c_fc.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "mlp.c_proj.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule("{base}ln_f.{p}", "norm.{p}"),
        Rule("lm_head.weight", "head.weight"),
    ),
    copies=(Copy("lm_head.weight", of="{base}wte.weight", argument="tied"),),
    drops=(
        Drop(INNER + "bias", "the causal mask, as a buffer", "lower triangle"),
        Drop(INNER + "masked_bias", "the score of a masked pair, as a buffer", "-1e9"),
    ),
    taps=(
        Tap(INNER + "out_proj", BODY + "product", at="input", feeds=tuple(BODY + x for x in "qkv")),
        Tap(LAYER + "attn", BODY[:-1]),
        Tap(LAYER + "mlp.act", BLOCK + "mlp.body.act"),
        Tap(LAYER + "mlp", BLOCK + "mlp.body"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("lm_head", "head"),
        Tap("{base}drop", "embed", entry="{base}wte"),
        Tap(LAYER + "ln_2", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=LAYER + "ln_2"),
    ),
    references=(Reference("GPTNeoForCausalLM", ("head",), {"logits": "logits"}),),
)
