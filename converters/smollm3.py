"""Hugging Face's spelling of SmolLM3: Llama's, with a list of the layers that have rotary positions."""

from lineage.config import Flag, Pattern, Size, Spare, Toggle

from .common import KINDS, MASKED, keys
from .llama import spelled

HUGGINGFACE = spelled(
    "smollm3",
    "SmolLM3ForCausalLM",
    *keys(
        128256,
        11008,
        1e-6,
        (2048, 36, 16),
        kv_heads=4,
        kv_null=True,
        head_kind=Spare,
        theta=2e6,
        tied=True,
        padding=128004,
    ),
    *MASKED,
    Toggle("use_sliding_window", (Size("sliding_window", "window", None),), {"window": None}),
    Pattern("layer_types", "pattern", None, names=KINDS),
    Pattern("no_rope_layers", "turned", None, names={1: "rotary", 0: "plain"}),
    Size("no_rope_layer_interval", "period", 4),
    Flag("attention_bias", "bias", False),
    Flag("mlp_bias", "mlp_bias", False),
    spec="smollm3",
)
