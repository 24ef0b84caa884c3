"""Hugging Face's spelling of Phi: Llama's names, with `dense`, `fc1` and `fc2`."""

from lineage.config import Choice, Flag, Index, Inert, Number, Only, RotaryKeys, Size, inert
from lineage.rules import Copy, Dialect, Drop, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON

LAYER, BLOCK = "{base}layers.{i}.", "blocks.{i}."
BODY = BLOCK + "attention.body."

HUGGINGFACE = Dialect(
    spec="phi",
    model_types=("phi",),
    prefixes=("model.", ""),
    config=(
        *(*COMMON, *CACHED),
        *(Size("vocab_size", "vocab", 51200), Size("hidden_size", "width", 2048)),
        *(Size("num_hidden_layers", "layers", 24, most=4096), Size("num_attention_heads", "heads", 32)),
        *(Size("num_key_value_heads", "kv_heads", None), Size("intermediate_size", "mlp_width", 8192)),
        Choice("hidden_act", "activation", "gelu_new", names=ACTIVATIONS),
        Number("layer_norm_eps", "eps", 1e-5),
        RotaryKeys("rope_parameters", share=0.5),
        Flag("qk_layernorm", "head_norms", False),
        Flag("tie_word_embeddings", "tied", False),
        Index("pad_token_id", "padding", None, nullable=True),
        Only("head_dim", None),
        Inert("max_position_embeddings", "a length for people, and for rotary scalings that need one"),
        *inert("training only", "resid_pdrop", "embd_pdrop", "attention_dropout"),
    ),
    tensors=(
        Rule("{base}embed_tokens.weight", "embed.tokens.weight"),
        Rule(LAYER + "input_layernorm.{p}", BLOCK + "norm_input.{p}"),
        *(Rule(LAYER + f"self_attn.{x}_proj.{{p}}", BODY + f"{x}.{{p}}") for x in "qkv"),
        Rule(LAYER + "self_attn.q_layernorm.{p}", BODY + "query_norm.{p}"),
        Rule(LAYER + "self_attn.k_layernorm.{p}", BODY + "key_norm.{p}"),
        Rule(LAYER + "self_attn.dense.{p}", BODY + "o.{p}"),
        Rule(LAYER + "mlp.fc1.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "mlp.fc2.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule("{base}final_layernorm.{p}", "norm.{p}"),
        Rule("lm_head.{p}", "head.{p}"),
    ),
    copies=(Copy("lm_head.weight", of="{base}embed_tokens.weight", argument="tied"),),
    drops=(Drop(LAYER + "self_attn.rotary_emb.inv_freq", "rotary frequencies, as a buffer", None),),
    taps=(
        *(
            Tap(LAYER + "self_attn.dense", BODY + "product", at="input", feeds=tuple(BODY + feed for feed in feeds))
            for feeds in (("q", "k", "v"), ("query_norm", "key_norm", "v"))
        ),
        Tap(LAYER + "self_attn.q_layernorm", BODY + "query_norm", heads_first=True),
        Tap(LAYER + "self_attn.k_layernorm", BODY + "key_norm", heads_first=True),
        Tap(LAYER + "self_attn", BODY[:-1]),
        Tap(LAYER + "mlp.activation_fn", BLOCK + "mlp.body.act"),
        Tap(LAYER + "mlp", BLOCK + "mlp.body"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("lm_head", "head"),
    ),
    references=(Reference("PhiForCausalLM", ("head",), {"logits": "logits"}),),
)
