"""Hugging Face's spelling of Phi-3.5-MoE: Mixtral's names, and a router of another name in memory."""

from dataclasses import replace

from lineage.config import Flag, Number, Only, PairedKeys, Size, Spare, inert
from lineage.rules import Rule

from .common import MASKED, keys, without
from .llama import ATTENTION, LAYER, NORMS, spelled
from .mixtral import BODY, FUSED, INERT, MOE, experts

SIZES = keys(32064, 6400, 1e-5, kv_heads=8, head_kind=Spare, kv_null=True)

SPELLED = spelled(
    "phimoe",
    "PhimoeForCausalLM",
    *without(SIZES, "rope_parameters"),
    PairedKeys("rope_parameters", theta=1e6, context=131072, kinds=("longrope",)),
    *(*MASKED, *without(INERT, "router_jitter_noise")),
    *inert("training only", "input_jitter_noise"),
    *(Only("layer_types", None), Only("num_experts_per_tok", 2)),  # the router picks two whatever it is told
    Number("router_jitter_noise", "jitter", 0.01),
    Size("num_local_experts", "experts", 16),
    Size("sliding_window", "window", None),
    Flag("attention_bias", "bias", False),
    Flag("lm_head_bias", "head_bias", False),
    spec="phimoe",
    fixed={"top_k": 2},
    rules=(
        *(*ATTENTION, Rule(MOE + "gate.weight", BODY + "router.weight"), *experts(MOE, "w1", "w3", "w2"), *NORMS),
        Rule("lm_head.bias", "head.bias"),
    ),
    memory=(Rule(LAYER + "mlp.router.weight", BODY + "router.weight"), *FUSED[1:]),
)
HUGGINGFACE = replace(SPELLED, references=(replace(SPELLED.references[0], deaf="rotary_emb"),))
del SPELLED
