"""Hugging Face's spelling of Qwen2 and Qwen3: Llama's, with q, k, v biases, or q, k norms."""

from lineage.config import Entry, Flag, Index, Inert, Only, Pattern, Size, Spare, Toggle, inert
from lineage.rules import Rule, Tap

from .common import KINDS, MASKED, keys
from .llama import ATTENTION, BLOCK, LAYER, MLP, NORMS, TAPS, product, spelled

FULL = (
    *MASKED,
    Only("use_sliding_window", False),
    *inert("windows are off: use_sliding_window", "sliding_window", "max_window_layers"),
    Inert("layer_types", "windows are off: use_sliding_window", form="full attention in every layer"),
)
WINDOWS: tuple[Entry, ...] = (
    *MASKED,
    Toggle(
        "use_sliding_window",
        (Size("sliding_window", "window", 4096, nullable=True), Index("max_window_layers", "full_layers", 28)),
        {"window": None, "full_layers": 0},
    ),
    Pattern("layer_types", "pattern", None, names=KINDS),
)
HEAD_NORMS = (
    Rule(LAYER + "self_attn.q_norm.weight", BLOCK + "attention.body.query_norm.weight"),
    Rule(LAYER + "self_attn.k_norm.weight", BLOCK + "attention.body.key_norm.weight"),
)


def head_norms(query: str, key: str) -> tuple[Tap, Tap]:
    """Norms of queries and keys by heads, where the code has put heads before tokens."""
    both = {query: "query_norm", key: "key_norm"}
    first, second = (
        Tap(LAYER + f"self_attn.{theirs}", BLOCK + f"attention.body.{ours}", heads_first=True)
        for theirs, ours in both.items()
    )
    return first, second


QWEN2 = spelled(
    "qwen2",
    "Qwen2ForCausalLM",
    *(*keys(151936, 22016, 1e-6, kv_null=True, head_kind=Spare), *WINDOWS),
    fixed={"bias": True, "output_bias": False},
)
QWEN3 = spelled(
    "qwen3",
    "Qwen3ForCausalLM",
    *(*keys(151936, 22016, 1e-6, kv_null=True, head=128), *WINDOWS),
    Flag("attention_bias", "bias", False),
    spec="qwen3",
    rules=(*ATTENTION, *HEAD_NORMS, *MLP, *NORMS),
    taps=(product("query_norm", "key_norm", "v"), *TAPS[1:]),
)
