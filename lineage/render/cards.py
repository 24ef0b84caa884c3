"""A model as cards, and two of them side by side: what is said of a part, and what differs, comes from the spec."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from lineage import components as c
from lineage.edits import Edit, alike, between, lay_open, stretched
from lineage.render import drawing
from lineage.render.comparison import SIGNS
from lineage.render.drawing import Item
from lineage.render.page import Markup, el, escape
from lineage.values import Value
from lineage.words import biases, facts, layers_text, number

MARKS = SIGNS | {"size": "~"}
PLACES = {"norm_input": "before the branch", "norm_branch": "after the branch", "norm_sum": "after the sum",
          "sum": "the branch is added to the stream"}  # fmt: skip
DRAWN = ("positions", "segments", "norm", "projection")  # parts of an embedding that have cards of their own
DRAWN_OF_HEADS = ("heads", "kv_heads", "head_width", "mask", "rotary", "cross")
NONE = "nothing here"


def more(part: c.Component | None) -> list[str]:
    """What a drawing leaves out of a part."""
    if not isinstance(part, c.Attention | c.FeedForward | c.Experts):
        return []
    whose = "attention" if isinstance(part, c.Attention) else "mlp"
    there = {name: value for name, value in vars(part).items() if name in ("bias", "output_bias")}
    told = [f"biases {biases(['+' * value + f'{whose} {name}' for name, value in there.items()])}"]
    return told + (facts(part, *there, *DRAWN_OF_HEADS) if isinstance(part, c.Attention) else [])


def card(item: Item) -> tuple[str, str]:
    """A part's title, and what is said of it."""
    slot, (title, colon, told) = item.place.split(".")[-1], item.told.partition(": ")
    if not colon and item.kind != "sum":
        title, told = slot.split("_")[0], title
    return title, "; ".join(filter(None, [told, ", ".join(more(item.part)), PLACES.get(slot)]))


def stack(model: c.Model) -> Markup:
    """The drawing: a card for each part, a frame for each group of equal layers, a rail that branches are added to.

    An encoder stands beside the decoder that reads its result.
    """
    frames = list(_frames(drawing.items(model)))
    if not model.encoder:
        return el("div", frames, kind="stack")
    return el("div", [el("div", tower, kind="stack") for tower in (frames[:1], frames[1:])], kind="towers")


def _frames(items: Iterator[Item], *ends: str) -> Iterator[Markup]:
    """The items up to one of these ends, which is taken too."""
    for item in items:
        if item.kind in ends:
            return
        if item.kind == "group":
            head = el("p", item.told, kind="title")
            yield el("div", head, *_frames(items, "end"), kind="group", role="group", aria_label=item.told)
        elif item.kind == "split":
            yield el("div", el("span", kind="rail"), *_frames(items, "sum"), el("div", "+", kind="sum"), kind="branch")
        elif item.kind == "fork":
            lanes = [el("div", *_frames(items, "next")), el("div", *_frames(items, "sum"))]
            yield from (el("div", lanes, kind="lanes"), el("div", "+", kind="sum"))
            return
        elif item.told:
            title, told = card(item)
            title, _, told = (title, "", told) if ": " in item.told else told.partition(", ")
            yield el("div", el("b", title), el("small", told) if told else "", kind="card")


class Pair(Value):
    """A part of one model beside the other's. state: as an `Edit` has, or same; an empty text is no part."""

    state: str
    before: tuple[str, str]
    after: tuple[str, str]


class Section(Value):
    """What lies beside each other. titles: the layers, or the end of the model, on either side."""

    titles: tuple[str, str]
    pairs: tuple[Pair, ...]


def sides(before: c.Model, after: c.Model) -> list[Section]:
    """Two models beside each other, from tokens to logits; layers that are alike on both sides, once."""
    return [
        *(_stack(before.encoder, after.encoder, "encoder ") if before.encoder or after.encoder else []),
        *_stack(before, after, ""),
    ]


def _stack(before: c.Model | None, after: c.Model | None, whose: str) -> Iterator[Section]:
    models = (before, after)
    yield _section((f"{whose}input",) * 2, [drawing.entry(model) if model else () for model in models])
    kinds = [alike(model.depth) if model else [0] for model in models]
    length = max(map(len, kinds))
    for pair in dict.fromkeys(zip(*(stretched(one, length) for one in kinds), strict=True)):
        titles = [
            whose + layers_text([i for i, kind in enumerate(all_of) if kind == one], len(all_of)) if model else ""
            for one, all_of, model in zip(pair, kinds, models, strict=True)
        ]
        layers = [drawing.layer(model.depth[one]) if model else () for one, model in zip(pair, models, strict=True)]
        yield _section((titles[0], titles[1]), layers)
    yield _section((f"{whose}output",) * 2, [drawing.result(model) if model else () for model in models])


