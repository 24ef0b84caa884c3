"""Hugging Face's spelling of Mixtral: Llama's, with experts one by one in files and fused in memory."""

from lineage.config import Only, Size, inert
from lineage.rules import Rule, Split, Stack

from .common import MASKED, keys
from .llama import ATTENTION, BLOCK, LAYER, NORMS, spelled

BODY = BLOCK + "mlp.body."
INERT = inert("training only", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
FUSED = (
    Rule(LAYER + "mlp.gate.weight", BODY + "router.weight"),
    Rule(LAYER + "mlp.experts.gate_up_proj", (BODY + "gate", BODY + "up"), Split(axis=1)),
    Rule(LAYER + "mlp.experts.down_proj", BODY + "down"),
)


def experts(path: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """Experts that stand one by one in the file."""
    names = {"gate": gate, "up": up, "down": down}
    return tuple(Rule(f"{path}experts.{{e}}.{theirs}.weight", BODY + ours, Stack()) for ours, theirs in names.items())


MOE = LAYER + "block_sparse_moe."
HUGGINGFACE = spelled(
    "mixtral",
    "MixtralForCausalLM",
    *keys(32000, 14336, 1e-5, kv_heads=8, theta=1e6),
    *INERT,
    *MASKED,
    Only("layer_types", None),
    Size("num_local_experts", "experts", 8, ("num_experts",)),
    Size("num_experts_per_tok", "top_k", 2),
    Size("sliding_window", "window", None),
    spec="mixtral",
    rules=(*ATTENTION, Rule(MOE + "gate.weight", BODY + "router.weight"), *experts(MOE, "w1", "w3", "w2"), *NORMS),
    memory=FUSED,
)
