"""llama.cpp's spelling of Llama in GGUF files: its keys, its names, and queries and keys as rows that turn in pairs."""

from dataclasses import replace

from lineage.config import Index, Inert, Number, Only, Size
from lineage.rules import Find, Paired, Rule

from .llama import BLOCK, HUGGINGFACE

FILE, HEAD = "blk.{i}.", ("llama.attention.key_length", "llama.attention.value_length")
NAMES = {
    "attn_norm": "attention.norm_input", "attn_v": "attention.body.v", "attn_output": "attention.body.o",
    "ffn_norm": "mlp.norm_input", "ffn_gate": "mlp.body.gate", "ffn_up": "mlp.body.up", "ffn_down": "mlp.body.down",
}  # fmt: skip
TURNED = {f"attn_{x}": f"attention.body.{x}" for x in "qk"}

GGUF = replace(
    HUGGINGFACE,
    form="gguf",
    config=(
        Size("llama.embedding_length", "width", 4096),
        Size("llama.block_count", "layers", 32, most=4096),
        Size("llama.attention.head_count", "heads", 32),
        Size("llama.attention.head_count_kv", "kv_heads", None),
        Size("llama.rope.dimension_count", "head_size", None, HEAD),
        Size("llama.feed_forward_length", "mlp_width", 11008),
        Size("llama.vocab_size", "vocab", 32000),
        Number("llama.attention.layer_norm_rms_epsilon", "eps", 1e-6),
        Number("llama.rope.freq_base", "theta", 10000.0, positive=True),
        Index("tokenizer.ggml.padding_token_id", "padding", None, nullable=True),
        Inert("llama.context_length", "a length for people"),
        Only("llama.attention.causal", True),
        # the reference reads none of these and computes on, and llama.cpp obeys them
        Only("llama.rope.scaling.type", "none"),
        *(Only(key, None) for key in ("llama.attention.sliding_window", "llama.rope.scale_linear")),
        *(Only(key, 0) for key in ("llama.expert_count", "llama.expert_used_count", "split.count")),
    ),
    tensors=(
        Rule("token_embd.weight", "embed.tokens.weight"),
        *(Rule(f"{FILE}{name}.{{p}}", f"{BLOCK}{part}.{{p}}") for name, part in NAMES.items()),
        *(Rule(f"{FILE}{name}.{{p}}", f"{BLOCK}{part}.{{p}}", Paired()) for name, part in TURNED.items()),
        Rule("output_norm.{p}", "norm.{p}"),
        Rule("output.weight", "head.weight"),
    ),
    finds=(Find("output.weight", "tied", absent=True),),
    memory=HUGGINGFACE.tensors,
    drops=(),
    prefixes=("model.",),
)
