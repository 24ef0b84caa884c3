"""Hugging Face's spelling of Qwen2 and Qwen3, dense and with experts: Llama's, with q, k, v biases, or q, k norms."""

from lineage.config import Flag, Inert, Only, Size, inert
from lineage.rules import Rule

from .common import MASKED, keys
from .llama import ATTENTION, BLOCK, LAYER, MLP, NORMS, TAPS, product, spelled
from .mixtral import BODY, EXPERT_TAPS, FUSED, INERT, experts

FULL = (
    *MASKED,
    Only("use_sliding_window", False),
    *inert("windows are off: use_sliding_window", "sliding_window", "max_window_layers"),
    Inert("layer_types", "windows are off: use_sliding_window", form="full attention in every layer"),
)
HEAD_NORMS = (
    Rule(LAYER + "self_attn.q_norm.weight", BLOCK + "attention.body.query_norm.weight"),
    Rule(LAYER + "self_attn.k_norm.weight", BLOCK + "attention.body.key_norm.weight"),
)

EXPERTS = experts(LAYER + "mlp.", "gate_proj", "up_proj", "down_proj")

QWEN2 = spelled(
    "qwen2", "Qwen2ForCausalLM", *keys(151936, 22016, 1e-6), *FULL, fixed={"bias": True, "output_bias": False}
)
QWEN3 = spelled(
    "qwen3",
    "Qwen3ForCausalLM",
    *keys(151936, 22016, 1e-6, head=128),
    *FULL,
    Flag("attention_bias", "bias", False),
    spec="qwen3",
    rules=(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS),
    taps=(product("query_norm", "key_norm", "v"), *TAPS[1:]),
)
QWEN3_MOE = spelled(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    *keys(151936, 768, 1e-6, (2048, 24, 32), kv_heads=4, mlp="moe_intermediate_size"),
    *FULL,
    *INERT,
    Flag("attention_bias", "bias", False),
    Size("num_local_experts", "experts", 128, ("num_experts",)),
    Size("num_experts_per_tok", "top_k", 8),
    Flag("norm_topk_prob", "normalise", False),
    Only("decoder_sparse_step", 1),
    Only("mlp_only_layers", []),
    Inert("intermediate_size", "the width of dense layers, of which there are none"),
    spec="qwen3_moe",
    rules=(*ATTENTION, *HEAD_NORMS, Rule(LAYER + "mlp.gate.weight", BODY + "router.weight"), *EXPERTS, *NORMS),
    taps=(product("query_norm", "key_norm", "v"), *EXPERT_TAPS[1:]),
    memory=FUSED,
)
