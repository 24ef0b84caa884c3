"""Hugging Face's spelling of InternLM3: Llama's, with two keys for one choice about biases."""

from lineage.config import Flag

from .common import CACHED, keys
from .llama import spelled

HUGGINGFACE = spelled(
    "internlm3",
    "LlamaForCausalLM",
    *keys(128512, 10240, 1e-5, (4096, 48, 32), kv_heads=2, kv_null=True, head=128, padding=2),
    *CACHED,
    Flag("attention_bias", "bias", False, ("qkv_bias",)),
    Flag("mlp_bias", "mlp_bias", False, ("bias",)),
)
