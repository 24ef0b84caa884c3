"""Hugging Face's spelling of OPT: fairseq's names, all under one more prefix in some files."""

from lineage.config import Choice, Flag, Index, Size, inert
from lineage.rules import Copy, Dialect, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON

LAYER, BLOCK = "{base}layers.{i}.", "blocks.{i}."
BODY = BLOCK + "attention.body."

HUGGINGFACE = Dialect(
    spec="opt",
    model_types=("opt",),
    prefixes=("model.decoder.", "decoder."),
    config=(
        *(*COMMON, *CACHED),
        *(Size("hidden_size", "width", 768), Size("num_hidden_layers", "layers", 12, most=4096)),
        *(Size("num_attention_heads", "heads", 12), Size("ffn_dim", "mlp_width", 3072)),
        *(Size("vocab_size", "vocab", 50272), Size("max_position_embeddings", "context", 2048)),
        Size("word_embed_proj_dim", "embed_width", None),
        Choice("activation_function", "activation", "relu", names=ACTIVATIONS),
        Flag("do_layer_norm_before", "pre_norm", True),
        Flag("_remove_final_layer_norm", "bare", False),
        Flag("enable_bias", "bias", True),
        Flag("layer_norm_elementwise_affine", "affine", True),
        Flag("tie_word_embeddings", "tied", True),
        Index("pad_token_id", "padding", 1, nullable=True),
        *inert("training only", "dropout", "attention_dropout", "activation_dropout", "layerdrop", "init_std"),
    ),
    tensors=(
        Rule("{base}embed_tokens.weight", "embed.tokens.weight"),
        Rule("{base}embed_positions.weight", "embed.positions.weight"),
        Rule("{base}project_in.weight", "embed.projection.dense.weight"),
        *(Rule(LAYER + f"self_attn.{x}_proj.{{p}}", BODY + f"{x}.{{p}}") for x in "qkv"),
        Rule(LAYER + "self_attn.out_proj.{p}", BODY + "o.{p}"),
        Rule(LAYER + "fc1.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "fc2.{p}", BLOCK + "mlp.body.down.{p}"),
        *(
            Rule(LAYER + "self_attn_layer_norm.{p}", BLOCK + f"attention.{slot}.{{p}}")
            for slot in ("norm_input", "norm_sum")
        ),
        *(Rule(LAYER + "final_layer_norm.{p}", BLOCK + f"mlp.{slot}.{{p}}") for slot in ("norm_input", "norm_sum")),
        Rule("{base}final_layer_norm.{p}", "norm.{p}"),
        Rule("{base}project_out.weight", "head.projection.dense.weight"),
        Rule("lm_head.weight", "head.weight"),
    ),
    copies=(Copy("lm_head.weight", of="{base}embed_tokens.weight", argument="tied"),),
    taps=(
        Tap(LAYER + "self_attn.out_proj", BODY + "product", at="input", feeds=tuple(BODY + x for x in "qkv")),
        Tap(LAYER + "self_attn", BODY[:-1]),
        Tap(LAYER + "activation_fn", BLOCK + "mlp.body.act"),
        Tap(LAYER + "fc2", BLOCK + "mlp.body", entry=LAYER + "fc1"),
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("lm_head", "head", entry=("{base}project_out", "lm_head")),
        Tap("{base}layers.0", "embed", at="input", entry="{base}embed_tokens"),
    ),
    references=(Reference("OPTForCausalLM", ("head",), {"logits": "logits"}),),
)
