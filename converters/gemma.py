"""Hugging Face's spelling of Gemma and Gemma 2: Llama's, with norms after the branches in the second."""

from lineage.config import Choice, Flag, Number, Only, Pattern, Size, inert
from lineage.rules import Rule, Tap

from .common import CACHED, KINDS, MASKED, keys
from .llama import ATTENTION, BLOCK, LAYER, MLP, TAPS, residuals, spelled

# "gelu" in these configs has always meant the tanh form.
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_tanh", "gelu_new": "gelu_new", "silu": "silu"}
NORMS = tuple(
    Rule(LAYER + f"{theirs}_layernorm.weight", BLOCK + f"{ours}.weight")
    for theirs, ours in (
        ("input", "attention.norm_input"),
        ("post_attention", "attention.norm_branch"),
        ("pre_feedforward", "mlp.norm_input"),
        ("post_feedforward", "mlp.norm_branch"),
    )
)
TABLE = (Tap("{base}embed_tokens", "embed"), Tap("{base}embed_tokens", "embed.tokens", at="nothing"))  # scaled inside
FURTHER = (Only("use_bidirectional_attention", None), Flag("attention_bias", "bias", False))

GEMMA = spelled(
    "gemma",
    "GemmaForCausalLM",
    *keys(256000, 24576, 1e-6, (3072, 28, 16), kv_heads=16, head=256, tied=True, act=None, padding=0),
    Choice("hidden_act", "activation", "gelu_pytorch_tanh", names=ACTIVATIONS),
    *inert("an older name that the class does not read", "hidden_activation"),
    *(*FURTHER, *CACHED),
    spec="gemma",
    taps=(*TABLE, *TAPS),
)
GEMMA2 = spelled(
    "gemma2",
    "Gemma2ForCausalLM",
    *keys(256000, 9216, 1e-6, (2304, 26, 8), kv_heads=4, head=256, tied=True, act=None, padding=0),
    Choice("hidden_activation", "activation", "gelu_pytorch_tanh", names=ACTIVATIONS),
    *inert("an older name that the class does not read", "hidden_act"),
    *inert("how a cache is kept", "cache_implementation"),
    *(*FURTHER, *MASKED),
    Number("query_pre_attn_scalar", "query_scalar", 256, positive=True),
    Number("attn_logit_softcapping", "score_cap", 50.0, nullable=True, positive=True),
    Number("final_logit_softcapping", "logit_cap", 30.0, nullable=True, positive=True),
    Size("sliding_window", "window", 4096),
    Pattern("layer_types", "pattern", None, names=KINDS),
    spec="gemma2",
    taps=(*TABLE, *TAPS, *residuals("pre_feedforward_layernorm")),
    rules=(*ATTENTION, *MLP, *NORMS),
)
