"""Hugging Face's spelling of GPT: GPT-2's, with norms after the sum and other names for the tables."""

from lineage.config import Choice, Inert, Size
from lineage.rules import Copy, Dialect, Reference, Rule, Tap

from .common import COMMON, PADDING
from .gpt2 import BLOCK, BUFFERS, DROPOUT, LAYER, SIZES, SUMMARY, TAPS, layer_rules

# This config's "gelu" has always meant the tanh formula.
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}

HUGGINGFACE = Dialect(
    spec="gpt",
    model_types=("openai-gpt",),
    prefixes=("transformer.", ""),
    config=(
        *COMMON,
        *SUMMARY,
        *DROPOUT,
        *SIZES,
        PADDING,
        Size("vocab_size", "vocab", 40478),
        Size("n_positions", "context", 512, ("max_position_embeddings",)),
        Choice("afn", "activation", "gelu", names=ACTIVATIONS),
        Inert("is_causal", "the mask is the class's own"),
        Inert("n_ctx", "the length is n_positions"),
        Inert("n_special", "already counted in vocab_size"),
        Inert("predict_special_tokens", "a switch of old versions that today's class does not read"),
    ),
    tensors=(
        Rule("{base}tokens_embed.weight", "embed.tokens.weight"),
        Rule("{base}positions_embed.weight", "embed.positions.weight"),
        *layer_rules("norm_sum", "norm_sum"),
        Rule("lm_head.weight", "head.weight"),
    ),
    copies=(Copy("lm_head.weight", of="{base}tokens_embed.weight", argument="tied"),),
    drops=BUFFERS,
    taps=(
        *TAPS,
        Tap("{base}drop", "embed", entry="{base}tokens_embed"),
        Tap(LAYER + "ln_1", BLOCK + "attention", entry=LAYER[:-1]),
        Tap(LAYER + "ln_2", BLOCK + "mlp", entry=LAYER + "mlp"),
    ),
    references=(Reference("OpenAIGPTLMHeadModel", ("head",), {"logits": "logits"}),),
)
