"""Hugging Face's spelling of StarCoder2: Llama's, with the feed-forward network of GPT-2."""

from lineage.config import Choice, Flag, Number, Only, Size, inert
from lineage.rules import Rule, Tap

from .common import ACTIVATIONS, MASKED, keys, without
from .llama import ATTENTION, BLOCK, LAYER, NORMS, TAPS, spelled

HUGGINGFACE = spelled(
    "starcoder2",
    "Starcoder2ForCausalLM",
    *without(keys(49152, 12288, 1e-5, (3072, 30, 24), kv_heads=2, tied=True, act=None), "rms_norm_eps"),
    *(*MASKED, Only("layer_types", None), *inert("training only", "residual_dropout", "embedding_dropout")),
    Choice("hidden_act", "activation", "gelu_pytorch_tanh", names=ACTIVATIONS),
    Number("norm_epsilon", "eps", 1e-5),
    Flag("use_bias", "bias", True),
    Size("sliding_window", "window", None),
    spec="starcoder2",
    rules=(
        *(*ATTENTION, *NORMS),
        Rule(LAYER + "mlp.c_fc.{p}", BLOCK + "mlp.body.up.{p}"),
        Rule(LAYER + "mlp.c_proj.{p}", BLOCK + "mlp.body.down.{p}"),
    ),
    taps=(*TAPS, Tap(LAYER + "mlp.act", BLOCK + "mlp.body.act")),
)
