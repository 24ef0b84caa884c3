"""Hugging Face's spelling of Qwen2 and Qwen3: Llama's, with q, k, v biases, or q, k norms."""

from lineage.config import Flag, Inert, Only, inert
from lineage.rules import Rule

from .common import MASKED, keys
from .llama import ATTENTION, BLOCK, LAYER, MLP, NORMS, TAPS, product, spelled

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
