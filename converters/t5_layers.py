"""Names of layers that T5 and its descendants share."""

from lineage.rules import Copy, Drop, Rule, Tap

SIDES = (("encoder", "encoder.", 1), ("decoder", "", 2))
"""A stack's name in the file and in the model, and which of a block's branches is its feed-forward network."""


def attention(side: str, ours: str, place: int, name: str, role: str) -> tuple[Rule, ...]:
    """One attention with its norm."""
    theirs = f"{side}.block.{{i}}.layer.{place}"
    return (
        *(Rule(f"{theirs}.{name}.{x}.weight", f"{ours}blocks.{{i}}.{role}.body.{x}.weight") for x in "qkvo"),
        Rule(f"{theirs}.layer_norm.weight", f"{ours}blocks.{{i}}.{role}.norm_input.weight"),
    )


def taps(side: str, ours: str, place: int, name: str, role: str) -> tuple[Tap, ...]:
    """What no tensor tells of one attention."""
    theirs, body = f"{side}.block.{{i}}.layer.{place}", f"{ours}blocks.{{i}}.{role}.body"
    return (
        Tap(f"{theirs}.{name}.o", f"{body}.product", at="input", feeds=tuple(f"{body}.{x}" for x in "qkv")),
        *(Tap(f"{theirs}.{name}", body), Tap(theirs, f"{ours}blocks.{{i}}.{role}")),
    )


BIAS = ".block.0.layer.0.SelfAttention.relative_attention_bias"
ATTENTIONS = (
    *((side, ours, 0, "SelfAttention", "attention") for side, ours, _ in SIDES),
    ("decoder", "", 1, "EncDecAttention", "cross"),
)
RULES = (
    Rule("shared.weight", "encoder.embed.tokens.weight", where=lambda model: model.embed.tied),
    *(Rule(f"{side}{BIAS}.weight", f"{ours}position_bias.weight") for side, ours, _ in SIDES),
    *(rule for one in ATTENTIONS for rule in attention(*one)),
    *(
        Rule(f"{side}.block.{{i}}.layer.{place}.layer_norm.weight", f"{ours}blocks.{{i}}.mlp.norm_input.weight")
        for side, ours, place in SIDES
    ),
    *(Rule(f"{side}.final_layer_norm.weight", f"{ours}norm.weight") for side, ours, _ in SIDES),
    Rule("lm_head.weight", "head.weight"),
)
COPIES = (
    *(Copy(f"{side}.embed_tokens.weight", of="shared.weight") for side, _, _ in SIDES),
    Copy("lm_head.weight", of="shared.weight", argument="tied", key="tie_word_embeddings"),
)
DROPS = (
    Drop(
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        "a table of old files that no forward reads",
        None,
    ),
)
TAPS = (
    *(tap for one in ATTENTIONS for tap in taps(*one)),
    *(Tap(f"{side}.block.{{i}}.layer.{place}", f"{ours}blocks.{{i}}.mlp") for side, ours, place in SIDES),
    *(Tap(f"{side}.block.{{i}}", f"{ours}blocks.{{i}}") for side, ours, _ in SIDES),
    *(Tap(side + BIAS, f"{ours}position_bias", given=True) for side, ours, _ in SIDES),
    *(Tap(f"{side}.embed_tokens", f"{ours}embed") for side, ours, _ in SIDES),
    *(Tap("encoder.embed_tokens", "encoder.embed.tokens"), Tap("encoder", "encoder")),
    Tap("decoder.embed_tokens", "embed.tokens"),
    Tap("lm_head", "head", feeds=("norm",)),
)
