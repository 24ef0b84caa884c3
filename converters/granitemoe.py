"""Hugging Face's spelling of Granite with experts: fused in files and in memory, under two names."""

from lineage.config import Flag, Size, Spare
from lineage.rules import Rule, Split, Tap

from .common import CACHED, keys
from .granite import EMBEDDED, MULTIPLIERS
from .llama import ATTENTION, LAYER, NORMS, TAPS, spelled
from .mixtral import BODY, INERT

MOE = LAYER + "block_sparse_moe."


def fused(router: str, gate_up: str, down: str) -> tuple[Rule, ...]:
    """Experts under these names: gates before ups."""
    return (
        Rule(MOE + router, BODY + "router.weight"),
        Rule(MOE + gate_up, (BODY + "gate", BODY + "up"), Split(axis=1)),
        Rule(MOE + down, BODY + "down"),
    )


HUGGINGFACE = spelled(
    "granitemoe",
    "GraniteMoeForCausalLM",
    *keys(32000, 11008, 1e-6, kv_heads=None, head_kind=Spare),
    *(*CACHED, *MULTIPLIERS, *INERT),
    Flag("attention_bias", "bias", False),
    Size("num_local_experts", "experts", 8),
    Size("num_experts_per_tok", "top_k", 2),
    spec="granitemoe",
    rules=(
        *(*ATTENTION, *NORMS),
        *fused("router.layer.weight", "input_linear.weight", "output_linear.weight"),
    ),
    memory=fused("router.weight", "experts.gate_up_proj", "experts.down_proj"),
    taps=(*TAPS, EMBEDDED, Tap(MOE[:-1], BODY[:-1])),
)
