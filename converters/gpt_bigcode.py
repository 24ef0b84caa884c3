"""Hugging Face's spelling of GPT-BigCode: GPT-2's, matrices the usual way round, keys fused with their heads."""

from lineage.config import Choice, Flag, Only, Size, inert
from lineage.rules import Copy, Dialect, PerHead, Reference, Rule, Tap

from .common import ACTIVATIONS, CACHED, COMMON, PADDING
from .gpt2 import BLOCK, DROPOUT, LAYER, QKV, SIZES, SUMMARY, TAPS

HUGGINGFACE = Dialect(
    spec="gpt_bigcode",
    model_types=("gpt_bigcode",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, *SUMMARY, *DROPOUT, *SIZES, PADDING),
        Size("vocab_size", "vocab", 50257),
        Size("n_positions", "context", 1024, ("max_position_embeddings",)),
        Size("n_inner", "mlp_width", None),
        Choice("activation_function", "activation", "gelu_pytorch_tanh", names=ACTIVATIONS),
        Flag("scale_attn_weights", "scaled", True),
        Flag("multi_query", "multi_query", True),
        Only("add_cross_attention", False),
        *inert("multi_query says it", "num_key_value_heads"),
        *inert("the order and precision of the same product", "attention_softmax_in_fp32"),
        *inert("the order and precision of the same product", "scale_attention_softmax_in_fp32"),
        *inert("of versions that chose their own kernels", "inference_runner", "validate_runner_input"),
        *inert("of versions that chose their own kernels", "pre_allocate_kv_cache", "max_sequence_length"),
        *inert("of versions that chose their own kernels", "max_batch_size", "pad_key_length"),
    ),
    tensors=(
        Rule("{base}wte.weight", "embed.tokens.weight"),
        Rule("{base}wpe.weight", "embed.positions.weight"),
        Rule(LAYER + "ln_1.{p}", BLOCK + "attention.norm_input.{p}"),
        Rule(LAYER + "attn.c_attn.{p}", tuple(x + "{p}" for x in QKV), PerHead()),
        Rule(LAYER + "attn.c_proj.{p}", BLOCK + "attention.body.o.{p}"),
        Rule(LAYER + "ln_2.{p}", BLOCK + "mlp.norm_input.{p}"),
        Rule(LAYER + "mlp.c_fc.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "mlp.c_proj.{p}", BLOCK + "mlp.body.down.{p}"),
        Rule("{base}ln_f.{p}", "norm.{p}"),
        Rule("lm_head.weight", "head.weight"),
    ),
    copies=(Copy("lm_head.weight", of="{base}wte.weight", argument="tied"),),
    taps=(
        *TAPS,
        Tap("{base}drop", "embed", entry="{base}wte"),
        Tap(LAYER + "ln_2", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=LAYER + "ln_2"),
    ),
    references=(Reference("GPTBigCodeForCausalLM", ("head",), {"logits": "logits"}),),
)
