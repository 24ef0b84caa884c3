"""Hugging Face's spelling of Granite: Llama's, with multipliers."""

from lineage.config import Entry, Flag, Number, Spare
from lineage.rules import Tap

from .common import CACHED, keys
from .llama import TAPS, spelled

MULTIPLIERS: tuple[Entry, ...] = (
    Number("embedding_multiplier", "embed_scale", 1.0, positive=True),
    Number("attention_multiplier", "score_scale", 1.0, positive=True),
    Number("residual_multiplier", "branch_scale", 1.0, positive=True),
    Number("logits_scaling", "logit_divisor", 1.0, positive=True),
)
EMBEDDED = Tap("{base}layers.0", "embed", at="input", entry="{base}embed_tokens")  # scaled outside that module

HUGGINGFACE = spelled(
    "granite",
    "GraniteForCausalLM",
    *keys(32000, 11008, 1e-6, kv_heads=None, head_kind=Spare),
    *(*CACHED, *MULTIPLIERS),
    Flag("attention_bias", "bias", False),
    Flag("mlp_bias", "mlp_bias", False),
    spec="granite",
    taps=(*TAPS, EMBEDDED),
)
