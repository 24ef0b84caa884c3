"""Hugging Face's spelling of Qwen2 and Qwen3 with experts, and of OLMoE: one by one in files, fused in memory."""

from lineage.config import Flag, Number, Numbers, Only, Size, Spare
from lineage.rules import Rule, Tap

from .common import CACHED, keys
from .llama import ATTENTION, LAYER, MLP, NORMS, TAPS, product, spelled
from .mixtral import BODY, FUSED, INERT, experts
from .qwen import FULL, HEAD_NORMS

EXPERTS = (
    Rule(LAYER + "mlp.gate.weight", BODY + "router.weight"),
    *experts(LAYER + "mlp.", "gate_proj", "up_proj", "down_proj"),
)
NORMED = (product("query_norm", "key_norm", "v"), *TAPS[1:])
DENSE = (Size("decoder_sparse_step", "sparse_step", 1), Numbers("mlp_only_layers", "dense", None))
CHOSEN = Flag("norm_topk_prob", "normalise", False)


def shared(name: str) -> tuple[tuple[Rule, ...], tuple[Tap, Tap]]:
    """A network beside the experts that sees every token: its rules and taps. name: in the file."""
    theirs, ours = LAYER + f"mlp.{name}", BODY + "shared"
    rules = (Rule(f"{theirs}.{x}_proj.{{p}}", f"{ours}.{x}.{{p}}") for x in ("gate", "up", "down"))
    return tuple(rules), (Tap(theirs, ours), Tap(theirs + ".act_fn", ours + ".act"))


SHARED, SHARED_TAPS = shared("shared_expert")

QWEN2_MOE = spelled(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    *keys(151936, 5632, 1e-6, (2048, 24, 16), kv_heads=16, head_kind=Spare),
    *(*FULL, *INERT, *DENSE, CHOSEN),
    Flag("qkv_bias", "bias", True),
    Size("num_experts", "experts", 60),
    Size("num_experts_per_tok", "top_k", 4),
    Size("moe_intermediate_size", "expert_width", 1408),
    Size("shared_expert_intermediate_size", "shared_width", 5632),
    spec="qwen2_moe",
    fixed={"output_bias": False},
    rules=(
        *(*ATTENTION, *EXPERTS, *SHARED, *MLP, *NORMS),
        Rule(LAYER + "mlp.shared_expert_gate.weight", BODY + "shared_gate.weight"),
    ),
    taps=(*TAPS, *SHARED_TAPS),
    memory=FUSED,
)
QWEN3_MOE = spelled(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    *keys(151936, 6144, 1e-6, (2048, 24, 32), kv_heads=4),
    *(*FULL, *INERT, *DENSE, CHOSEN),
    Flag("attention_bias", "bias", False),
    Size("num_local_experts", "experts", 128, ("num_experts",)),
    Size("num_experts_per_tok", "top_k", 8),
    Size("moe_intermediate_size", "expert_width", 768),
    spec="qwen3_moe",
    rules=(*ATTENTION, *HEAD_NORMS, *EXPERTS, *MLP, *NORMS),
    taps=NORMED,
    memory=FUSED,
)
OLMOE = spelled(
    "olmoe",
    "OlmoeForCausalLM",
    *(key for key in keys(50304, 2048, 1e-5, (2048, 16, 16), kv_heads=None, padding=1) if key.key != "head_dim"),
    *(*CACHED, *INERT, CHOSEN),
    Only("head_dim", None),  # its norms are as wide as the stream
    Flag("attention_bias", "bias", False),
    Number("clip_qkv", "clip", None, positive=True),
    Size("num_experts", "experts", 64, ("num_local_experts",)),
    Size("num_experts_per_tok", "top_k", 8),
    spec="olmoe",
    fixed={"head_size": None},
    rules=(*ATTENTION, *HEAD_NORMS, *EXPERTS, *NORMS),
    taps=NORMED,
    memory=FUSED,
)
