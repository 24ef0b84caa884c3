"""Hugging Face's spelling of GLM-4: Llama's, with gate and up in one matrix."""

from lineage.config import Flag, RotaryKeys

from .common import CACHED, keys, without
from .llama import ATTENTION, NORMS, TAPS, spelled
from .phi3 import ACTIVATION, GATES

HUGGINGFACE = spelled(
    "glm",
    "GlmForCausalLM",
    *without(keys(151552, 13696, 1.5625e-7, (4096, 40, 32), kv_heads=2, head=128, padding=151329), "rope_parameters"),
    *CACHED,
    RotaryKeys("rope_parameters", share=0.5),
    Flag("attention_bias", "bias", True),
    spec="glm",
    fixed={"output_bias": False},
    rules=(*ATTENTION, *GATES, *NORMS),
    taps=(*TAPS, ACTIVATION),
)
