"""Hugging Face's spelling of the Switch Transformer."""

from lineage.config import Choice, Flag, Only, Size, Steps, Twin, inert
from lineage.rules import Dialect, Drop, Reference, Rule, Stack, Tap

from .common import ACTIVATIONS
from .t5 import sizes
from .t5_layers import COPIES, RULES, SIDES, TAPS


def places() -> list[tuple[str, str]]:
    """A feed-forward network's name in the file and in the model, of each side."""
    return [(f"{side}.block.{{i}}.layer.{place}.mlp", f"{ours}blocks.{{i}}.mlp.body") for side, ours, place in SIDES]


EXPERTS = tuple(
    rule
    for theirs, ours in places()
    for rule in (
        *(Rule(f"{theirs}.{a}.weight", f"{ours}.{b}.weight") for a, b in (("wi", "up"), ("wo", "down"))),
        Rule(f"{theirs}.router.classifier.{{p}}", f"{ours}.router.{{p}}"),
        *(
            Rule(f"{theirs}.experts.expert_{{e}}.{a}.weight", f"{ours}.{b}", Stack())
            for a, b in (("wi", "up"), ("wo", "down"))
        ),
    )
)
WITHIN = tuple(
    tap
    for theirs, ours in places()
    for tap in (
        *(Tap(theirs, ours), Tap(f"{theirs}.act", f"{ours}.act")),
        Tap(f"{theirs}.router", f"{ours}.router", at="logits"),
    )
)
HUGGINGFACE = Dialect(
    spec="switch",
    model_types=("switch_transformers",),
    config=(
        *sizes(768, 2048, 12, 12),
        Size("d_kv", "head_size", 64),
        Size("num_layers", "layers", 12, ("num_hidden_layers",), most=4096),
        Size("num_decoder_layers", "decoder_layers", 12, most=4096),
        Choice("dense_act_fn", "activation", "relu", names=ACTIVATIONS),
        Size("num_experts", "experts", 8),
        Size("expert_capacity", "capacity", 64),
        Steps("num_sparse_encoder_layers", 3, ("num_layers", "num_hidden_layers"), 12, "encoder_sparse_step", "step"),
        Steps("num_sparse_decoder_layers", 3, ("num_decoder_layers",), 12, "decoder_sparse_step", "decoder_step"),
        Flag("router_bias", "router_bias", False),
        Only("router_dtype", "float32"),
        Only("add_cross_attention", False),
        Twin("tie_word_embeddings", "tied", True, others=("scaled", "shared")),
        *inert("training only", "router_jitter_noise", "router_z_loss_coef", "router_aux_loss_coef"),
        *inert("what the call returns, not what it computes", "add_router_probs", "output_router_logits"),
        *inert("no forward reads it: padding takes its room", "router_ignore_padding_tokens"),
    ),
    tensors=(
        *RULES,
        Rule(
            ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
            ("encoder.embed.tokens.weight", "embed.tokens.weight"),
            where=lambda model: not model.embed.tied,
        ),
        *EXPERTS,
    ),
    copies=COPIES,
    drops=(Drop("shared.weight", "a table that nothing reads where each side has its own", None),),
    taps=(*TAPS, *WITHIN),
    references=(Reference("SwitchTransformersForConditionalGeneration", ("head",), {"logits": "logits"}),),
)
