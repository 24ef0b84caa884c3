"""Hugging Face's spelling of OLMo and OLMo 2: Llama's, with norms that have no tensors, or that come after branches."""

from lineage.config import Entry, Flag, Number, Spare
from lineage.rules import Rule, Tap

from .common import CACHED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, MLP, TAPS, product, residuals, spelled
from .qwen import HEAD_NORMS

OLMO_KEYS: tuple[Entry, ...] = (
    *keys(50304, 11008, 1e-5, kv_heads=None, head_kind=Spare, padding=1),
    *CACHED,
    Flag("attention_bias", "bias", False),
)
BARE = (
    Tap(LAYER + "input_layernorm", BLOCK + "attention.norm_input"),
    Tap(LAYER + "post_attention_layernorm", BLOCK + "mlp.norm_input"),
    Tap("{base}norm", "norm"),
)
NORMS = tuple(
    Rule(LAYER + f"post_{theirs}_layernorm.weight", BLOCK + f"{ours}.norm_branch.weight")
    for theirs, ours in (("attention", "attention"), ("feedforward", "mlp"))
)

OLMO = spelled(
    "olmo",
    "OlmoForCausalLM",
    *without(OLMO_KEYS, "rms_norm_eps"),
    Number("clip_qkv", "clip", None, positive=True),
    spec="olmo",
    rules=(*ATTENTION, *MLP),
    taps=(*TAPS, *BARE),
)
OLMO2 = spelled(
    "olmo2",
    "Olmo2ForCausalLM",
    *OLMO_KEYS,
    spec="olmo2",
    rules=(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS),
    taps=(product("query_norm", "key_norm", "v"), *TAPS[1:], *residuals("mlp")),
)
