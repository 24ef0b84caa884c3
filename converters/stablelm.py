"""Hugging Face's spelling of StableLM: Llama's, with a norm's weight for each head in the 12b form."""

from lineage.config import Flag, Number, Only, RotaryKeys, inert
from lineage.rules import Rule, Stack

from .common import CACHED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, MLP, NORMS, TAPS, product, spelled
from .qwen import head_norms

BODY = BLOCK + "attention.body."

HUGGINGFACE = spelled(
    "stablelm",
    "StableLmForCausalLM",
    *without(keys(50304, 6912, 1e-5, (2560, 32, 32)), "head_dim", "rms_norm_eps", "rope_parameters"),
    *(*CACHED, Only("head_dim", None), *inert("training only", "hidden_dropout")),
    RotaryKeys("rope_parameters", share=0.25),
    Number("layer_norm_eps", "eps", 1e-5),
    Flag("use_qkv_bias", "bias", False),
    Flag("qk_layernorm", "head_norms", False),
    Flag("use_parallel_residual", "parallel", False),
    spec="stablelm",
    fixed={"output_bias": False},
    rules=(
        *(*ATTENTION, *MLP, *NORMS),
        Rule(LAYER + "input_layernorm.{p}", BLOCK + "norm_input.{p}"),
        Rule(LAYER + "self_attn.q_layernorm.norms.{e}.weight", BODY + "query_norm.weight", Stack()),
        Rule(LAYER + "self_attn.k_layernorm.norms.{e}.weight", BODY + "key_norm.weight", Stack()),
    ),
    taps=(*TAPS, product("query_norm", "key_norm", "v"), *head_norms("q_layernorm", "k_layernorm")),
)
