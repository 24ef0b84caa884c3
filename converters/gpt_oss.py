"""Hugging Face's spelling of gpt-oss: experts fused as [in, out], a gate's column beside its up's."""

from lineage.config import Flag, Number, Pattern, Size, UsualKeys, inert
from lineage.rules import Alternate, Rule, Transpose

from .common import MASKED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, NORMS, TAPS, spelled
from .mixtral import BODY, INERT

EXPERTS = LAYER + "mlp.experts."
STRETCH = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip

HUGGINGFACE = spelled(
    "gpt_oss",
    "GptOssForCausalLM",
    *without(keys(201088, 2880, 1e-5, (2880, 36, 64), kv_heads=8, head=64, act=None), "rope_parameters"),
    UsualKeys("rope_parameters", theta=150000.0, usual=STRETCH),
    *(*MASKED, *INERT),
    *inert("the gates have a product of their own", "hidden_act"),
    Flag("attention_bias", "bias", True),
    Size("num_local_experts", "experts", 128, ("num_experts",)),
    Size("num_experts_per_tok", "top_k", 4),
    Number("swiglu_limit", "limit", 7.0, positive=True),
    Number("swiglu_alpha", "slope", 1.702, positive=True),
    Size("sliding_window", "window", 128),
    Pattern("layer_types", "pattern", None, names={"sliding_attention": "window", "full_attention": "full"}),
    spec="gpt_oss",
    rules=(
        *(*ATTENTION, *NORMS),
        Rule(LAYER + "self_attn.sinks", BLOCK + "attention.body.sinks"),
        Rule(LAYER + "mlp.router.{p}", BODY + "router.{p}"),
        Rule(EXPERTS + "gate_up_proj", (BODY + "gate", BODY + "up"), Transpose(), Alternate(axis=1)),
        Rule(EXPERTS + "gate_up_proj_bias", (BODY + "gate_bias", BODY + "up_bias"), Alternate(axis=1)),
        Rule(EXPERTS + "down_proj", BODY + "down", Transpose()),
        Rule(EXPERTS + "down_proj_bias", BODY + "down_bias"),
    ),
    taps=TAPS,
)
