"""What the spellings of encoder–decoder models share: names of layers and tables."""

from lineage.rules import Copy, Drop, Find, Row, Rule, Tap

ENCODER, DECODER = ("{base}encoder.layers.{i}.", "encoder.blocks.{i}."), ("{base}decoder.layers.{i}.", "blocks.{i}.")


def attention(sides: tuple[str, str], theirs: str, ours: str) -> tuple[Rule, ...]:
    """An attention with its projections. sides: a layer's prefix in the file and in the model."""
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return tuple(Rule(f"{sides[0]}{theirs}.{b}.{{p}}", f"{sides[1]}{ours}.body.{a}.{{p}}") for a, b in names.items())


def layer(sides: tuple[str, str], slot: str) -> tuple[Rule, ...]:
    """A layer. slot: where its norms stand, norm_sum or norm_input."""
    theirs, ours = sides
    return (
        *attention(sides, "self_attn", "attention"),
        Rule(theirs + "self_attn_layer_norm.{p}", ours + f"attention.{slot}.{{p}}"),
        Rule(theirs + "fc1.{p}", ours + "mlp.body.up.{p}"),
        Rule(theirs + "fc2.{p}", ours + "mlp.body.down.{p}"),
        Rule(theirs + "final_layer_norm.{p}", ours + f"mlp.{slot}.{{p}}"),
    )


def stacks(slot: str) -> tuple[Rule, ...]:
    """Both stacks."""
    return (
        *layer(ENCODER, slot),
        *layer(DECODER, slot),
        *attention(DECODER, "encoder_attn", "cross"),
        Rule(DECODER[0] + "encoder_attn_layer_norm.{p}", DECODER[1] + f"cross.{slot}.{{p}}"),
    )


SIDES = (("encoder", "encoder."), ("decoder", ""))
TABLES = (
    Rule(
        tuple(f"{{base}}{theirs}.embed_tokens.weight" for theirs, _ in SIDES),
        tuple(f"{ours}embed.tokens.weight" for _, ours in SIDES),
        where=lambda model: not model.embed.tied,
    ),
    Rule("{base}shared.weight", "encoder.embed.tokens.weight", where=lambda model: model.embed.tied),
)
POSITIONS = tuple(
    Rule(f"{{base}}{theirs}.embed_positions.weight", f"{ours}embed.positions.weight") for theirs, ours in SIDES
)
HEAD = Rule("lm_head.weight", "head.weight")
LOGITS_BIAS = Rule("final_logits_bias", "head.bias", Row())
BIAS = Find("final_logits_bias", "bias", usual=True)
SHARED = (
    *(Copy(f"{{base}}{side}.embed_tokens.weight", of="{base}shared.weight") for side, _ in SIDES),
    Copy("lm_head.weight", of="{base}shared.weight", argument="tied"),
)
SINES = "sines, then cosines"
TABLE = Find(tuple(rule.sources[0] for rule in POSITIONS), "table", unless=SINES)
WAVES = tuple(Drop(rule.sources[0], "sines and cosines, as a table", SINES) for rule in POSITIONS)
DEAD = Drop("{base}shared.weight", "a table that nothing reads where each side has its own", None)
FORMAT = (
    Drop("{base}encoder.version", "the number of an old format", None),
    Drop("{base}decoder.version", "the same", None),
)


def taps(sides: tuple[str, str], *roles: tuple[str, str]) -> tuple[Tap, ...]:
    """What no tensor tells of a layer. roles: an attention's name in the file and in the model."""
    theirs, ours = sides
    found = [Tap(theirs + "fc2", ours + "mlp.body", entry=theirs + "fc1"), Tap(theirs[:-1], ours[:-1])]
    found.append(Tap(theirs + "activation_fn", ours + "mlp.body.act"))
    for name, role in roles:
        feeds = tuple(f"{ours}{role}.body.{x}" for x in "qkv")
        found.append(Tap(f"{theirs}{name}.out_proj", f"{ours}{role}.body.product", at="input", feeds=feeds))
        found.append(Tap(theirs + name, f"{ours}{role}.body"))
    return tuple(found)


TAPS = (
    *taps(ENCODER, ("self_attn", "attention")),
    *taps(DECODER, ("self_attn", "attention"), ("encoder_attn", "cross")),
    *(
        Tap(f"{{base}}{theirs}.embed_positions", f"{ours}embed.positions", entry=f"{{base}}{theirs}")
        for theirs, ours in SIDES
    ),
    *(
        Tap(f"{{base}}{theirs}.layers.0", f"{ours}embed", at="input", entry=f"{{base}}{theirs}")
        for theirs, ours in SIDES
    ),
    Tap("{base}encoder", "encoder"),
)
WHOLE = Tap("", "head", entry="lm_head")  # what the bias was added to
SCALED = (  # what a table gives is scaled at once, and ours not yet
    *(Tap(f"{{base}}{theirs}.embed_tokens", f"{ours}embed.tokens", at="nothing") for theirs, ours in SIDES),
)
NORMS = tuple(Rule(f"{{base}}{theirs}.layernorm_embedding.{{p}}", f"{ours}embed.norm.{{p}}") for theirs, ours in SIDES)
LAST = tuple(Rule(f"{{base}}{theirs}.layer_norm.{{p}}", f"{ours}norm.{{p}}") for theirs, ours in SIDES)
