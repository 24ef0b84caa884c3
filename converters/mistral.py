"""Hugging Face's spelling of Mistral: Llama's, with a window."""

from lineage.config import Only, Size

from .common import MASKED, keys
from .llama import spelled

HUGGINGFACE = spelled(
    "mistral",
    "MistralForCausalLM",
    *(*keys(32000, 14336, 1e-6, kv_heads=8), *MASKED),
    Only("layer_types", None),
    Size("sliding_window", "window", 4096, nullable=True),
)
