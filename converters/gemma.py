"""Hugging Face's spelling of Gemma, Gemma 2 and Gemma 3: Llama's, with norms after the branches from the second on."""

from lineage.config import Choice, Flag, Number, Only, Pattern, RotaryKinds, Size, inert
from lineage.rules import Rule, Tap

from .common import CACHED, KINDS, MASKED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, MLP, TAPS, product, residuals, spelled
from .qwen import HEAD_NORMS, head_norms

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
GEMMA3 = spelled(
    "gemma3_text",
    "Gemma3ForCausalLM",
    *without(
        keys(262208, 9216, 1e-6, (2304, 26, 8), kv_heads=4, head=256, tied=True, act=None, padding=0), "rope_parameters"
    ),
    Choice("hidden_activation", "activation", "gelu_pytorch_tanh", names=ACTIVATIONS),
    *inert("an older name that the class does not read", "hidden_act"),
    *inert("how a cache is kept", "cache_implementation"),
    *inert("kept by the class and read by no layer", "attn_logit_softcapping", "_sliding_window_pattern"),
    *MASKED,
    Only("use_bidirectional_attention", False, nullable=True),
    Flag("attention_bias", "bias", False),
    RotaryKinds(
        "rope_parameters",
        {"full_attention": ("", 1e6, "rope_theta"), "sliding_attention": ("local_", 1e4, "rope_local_base_freq")},
    ),
    Number("query_pre_attn_scalar", "query_scalar", 256, positive=True),
    Number("final_logit_softcapping", "logit_cap", None, nullable=True, positive=True),
    Size("sliding_window", "window", 4096),
    Size("sliding_window_pattern", "period", 6, quiet=True),
    Pattern("layer_types", "pattern", None, names=KINDS),
    spec="gemma3",
    taps=(
        *(*TABLE, product("query_norm", "key_norm", "v"), *TAPS[1:]),
        *(*residuals("pre_feedforward_layernorm"), *head_norms("q_norm", "k_norm")),
    ),
    rules=(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS),
)
