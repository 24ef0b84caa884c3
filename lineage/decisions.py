"""The decisions that lead from the first block to today's: each a choice of options to which any model can be turned.

They do not hang on each other: whatever a model has of the others, an option changes its own aspect alone, and nothing
where the model has it already. So every combination is a valid model, and what a model decided can be found out.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from lineage import components as c
from lineage.edits import alike
from lineage.errors import ArchitectureError
from lineage.values import Value

GROUP, MULTIPLE = 4, 256  # queries on a key of grouped heads; what gated widths are rounded up to


class Sizes(Value):
    """Numbers that a design does not tell. like: the model whose they are; context: rows of a table of positions."""

    like: c.Model
    context: int

    def inner(self, gated: bool) -> int:
        """The width of an MLP: that of `like`; of the other kind 4d, or gated 8d/3 rounded up (Touvron et al. 2023)."""
        own, width = self.like.blocks[0].mlp.body, self.like.embed.stream
        if isinstance(own, c.FeedForward | c.Experts) and own.gated == gated:
            return own.width
        return -(-(8 * width // 3) // MULTIPLE) * MULTIPLE if gated else 4 * width


Turn = Callable[[c.Model, Sizes], c.Model]


class Option(Value):
    """One way to decide. source: who proposed it; why: what for, a sentence; turn: a model to one that has it."""

    name: str
    source: str
    why: str
    turn: Turn


class Decision(Value):
    """name: the aspect of the design that it is about (see `design`). options: from the first block's to today's."""

    name: str
    options: tuple[Option, ...]


def remade(part: Any, kinds: Any, change: Callable[[Any], Any]) -> Any:
    """A spec with a change to every component of these kinds, what lies in it first."""
    if isinstance(part, tuple):
        places = alike(part)
        made = {i: remade(part[i], kinds, change) for i in set(places)}
        return tuple(made[i] for i in places)
    if not isinstance(part, c.Component):
        return part
    old = {f.name: getattr(part, f.name) for f in fields(part)}  # type: ignore[arg-type]
    new = {name: remade(value, kinds, change) for name, value in old.items()}
    part = part if new == old else type(part)(**new)
    return change(part) if isinstance(part, kinds) else part


def _same(model: c.Model, sizes: Sizes) -> c.Model:
    return model


def _placed(slot: str, model: c.Model, sizes: Sizes) -> c.Model:
    """Every branch's norm in this slot; before a branch, there is one more behind the last block."""

    def branch(one: c.Residual) -> c.Residual:
        norm = one.norm_input or one.norm_branch or one.norm_sum
        slots: dict[str, Any] = {"norm_input": None, "norm_branch": None, "norm_sum": None}
        return replace(one, **(slots | {slot: norm}))

    def stack(one: c.Model) -> c.Model:
        return replace(one, norm=None if slot == "norm_sum" else one.norm or one.blocks[0].mlp.norm_input)

    return remade(remade(model, c.Residual, branch), c.Model, stack)


def _normed(kind: type[c.LayerNorm] | type[c.RMSNorm], model: c.Model, sizes: Sizes) -> c.Model:
    return remade(model, c.LayerNorm | c.RMSNorm, lambda norm: norm if isinstance(norm, kind) else kind(eps=norm.eps))


def _positioned(kind: type[c.Component], model: c.Model, sizes: Sizes) -> c.Model:
    """Positions of this kind alone: added to the tokens, or to which heads are turned."""
    given: dict[type[c.Component], Any] = {
        c.Sinusoids: c.Sinusoids(), c.LearnedPositions: c.LearnedPositions(length=sizes.context)
    }  # fmt: skip
    known = [part.rotary.theta for part in _attentions(sizes.like) if part.rotary]

    def attention(one: c.Attention) -> c.Attention:
        turned = None
        if kind is c.Rotary and not one.cross:
            turned = one.rotary or c.Rotary(theta=known[0] if known else 1e4, width=one.head_width)
        return replace(one, rotary=turned, position_bias=None)

    def embed(one: c.Embed) -> c.Embed:
        return replace(one, positions=one.positions if isinstance(one.positions, kind) else given.get(kind))

    placed = remade(remade(model, c.Attention, attention), c.Embed, embed)
    return remade(placed, c.Model, lambda one: replace(one, position_bias=None))


def _attentions(model: c.Model) -> list[c.Attention]:
    return [block.attention.body for block in model.blocks if isinstance(block.attention.body, c.Attention)]


def _networked(names: tuple[str, ...], gated: bool, model: c.Model, sizes: Sizes) -> c.Model:
    """names: activations that count as this one; the first is taken."""

    def network(one: Any) -> Any:
        if one.gated == gated and one.activation in names:
            return one
        width = one.width if one.gated == gated else sizes.inner(gated)
        return replace(one, activation=names[0], gated=gated, width=width)

    return remade(model, c.FeedForward | c.Experts, network)


