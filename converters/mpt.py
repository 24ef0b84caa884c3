"""Hugging Face's spelling of MPT: names of its own, fused queries, keys and values, an object for attention."""

from lineage.config import Flag, Inert, Number, Only, Size, Within, inert
from lineage.rules import Copy, Dialect, Reference, Rule, Split, Tap

from .common import CACHED, COMMON, PADDING

LAYER, BLOCK = "{base}blocks.{i}.", "blocks.{i}."
QKV = tuple(BLOCK + f"attention.body.{x}" for x in "qkv")

HUGGINGFACE = Dialect(
    spec="mpt",
    model_types=("mpt",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, PADDING),
        *(Size("vocab_size", "vocab", 50368), Size("d_model", "width", 2048, ("hidden_size",))),
        Size("n_heads", "heads", 16, ("num_attention_heads",)),
        Size("n_layers", "layers", 24, ("num_hidden_layers",), most=4096),
        Number("layer_norm_epsilon", "eps", 1e-5),
        Flag("tie_word_embeddings", "tied", True),
        Within(
            "attn_config",
            (
                *(*COMMON, Inert("model_type", "an object within the config is of no type")),
                Number("clip_qkv", "clip", None, nullable=True, positive=True),
                Number("softmax_scale", "scale", None, nullable=True, positive=True),
                *(Only("alibi", True), Only("attn_type", "multihead_attention")),
                *(Only("prefix_lm", False), Only("qk_ln", False), Only("attn_uses_sequence_id", False)),
                Only("alibi_bias_max", 8),  # the reference takes 8 whatever stands here
                *inert("which kernel computes the same product", "attn_impl"),
                *inert("training only", "attn_pdrop", "attn_dropout"),
            ),
        ),
        *(Only("expansion_ratio", 4), Only("no_bias", True), Only("logit_scale", None)),  # nor does it read these
        *inert("ALiBi takes its place", "learned_pos_emb"),
        *inert("where the reference's table of biases ends: ALiBi itself has no end", "max_seq_len"),
        *inert("training only", "resid_pdrop", "emb_pdrop", "embedding_fraction", "init_config"),
        *inert("another kernel of the same norm", "norm_type"),
        *inert("where the weights are first made", "init_device"),
    ),
    tensors=(
        Rule("{base}wte.weight", "embed.tokens.weight"),
        Rule(LAYER + "norm_1.weight", BLOCK + "attention.norm_input.weight"),
        Rule(LAYER + "attn.Wqkv.weight", tuple(x + ".weight" for x in QKV), Split()),
        Rule(LAYER + "attn.out_proj.weight", BLOCK + "attention.body.o.weight"),
        Rule(LAYER + "norm_2.weight", BLOCK + "mlp.norm_input.weight"),
        Rule(LAYER + "ffn.up_proj.weight", BLOCK + "mlp.body.up.weight"),
        Rule(LAYER + "ffn.down_proj.weight", BLOCK + "mlp.body.down.weight"),
        Rule("{base}norm_f.weight", "norm.weight"),
        Rule("lm_head.weight", "head.weight"),
    ),
    copies=(Copy("lm_head.weight", of="{base}wte.weight", argument="tied"),),
    taps=(
        Tap(LAYER + "attn.out_proj", BLOCK + "attention.body.product", at="input", feeds=QKV),
        Tap(LAYER + "attn", BLOCK + "attention.body"),
        Tap(LAYER + "ffn.act", BLOCK + "mlp.body.act"),
        Tap(LAYER + "ffn.down_proj", BLOCK + "mlp.body", entry=LAYER + "ffn.up_proj"),
        Tap(LAYER + "norm_2", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER + "ffn", BLOCK + "mlp", entry=LAYER + "norm_2"),  # the stream is added inside
        Tap(LAYER[:-1], BLOCK[:-1]),
        Tap("lm_head", "head"),
    ),
    references=(Reference("MptForCausalLM", ("head",), {"logits": "logits"}),),
)
