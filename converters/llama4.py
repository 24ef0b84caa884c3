"""Hugging Face's spelling of Llama 4's text model: Llama's names, experts fused as [in, out]."""

from dataclasses import replace

from lineage.config import Flag, Number, Numbers, Only, Pattern, Size
from lineage.rules import Rule, Split, Tap, Transpose

from .common import MASKED, keys, without
from .llama import ATTENTION, LAYER, NORMS, TAPS, spelled
from .mixtral import BODY, INERT

FEED, SHARED = LAYER + "feed_forward.", BODY + "shared"
PARTS = ("gate", "up", "down")

SPELLED = spelled(
    "llama4_text",
    "Llama4ForCausalLM",
    *keys(202048, 16384, 1e-5, (5120, 48, 40), kv_heads=8, head=128, theta=5e5, mlp="intermediate_size_mlp"),
    *(*without(MASKED, "attention_chunk_size"), *INERT, Only("sliding_window", None)),
    Flag("attention_bias", "bias", False),
    Size("intermediate_size", "expert_width", 8192),
    Size("num_local_experts", "experts", 16),
    Size("num_experts_per_tok", "top_k", 1),
    Numbers("moe_layers", "sparse", None),
    Size("interleave_moe_layer_step", "sparse_step", 1),
    Flag("use_qk_norm", "head_norms", True),
    Pattern("no_rope_layers", "turned", None, names={1: "rotary", 0: "plain"}),
    Size("no_rope_layer_interval", "period", 4),
    Size("attention_chunk_size", "chunk", 8192, nullable=True),
    Pattern("layer_types", "pattern", None, names={"chunked_attention": "chunk", "full_attention": "full"}),
    Flag("attn_temperature_tuning", "tempered", True),
    Number("floor_scale", "heat_length", 8192, positive=True),
    Number("attn_scale", "heat", 0.1, positive=True),
    spec="llama4",
    rules=(
        *(*ATTENTION, *NORMS),
        Rule(FEED + "router.weight", BODY + "router.weight"),
        Rule(FEED + "experts.gate_up_proj", (BODY + "gate", BODY + "up"), Transpose(), Split(axis=1)),
        Rule(FEED + "experts.down_proj", BODY + "down", Transpose()),
        *(Rule(f"{FEED}shared_expert.{x}_proj.weight", f"{SHARED}.{x}.weight") for x in PARTS),
        *(Rule(f"{FEED}{x}_proj.weight", f"{BODY}{x}.weight") for x in PARTS),
    ),
    taps=(
        *(tap for tap in TAPS if not tap.target.endswith(("product", "act", "mlp.body"))),  # norms after turning
        Tap(FEED + "router", BODY + "router", at="logits"),
        Tap(FEED[:-1], BODY[:-1], at="first"),
        Tap(FEED + "activation_fn", BODY + "act"),
        Tap(FEED + "shared_expert", SHARED),
        Tap(FEED + "shared_expert.activation_fn", SHARED + ".act"),
    ),
)
HUGGINGFACE = replace(SPELLED, prefixes=("model.",))  # the reference's own prefix is that of the model with pictures
del SPELLED