def _shared(many: Callable[[c.Attention], int], model: c.Model, sizes: Sizes) -> c.Model:
    """many: how many keys a component's queries share."""
    return remade(model, c.Attention, lambda one: replace(one, kv_heads=many(one)))


def _grouped(one: c.Attention) -> int:
    return one.kv_heads if 1 < one.kv_heads < one.heads else max(1, one.heads // GROUP)


def _biased(bias: bool, model: c.Model, sizes: Sizes) -> c.Model:
    every = remade(model, c.Attention, lambda one: replace(one, bias=bias, output_bias=bias))
    return remade(every, c.FeedForward | c.Experts, lambda one: replace(one, bias=bias))


def _alone(tied: bool, model: c.Model, sizes: Sizes) -> c.Model:
    """The decoder without its encoder; and without the scale of the 2017 tokens."""
    blocks = tuple(replace(block, cross=None) for block in model.blocks)
    embed = replace(model.embed, tied=False, scale=None, rounded=True)
    head = model.head and replace(model.head, tied=tied)
    return replace(model, encoder=None, blocks=blocks, embed=embed, head=head)


GELU = ("gelu_new", "gelu", "gelu_tanh", "gelu_fast", "gelu_cut")
FIRST = "Vaswani et al. 2017"
STACK = Decision("encoder", (
    Option("encoder and decoder", FIRST, "One stack reads the source, the other writes the target.", _same),
    Option("decoder alone", "Radford et al. 2018", "One stack reads and writes: any text is its own training data.",
           partial(_alone, True)),
    Option("decoder alone, own output table", "Touvron et al. 2023",
           "In a large model a second table costs little, and logits need not share the tokens' vectors.",
           partial(_alone, False)),
))  # fmt: skip
"""The decision at the level of the model; only the first block's model can be turned."""
BLOCK = (
    Decision("norm placement", (
        Option("after each sum", FIRST, "The stream itself is normed, again and again.", partial(_placed, "norm_sum")),
        Option("before each branch", "Radford et al. 2019; Xiong et al. 2020",
               "The stream is never normed, so that gradients pass unhindered and deep stacks train without warm-up.",
               partial(_placed, "norm_input")),
    )),
    Decision("norm", (
        Option("LayerNorm", "Ba et al. 2016", "Subtracts the mean and divides by the deviation.",
               partial(_normed, c.LayerNorm)),
        Option("RMSNorm", "Zhang & Sennrich 2019", "Divides by the root mean square alone: cheaper, and as good.",
               partial(_normed, c.RMSNorm)),
    )),
    Decision("positions", (
        Option("sinusoidal", FIRST, "Fixed waves are added to the tokens' vectors.", partial(_positioned, c.Sinusoids)),
        Option("learned", "Gehring et al. 2017", "A table of vectors, which ends where the table ends.",
               partial(_positioned, c.LearnedPositions)),
        Option("rotary", "Su et al. 2021", "Queries and keys are turned by an angle, so that scores see distances.",
               partial(_positioned, c.Rotary)),
    )),
    Decision("mlp", (
        Option("ReLU", FIRST, "Two matrices, 4 widths between them.", partial(_networked, ("relu",), False)),
        Option("GELU", "Hendrycks & Gimpel 2016", "The same with a smooth bend.", partial(_networked, GELU, False)),
        Option("SwiGLU", "Shazeer 2020", "A third matrix gates the first; two thirds of the width keep the size.",
               partial(_networked, ("silu",), True)),
    )),
    Decision("heads", (
        Option("multi-head", FIRST, "Each query has keys and values of its own.",
               partial(_shared, lambda one: one.heads)),
        Option("multi-query", "Shazeer 2019", "All queries share one key: the smallest cache.",
               partial(_shared, lambda one: 1)),
        Option("grouped", "Ainslie et al. 2023", "A few queries share a key: most of the quality, a part of the cache.",
               partial(_shared, _grouped)),
    )),
    Decision("biases", (
        Option("everywhere", FIRST, "Every linear map adds a vector.", partial(_biased, True)),
        Option("none", "Chowdhery et al. 2022", "Large models train more steadily without, and lose nothing.",
               partial(_biased, False)),
    )),
)  # fmt: skip
"""The six within the block, in the order of history."""


def taken(model: c.Model) -> dict[str, Option | None]:
    """What a model decided: of each decision of the block the option that leaves it as it is; None for another way."""
    sizes, found = Sizes(like=model, context=1), dict[str, Option | None]()
    for decision in BLOCK:
        fits = [option for option in decision.options if _leaves(option, model, sizes)]
        found[decision.name] = fits[0] if len(fits) == 1 else None
    return found


def _leaves(option: Option, model: c.Model, sizes: Sizes) -> bool:
    try:
        return option.turn(model, sizes) == model
    except ArchitectureError:  # a combination that a component refuses is not this model
        return False


def turned(model: c.Model, options: Iterable[Option], sizes: Sizes) -> c.Model:
    """A model with these options."""
    for option in options:
        model = option.turn(model, sizes)
    return model
