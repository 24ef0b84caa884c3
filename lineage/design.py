"""The differences between two architectures as a specialist tells them: a row for each aspect of the design.

Every edit of the script belongs to one aspect. An aspect with a choice among its edits is a row of the design; what is
left are sizes.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

from lineage import count
from lineage.components import Attention, Bidirectional, Component, LatentAttention, Model, RMSNorm
from lineage.edits import WIDE, Edit, alike, applied, between, lay_open, relative
from lineage.words import biases, facts, head, heads, joined, layers_text, number, rotary, words

ORDER = ("encoder", "mask", "embedding scale", "norm placement", "embedding norm", "final norm", "norm", "segments",
         "positions", "attention", "mlp", "heads", "biases")  # fmt: skip
"""What changed first comes first, 2017 to today; the rest as it stands in the spec, and then what matters least."""
LAST = ("padding token", "rounding")
SPEAKING = (
    "encoder",
    "norm",
    "positions",
    "mlp",
    "mask",
    "heads",
    "segments",
    "attention",
    "shared layers",
    "rounding",
)
"""Aspects whose words need no name before them."""
PATTERNS = r"""
order                                          shared layers
encoder!|blocks\.cross(\.body)?!|embed\.tied   encoder
.*\bnorm_(input|branch|sum)!                   norm placement
(embed|blocks(\.\w+)?)!                        (structure)
(.*\.)?(positions|rotary|position_bias)\b.*    positions
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
ALONE = ("decoder alone", "encoder alone")


@dataclass(frozen=True)
class Row:
    """One aspect of two designs in words. state: changed, moved, added, removed, or same."""

    aspect: str
    state: str
    before: str
    after: str
    edits: tuple[Edit, ...] = ()

    @property
    def label(self) -> str:
        """The change in few words, as an edge of the family tree says it."""
        if self.after in ("none", "yes"):
            return f"{'no ' if self.after == 'none' else ''}{self.aspect}"
        alone = self.aspect in SPEAKING and not self.after.startswith("none")
        return self.after if alone else f"{self.aspect.removesuffix(' placement')} {self.after}"

    @property
    def numeric(self) -> bool:
        return numeric(self.edits)


@dataclass(frozen=True)
class Diff:
    """What lies between two architectures. design: the aspects that differ; same: those that do not; sizes: name ->
    before, after; script: the exact edits."""

    before: Model
    after: Model
    names: tuple[str, str]
    script: tuple[Edit, ...]
    design: tuple[Row, ...]
    same: tuple[Row, ...]
    sizes: dict[str, tuple[int, int]]

    def apply(self, model: Model) -> Model:
        """The script applied: turns `before` into `after`. Raises as `edits.applied` does."""
        return applied(self.script, model)

    @cached_property
    def figures(self) -> dict[str, tuple[int, int]]:
        """What it leads to, before and after (see `count.figures`)."""
        one, other = count.figures(self.before), count.figures(self.after)
        return {name: (one[name], other[name]) for name in one}

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        words = ("aspect", "state", "before", "after")
        rows = {
            of: [{word: getattr(row, word) for word in words} for row in getattr(self, of)] for of in ("design", "same")
        }
        facts = {"schema": "lineage.diff/1", "names": self.names, "identical": not self.script, **rows}
        return facts | {"sizes": self.sizes, "figures": self.figures, "script": [asdict(edit) for edit in self.script]}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from lineage.render import comparison

        return {"text/plain": "\n".join(comparison.table(self)), "text/markdown": "\n".join(comparison.markdown(self))}


def diff(before: Model | str, after: Model | str) -> Diff:
    """What changed between two architectures: specs, or what `describe` finds under a name. Raises its errors."""
    from lineage.checkpoint.source import Access
    from lineage.describe import describe

    sides = (("before", before), ("after", after))
    found = [(one, describe(one, Access()).model) if isinstance(one, str) else (name, one) for name, one in sides]
    return compare(found[0][1], found[1][1], (found[0][0], found[1][0]))


