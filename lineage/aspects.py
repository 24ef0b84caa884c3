"""The aspects of a design: which one a path through a spec belongs to, and each in a specialist's words."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from lineage.components import Attention, Component, LatentAttention, Model, RMSNorm
from lineage.edits import WIDE, alike, relative
from lineage.words import biases, facts, head, heads, joined, layers_text, rotary, words

PATTERNS = r"""
order                                          shared layers
encoder!|blocks\.cross(\.body)?!|embed\.tied   encoder
.*\bnorm_(input|branch|sum)!                   norm placement
(embed|blocks(\.\w+)?)!                        (structure)
(.*\.)?(positions|rotary|position_bias|distances)\b.*  positions
(?!embed|blocks|norm)(\w+).*                   \1
norm!                                          final norm
embed\.norm!                                   embedding norm
.*_norm\.eps                                   norm
.*_norm\b.*|.*\.joined                        query and key norms
(.*\.)?(norm|norm_(input|branch|sum))(\..*)?   norm
.*\.(output_)?bias                             biases
blocks\.mlp\.body.*                            mlp
.*\.(kv_)?heads                                heads
embed\.(scale|rounded)                         embedding scale
embed\.(projection\b.*|early)                  embedding projection
blocks\.\w+\.scale                             branch scale
blocks\.(.*\.)?(exact|early|stream_first)      rounding
.*\.query_latent                               attention
.*\.scale                                      score scale
.*\.softcap                                    score cap
blocks\.parallel                               branches
embed\.padding                                 padding token
blocks\.(\w+)\.body!?                          \1
(?:embed|blocks\.\w+\.body|blocks\.\w+|blocks)\.(\w+).*  \1
"""
"""A path without indices, "!" behind it where a whole part comes, goes or moves; its aspect. The first that fits."""
ASPECTS = [(re.compile(line.split()[0]), " ".join(line.split()[1:])) for line in PATTERNS.strip().splitlines()]
TOLD = {
    "blocks.norm_input": "one before both branches", "norm_input": "before each branch",
    "norm_branch": "after each branch", "norm_sum": "after each sum", "parallel": "side by side",
    "cross": "read by cross attention in each block", "blocks.cross.body": "", "tied": "one table of tokens",
    "rounded": "", "embed.early": "before positions", "exact": "scores in single precision",
    "early": "queries scaled first", "stream_first": "branches added in turn", "joined": "over all heads",
}  # fmt: skip
Texts = defaultdict[str, list[str]]


@cache
def aspect_of(names: tuple[str, ...], whole: bool) -> str:
    """The aspect that a path belongs to.

    names: the path without indices. whole: a part comes, goes or moves, and does not only change.
    """
    path = ".".join(names[1:] if names[0] == "encoder" and names[1:] else names) + "!" * whole
    found = ((pattern.fullmatch(path), name) for pattern, name in ASPECTS)
    return next((fit.expand(name) for fit, name in found if fit), names[0]).replace("_", " ")


def aspects(model: Model) -> dict[str, str]:
    """Every aspect of a design in words; layers that differ are told apart, and so are an encoder and its decoder."""
    own, theirs = _aspects(model), _aspects(model.encoder) if model.encoder else {}
    both = {name: (theirs.get(name) or own[name], own.get(name) or theirs[name]) for name in own | theirs}
    return {name: one if one == two else f"encoder: {one}; decoder: {two}" for name, (one, two) in both.items()}


def _aspects(model: Model) -> dict[str, str]:
    ends, kinds = Texts(list), alike(model.blocks)
    if model.order:
        few, many = len(model.blocks), len(model.order)
        ends["shared layers"].append(f"1 block run {many} times" if few == 1 else f"{few} blocks run as {many}")
    for name, text in (
        pair for f, part in vars(model).items() if isinstance(part, Component) for pair in _told(part, (f,))
    ):
        ends[name].append(text)
    if model.head and model.head.scale == model.embed.stream**-0.5:
        ends["head"] = [head(model.head, WIDE)]
    blocks: dict[int, Texts] = {i: Texts(list) for i in dict.fromkeys(kinds)}
    for i, texts in blocks.items():
        for name, text in _told(model.blocks[i], ("blocks",)):
            texts[name].append(text)
    names = dict.fromkeys([*ends, *(name for texts in blocks.values() for name in texts)])
    return {name: "; ".join(dict.fromkeys(ends.get(name, []) + _by_layer(name, blocks, kinds))) for name in names}


def _by_layer(name: str, blocks: dict[int, Texts], kinds: list[int]) -> list[str]:
    """The texts of an aspect, with the layers that have each where they differ."""
    found = {i: texts.get(name, []) for i, texts in blocks.items()}
    told = {i: biases(one) if name == "biases" else _joined(one) for i, one in found.items()}
    apart = dict.fromkeys(told.values() if any(found.values()) else ())
    if len(apart) < 2:
        return list(apart)
    where = {text: [layer for layer, i in enumerate(kinds) if told[i] == text] for text in apart}
    spoken = [(text, layers_text(layers, len(kinds))) for text, layers in where.items()]
    (rest, _), *others = sorted(spoken, key=lambda one: "all but" not in one[1])
    if len(spoken) > 2 or all("all but" not in layers for _, layers in spoken):
        rest, others = "none", spoken
    return [f"{text} in {layers}" for text, layers in others] + [f"{rest} elsewhere"] * (rest != "none")


def _joined(texts: list[str]) -> str:
    return joined(dict.fromkeys([text for text in texts if text != "yes"] or texts)) or "none"


def _told(part: Component, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each choice of a part and below it: its aspect, and its words."""
    name, last = aspect_of(path, True), path[-1]
    if last.endswith("_norm"):
        kind = "" if isinstance(part, RMSNorm) else words(part).partition(",")[0]
        yield name, joined([kind, *facts(part, "eps", "plus_one", "late", "exact", "bias")]) or "yes"
        return
    if last == "norm" or last.startswith("norm_"):
        yield from (("norm", words(part)), (name, _phrase(path, "yes")))
        return
    text = _phrase(path, words(part))
    yield from [(name, text)] if text and name != "(structure)" else ()
    opened, values = name in ("(structure)", "attention"), vars(part)
    for f in part.declared if not isinstance(part, Model) else ():  # an encoder is told apart
        value, below = values[f.name], (*path, f.name)
        own = aspect_of(below, isinstance(value, Component))
        if own == "biases" and isinstance(value, bool):
            yield own, f"{'+' * value}{path[-2]} {f.name}"
        elif opened and isinstance(part, Attention) and f.name in ("kv_heads", "rotary") and value:
            yield own, heads(part) if f.name == "kv_heads" else rotary(value, part.head_width)
        elif isinstance(part, LatentAttention) and f.name.endswith("_norm") and value:
            yield own, "of the latents"
        elif isinstance(value, Component) and (opened or last == "cross"):
            yield from _told(value, below)
        elif (
            opened
            and f.metadata["role"] == "choice"
            and value not in (f.default, None)
            and not isinstance(value, tuple)
        ):
            yes = _phrase(below, "yes")
            text = (
                (yes if value else yes and f"not {f.name}")
                if isinstance(value, bool)
                else words(relative(values, True)[f.name])
            )
            yield from [(own, text)] if text else ()


def _phrase(path: tuple[str, ...], usual: str) -> str:
    return TOLD.get(".".join(path), TOLD.get(path[-1], usual))