def _section(titles: tuple[str, str], items: Iterable[Iterable[Item]]) -> Section:
    one, other = ({item.place: item for item in found if item.place} for found in items)
    moved = dict(_moved(one, other))
    one = {moved.get(place, place): item for place, item in one.items()}
    places = list(other)
    for place, last in zip(one, [None, *one], strict=False):
        if place not in other:
            places.insert(places.index(last) + 1 if last else 0, place)
    pairs = (_pair(one.get(place), other.get(place), place in moved.values()) for place in places)
    return Section(titles, tuple(pairs))


def _moved(one: Mapping[str, Item], other: Mapping[str, Item]) -> Iterator[tuple[str, str]]:
    """A branch's norm that went to another of its slots: from, to."""
    gone, come = ([p for p in a if p not in b and ".norm" in p] for a, b in ((one, other), (other, one)))
    for place in gone:
        if new := [to for to in come if to.partition(".")[0] == place.partition(".")[0]]:
            come.remove(new[0])
            yield place, new[0]


def _pair(one: Item | None, other: Item | None, moved: bool) -> Pair:
    texts = [card(item) if item else ("", "") for item in (one, other)]
    edits: list[Edit] = []
    if one and other and one.part and other.part:
        edits = [e for e in between(lay_open(one.part), lay_open(other.part)) if not (e.names and e.names[0] in DRAWN)]
    states = {edit.state for edit in edits} - {"same"} | ({"changed"} if one and other and not edits else set())
    if not one or not other:
        state = "removed" if one else "added"
    elif moved or not edits:
        state = "moved" if moved else "same" if texts[0] == texts[1] else "changed"
    else:
        state = "same" if not states else "size" if states == {"size"} else "changed"
    if state == "changed" and texts[0] == texts[1]:  # what the words leave out
        told = [
            ", ".join(f"{' '.join(e.names[-2:])} {number(value)}" for e, value in pairs)
            for pairs in ([(e, e.before) for e in edits], [(e, e.after) for e in edits])
        ]
        texts = [(title, f"{text}; {what}") for (title, text), what in zip(texts, told, strict=True)]
    return Pair(state, texts[0], texts[1])


def pieces(text: str) -> list[str]:
    """A text in the pieces of which it is a list."""
    return re.split(r"([,;] )", text)


def marked(text: str, other: str) -> list[Markup]:
    """A text in which what the other has not is underlined."""
    known = {*pieces(other), ", ", "; "}
    return [escape(piece) if piece in known else el("u", piece) for piece in pieces(text)]


def sign(state: str) -> Markup:
    """A state's sign, with its name for those who hear it."""
    return el("span", MARKS[state], kind="sign", role="img", aria_label=state, title=state)


def beside(sections: Iterable[Section], names: Iterable[object]) -> Markup:
    """Sections as rows of two cards with the sign between them."""
    heads = [el("p", name, kind="names") for name in names]
    rows = [el("div", heads[0], el("span"), heads[1], kind="pair")]
    for section in (one for one in sections if one.pairs):
        before, after = (el("p", title, kind="dim") for title in section.titles)
        rows.append(el("div", before, el("span"), after, kind="pair"))
        rows += [_row(pair) for pair in section.pairs]
    return el("div", rows, kind="sides")


def _row(pair: Pair) -> Markup:
    cards = []
    for (title, text), other in ((pair.before, pair.after), (pair.after, pair.before)):
        if not title:
            cards.append(el("div", NONE, kind="card none"))
            continue
        told = marked(text, other[1]) if pair.state in ("changed", "moved", "size") else [text]
        cards.append(el("div", el("b", title), el("small", told) if text else "", kind="card"))
    return el("div", cards[0], sign(pair.state), cards[1], kind="pair", data_state=pair.state, tabindex="-1",
              role="group", aria_label=f"{pair.before[0] or pair.after[0]}: {pair.state}")  # fmt: skip


def data(sections: Iterable[Section]) -> list[dict[str, object]]:
    """Sections as JSON."""
    return [asdict(section) for section in sections]
