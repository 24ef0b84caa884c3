"""Hugging Face's spelling of GLM-4.5: Qwen's names, DeepSeek's experts."""

from lineage.config import Flag, Index, Number, RotaryKeys, Size, Spare, inert
from lineage.rules import Rule

from .common import CACHED, keys, without
from .deepseek import CORRECTION, SHARED, SHARED_TAPS, predicting
from .llama import ATTENTION, MLP, NORMS, TAPS, product, spelled
from .mixtral import FUSED, INERT
from .qwen import HEAD_NORMS
from .qwen_moe import EXPERTS

RULES: tuple[Rule, ...] = (*ATTENTION, *HEAD_NORMS, *EXPERTS, CORRECTION, *SHARED, *MLP, *NORMS)

HUGGINGFACE = spelled(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    *without(keys(151552, 10944, 1e-5, (4096, 46, 96), kv_heads=8, head_kind=Spare), "rope_parameters"),
    *(*CACHED, *INERT),
    RotaryKeys("rope_parameters", share=0.5),
    Flag("attention_bias", "bias", False),
    Flag("use_qk_norm", "head_norms", False),
    Size("n_routed_experts", "experts", 128, ("num_local_experts",)),
    Size("num_experts_per_tok", "top_k", 8),
    Size("moe_intermediate_size", "expert_width", 1408),
    Size("n_shared_experts", "shared_experts", 1),
    Index("first_k_dense_replace", "dense_first", 1),
    Size("n_group", "groups", 1),
    Size("topk_group", "open_groups", 1),
    Number("routed_scaling_factor", "scale", 1.0, positive=True),
    Flag("norm_topk_prob", "normalise", True),
    *inert("layers that are dropped", "num_nextn_predict_layers", "num_mtp_layers"),
    spec="glm4_moe",
    fixed={"output_bias": False},
    rules=RULES,
    taps=(*TAPS, product("query_norm", "key_norm", "v"), *SHARED_TAPS),
    memory=FUSED,
    drops=predicting(*RULES),
)
