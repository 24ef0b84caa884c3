"""Hugging Face's spelling of DBRX: objects within the config, experts one below the other in one matrix."""

from lineage.config import Choice, Index, Inert, Number, Only, Present, RotaryKeys, Size, ThetaWithin, Within, inert
from lineage.rules import Dialect, Reference, Rule, Split, Tap, Transpose, Unfold

from .common import ACTIVATIONS, CACHED, COMMON
from .mixtral import BODY, INERT

LAYER, BLOCK = "{base}blocks.{i}.", "blocks.{i}."
ATTENTION, OURS, FFN = LAYER + "norm_attn_norm.attn.", BLOCK + "attention.body.", LAYER + "ffn."
QKV = tuple(OURS + x for x in "qkv")
FIRST, SECOND = LAYER + "norm_attn_norm.norm_1", LAYER + "norm_attn_norm.norm_2"
NAMELESS = (*COMMON, Inert("model_type", "an object within the config is of no type"))

HUGGINGFACE = Dialect(
    spec="dbrx",
    model_types=("dbrx",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, *INERT),
        Size("d_model", "width", 2048, ("hidden_size",)),
        Size("n_heads", "heads", 16, ("num_attention_heads",)),
        Size("n_layers", "layers", 24, ("num_hidden_layers",), most=4096),
        Size("vocab_size", "vocab", 32000),
        Index("pad_token_id", "padding", None),
        RotaryKeys("rope_parameters", kinds=()),
        ThetaWithin(
            "attn_config",
            (
                *(*NAMELESS, *inert("training only", "attn_pdrop")),
                Size("kv_n_heads", "kv_heads", 1),
                Number("clip_qkv", "clip", None, positive=True),
            ),
            needs={"clip_qkv": 1e30},  # its code clips by null
            elsewhere="rope_parameters",
        ),
        Within(
            "ffn_config",
            (
                *(*NAMELESS, *inert("training only", "moe_jitter_eps", "moe_loss_weight")),
                *inert("follows from d_model", "hidden_size"),
                Within("ffn_act_fn", (Choice("name", "activation", "silu", names=ACTIVATIONS),)),
                Size("ffn_hidden_size", "mlp_width", 3584),
                Size("moe_num_experts", "experts", 4),
                Size("moe_top_k", "top_k", 1),
                Present("moe_normalize_expert_weights", "normalise", 1.0, nullable=True),
            ),
        ),
        *(Only("tie_word_embeddings", False), Only("head_dim", None)),
        *inert("a length for people", "max_seq_len", "max_position_embeddings"),
        *inert("follows from attn_config", "num_key_value_heads"),
        *inert("training only", "resid_pdrop", "emb_pdrop"),
    ),
    fixed={"tied": False, "head_size": None},
    tensors=(
        Rule("{base}wte.weight", "embed.tokens.weight"),
        Rule(FIRST + ".weight", BLOCK + "attention.norm_input.weight"),
        Rule(ATTENTION + "Wqkv.weight", tuple(x + ".weight" for x in QKV), Split()),
        Rule(ATTENTION + "out_proj.weight", OURS + "o.weight"),
        Rule(SECOND + ".weight", BLOCK + "mlp.norm_input.weight"),
        Rule(FFN + "router.layer.weight", BODY + "router.weight"),
        Rule(FFN + "experts.mlp.w1", BODY + "gate", Unfold()),
        Rule(FFN + "experts.mlp.v1", BODY + "up", Unfold()),
        Rule(FFN + "experts.mlp.w2", BODY + "down", Unfold(), Transpose()),
        Rule("{base}norm_f.weight", "norm.weight"),
        Rule("lm_head.weight", "head.weight"),
    ),
    taps=(
        Tap(ATTENTION + "out_proj", OURS + "product", at="input", feeds=QKV),
        Tap(ATTENTION[:-1], OURS[:-1]),
        Tap(FFN + "router", BODY + "router", at="logits"),
        Tap(FFN[:-1], BODY[:-1]),
        Tap(SECOND, BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=SECOND),
        Tap(LAYER[:-1], BLOCK[:-1]),
    ),
    references=(Reference("DbrxForCausalLM", ("head",), {"logits": "logits"}),),
)
