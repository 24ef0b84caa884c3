"""Hugging Face's spelling of Command R: Llama's, with one norm a layer."""

from lineage.config import Flag, Number, Spare
from lineage.rules import Rule

from .common import CACHED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, MLP, TAPS, product, spelled
from .qwen import HEAD_NORMS

HUGGINGFACE = spelled(
    "cohere",
    "CohereForCausalLM",
    *without(
        keys(256000, 22528, 1e-5, (8192, 40, 64), kv_heads=None, head_kind=Spare, theta=5e5, tied=True, padding=0),
        "rms_norm_eps",
    ),
    *CACHED,
    Number("layer_norm_eps", "eps", 1e-5),
    Number("logit_scale", "logit_scale", 0.0625, positive=True),
    Flag("attention_bias", "bias", False),
    Flag("use_qk_norm", "head_norms", False),
    spec="cohere",
    rules=(*ATTENTION, *HEAD_NORMS, *MLP, Rule(LAYER + "input_layernorm.{p}", BLOCK + "norm_input.{p}")),
    taps=(*TAPS, product("query_norm", "key_norm", "v")),
)
