"""Hugging Face's spelling of DeepSeek-V2 and V3: latents called lora, experts one by one in files, fused in memory."""

from lineage.config import Choice, Entry, Flag, HeatedKeys, Index, Number, Only, Same, Size, inert
from lineage.rules import Drop, Rule

from .common import CACHED, keys, without
from .llama import BLOCK, LAYER, MLP, NORMS, TAPS, product, spelled
from .mixtral import BODY, FUSED, INERT
from .qwen_moe import EXPERTS, shared

ATTN, OURS = LAYER + "self_attn.", BLOCK + "attention.body."
NAMES = {
    "q_proj": "q", "q_a_proj": "q_down", "q_a_layernorm": "query_norm", "q_b_proj": "q_up", "o_proj": "o",
    "kv_a_proj_with_mqa": "kv_down", "kv_a_layernorm": "latent_norm", "kv_b_proj": "kv_up",
}  # fmt: skip
LATENT = tuple(Rule(f"{ATTN}{theirs}.{{p}}", f"{OURS}{ours}.{{p}}") for theirs, ours in NAMES.items())
SHARED, SHARED_TAPS = shared("shared_experts")
CORRECTION = Rule(LAYER + "mlp.gate.e_score_correction_bias", BODY + "router.correction")
PRODUCTS = (product("q", "kv_up", "kv_down"), product("q_up", "kv_up", "kv_down"))
RULES = (*LATENT, *EXPERTS, CORRECTION, *SHARED, *MLP, *NORMS)
EXTRA = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "embed_tokens.weight", "shared_head.{p}",
         "shared_head.head.weight", "shared_head.norm.weight")  # fmt: skip


def predicting(*rules: Rule) -> tuple[Drop, ...]:
    """Layers after the last that predict further tokens (DeepSeek-V3, §2.2): told by a projection of their own."""
    names = (*(source for rule in rules for source in rule.sources), *(LAYER + name for name in EXTRA))
    why = "a layer that predicts further tokens, which the forward of a language model does not run"
    return tuple(Drop(name, why, None, beyond=LAYER + "eh_proj.weight") for name in names)


def shapes(vocab: int, mlp_width: int, layers: int, heads: int, width: int) -> tuple[Entry, ...]:
    """The keys that both have."""
    usual = keys(vocab, mlp_width, 1e-6, (width, layers, heads))
    return (
        *without(usual, "num_key_value_heads", "head_dim", "rope_parameters"),
        *(*CACHED, *INERT),
        HeatedKeys("rope_parameters"),
        Flag("attention_bias", "bias", False),
        Size("q_lora_rank", "query_latent", 1536, nullable=True),
        Size("kv_lora_rank", "latent", 512),
        Size("qk_nope_head_dim", "plain", 128),
        Size("qk_rope_head_dim", "rotary_width", 64),
        Size("v_head_dim", "value_width", 128),
        *inert("follows from the widths of keys", "head_dim", "qk_head_dim"),
        *inert("training only", "aux_loss_alpha", "seq_aux", "ep_size"),
        *(Only("pretraining_tp", 1), Only("moe_layer_freq", 1)),
    )


V2 = spelled(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    *shapes(102400, 11008, 32, 32, 4096),
    Same("num_key_value_heads", of="num_attention_heads", argument="heads", of_default=32),
    Flag("mlp_bias", "mlp_bias", False),
    Size("n_routed_experts", "experts", 64, ("num_experts",)),
    Size("num_experts_per_tok", "top_k", None),
    Size("moe_intermediate_size", "expert_width", 1407),
    Size("n_shared_experts", "shared_experts", 2),
    Index("first_k_dense_replace", "dense_first", 0),
    Size("n_group", "groups", None),
    Size("topk_group", "open_groups", None),
    Choice("topk_method", "method", "greedy", names={"greedy": "greedy", "group_limited_greedy": "groups"}),
    Number("routed_scaling_factor", "scale", 1.0, positive=True),
    *(Only("norm_topk_prob", False), Only("scoring_func", "softmax")),
    spec="deepseek_v2",
    rules=RULES,
    taps=(*TAPS[1:], *PRODUCTS, *SHARED_TAPS),
    memory=FUSED,
)
V3 = spelled(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    *shapes(129280, 18432, 61, 128, 7168),
    Same("num_key_value_heads", of="num_attention_heads", argument="heads", default=128, of_default=128),
    Size("n_routed_experts", "experts", 256, ("num_local_experts",)),
    Size("num_experts_per_tok", "top_k", 8),
    Size("moe_intermediate_size", "expert_width", 2048),
    Size("n_shared_experts", "shared_experts", 1),
    Index("first_k_dense_replace", "dense_first", 3),
    Size("n_group", "groups", 8),
    Size("topk_group", "open_groups", 4),
    Number("routed_scaling_factor", "scale", 2.5, positive=True),
    Flag("norm_topk_prob", "normalise", True),
    Flag("rope_interleave", "neighbours", True),
    *(Only("topk_method", "noaux_tc"), Only("scoring_func", "sigmoid")),
    *inert("layers that are dropped", "num_nextn_predict_layers", "num_mtp_layers"),
    spec="deepseek_v3",
    rules=RULES,
    taps=(*TAPS[1:], *PRODUCTS, *SHARED_TAPS),
    memory=FUSED,
    drops=predicting(*RULES),
)
