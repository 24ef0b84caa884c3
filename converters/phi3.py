"""Hugging Face's spelling of Phi-3 and Phi-4-mini: Llama's, with q, k, v in one matrix and gate, up in another."""

from lineage.config import Only, RotaryKeys, Size, Spare, inert
from lineage.rules import Rule, Split, Tap

from .common import MASKED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, NORMS, TAPS, spelled

BODY = BLOCK + "attention.body."
GATES = (
    Rule(LAYER + "mlp.gate_up_proj.{p}", (BLOCK + "mlp.body.gate.{p}", BLOCK + "mlp.body.up.{p}"), Split()),
    Rule(LAYER + "mlp.down_proj.{p}", BLOCK + "mlp.body.down.{p}"),
)
ACTIVATION = Tap(LAYER + "mlp.activation_fn", BLOCK + "mlp.body.act")

HUGGINGFACE = spelled(
    "phi3",
    "Phi3ForCausalLM",
    *without(keys(32064, 8192, 1e-5, (3072, 32, 32), kv_heads=None, head_kind=Spare, padding=32000), "rope_parameters"),
    *(*MASKED, Only("layer_types", None), *inert("training only", "resid_pdrop", "embd_pdrop")),
    RotaryKeys(
        "rope_parameters",
        share=1.0,
        length=4096,
        context=4096,
        aliases={"su": "longrope", "yarn": "longrope"},
        broken=("su",),
        kinds=("longrope",),
    ),
    Size("sliding_window", "window", None),
    rules=(
        Rule(LAYER + "self_attn.qkv_proj.{p}", tuple(BODY + x + ".{p}" for x in "qkv"), Split()),
        *(ATTENTION[-1], *GATES, *NORMS),
    ),
    taps=(*TAPS, ACTIVATION),
)