class Side:
    """An architecture to be compared with several others: what hangs on it alone is found once."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @cached_property
    def tree(self) -> Any:
        return lay_open(self.model)

    @cached_property
    def aspects(self) -> dict[str, str]:
        return aspects(self.model)


def compare(before: Model | Side, after: Model | Side, names: tuple[str, str] = ("before", "after")) -> Diff:
    """What changed between two architectures."""
    first, second = (one if isinstance(one, Side) else Side(one) for one in (before, after))
    edits, one, other, before, after = (
        between(first.tree, second.tree), first.aspects, second.aspects, first.model, second.model,
    )  # fmt: skip
    decided = choices(edits)
    design = [
        _row(n, e, one.get(n) or _absent(n, before), other.get(n) or _absent(n, after)) for n, e in decided.items()
    ]
    same = [Row(name, "same", one[name], other[name]) for name in one if name in other and name not in decided]
    told, kept = (tuple(sorted(rows, key=_rank)) for rows in (design, same))
    return Diff(before, after, names, edits, told, kept, sizes(edits))


def choices(edits: Iterable[Edit]) -> dict[str, list[Edit]]:
    """The aspects in which something is decided otherwise, each with all of its edits."""
    grouped: dict[str, list[Edit]] = {}
    for edit in edits:
        grouped.setdefault(aspect(edit), []).append(edit)
    return {name: found for name, found in grouped.items() if any(edit.decided for edit in found)}


def numeric(edits: Sequence[Edit]) -> bool:
    """Whether only numbers are other ones: an eps, a theta."""
    return bool(edits) and all(type(edit.before) is type(edit.after) is float for edit in edits)


def sizes(edits: Sequence[Edit]) -> dict[str, tuple[int, int]]:
    """The dimensions that differ, but for those that the words of an aspect hold."""
    told = {"heads"} & set(choices(edits))
    sized = [edit for edit in edits if edit.state == "size" and aspect(edit) not in told]
    return {size_name(edit): (edit.before, edit.after) for edit in sized}


def _absent(name: str, model: Model) -> str:
    """The words for an aspect that a design has nothing of."""
    if name == "encoder":
        return ALONE[isinstance(model.blocks[0].attention.body.mask, Bidirectional)]  # type: ignore[union-attr]
    return {"branches": "one after the other", "score scale": "1/√head width", "rounding": "rounding as usual"}.get(
        name, "none"
    )


def _rank(row: Row) -> tuple[bool, int]:
    place = ORDER.index(row.aspect) if row.aspect in ORDER else len(ORDER) + (row.aspect in LAST)
    return row.numeric, place


def _row(name: str, edits: list[Edit], before: str, after: str) -> Row:
    gone, moved = [text in ("none", *ALONE) for text in (before, after)], any(edit.state == "moved" for edit in edits)
    state = "moved" if moved else "added" if gone[0] else "removed" if gone[1] else "changed"
    if before == after:  # what the words leave out
        chosen = [edit for edit in edits if edit.decided]
        before = joined(dict.fromkeys(f"{' '.join(edit.names[-2:])} {number(edit.before)}" for edit in chosen))
        after = joined(dict.fromkeys(f"{' '.join(edit.names[-2:])} {number(edit.after)}" for edit in chosen))
    return Row(name, state, before, after, tuple(edits))


def size_name(edit: Edit) -> str:
    """A dimension's name: ``layers``, ``width``, ``mlp width``, ``vocab``."""
    if edit.names[-1] in ("blocks", "order"):
        return "layers"
    *owners, last = (name for name in edit.names if name not in ("blocks", "body", "embed"))
    general = last in ("width", "length", "count") and owners
    return (f"{owners[-1]} {last}" if general else last).replace("_", " ")


def aspect(edit: Edit) -> str:
    """The aspect of the design that an edit belongs to."""
    moved, parts = edit.phase == "moved", edit.phase != "kind" and dict in (type(edit.before), type(edit.after))
    return _aspect((*edit.names, edit.after) if moved else edit.names, moved or parts)


@cache
def _aspect(names: tuple[str, ...], whole: bool) -> str:
    """names: the path without indices. whole: a part comes, goes or moves, and does not only change."""
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
    name, last = _aspect(path, True), path[-1]
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
        own = _aspect(below, isinstance(value, Component))
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
