"""A diff as a page: the design in words, the two blocks side by side, what it costs, and who proposed it."""

from collections.abc import Mapping
from typing import Any

from lineage import count
from lineage.decisions import BLOCK, taken
from lineage.design import Diff, Row
from lineage.render import cards
from lineage.render.comparison import figures, tally
from lineage.render.page import Markup, bar, el, escape, numbers, page, terms
from lineage.render.text import bytes_text

LEGEND = {"changed": "another design", "moved": "the same part elsewhere", "added": "new", "removed": "gone",
          "size": "only its size", "same": "the same"}  # fmt: skip
LENGTHS = (4096, 32768, 131072)  # tokens of a text


def diff_page(diff: Diff, command: str, links: Mapping[str, str] | None = None) -> str:
    """command: what makes this page; links: as in `page`."""
    sections = cards.sides(diff.before, diff.after)
    told = {"sections": cards.data(sections), "shares": _shares(diff), "cache": _cache(diff), "why": why(diff)}
    names = [el("bdi", name) for name in diff.names]
    body = [
        el("h1", names[0], " → ", names[1]),
        el("p", tally(diff), kind="lede"),
        _controls() if diff.script else el("p", "The two are one and the same."),
        *(el("h2", "What changed"), _rows(diff, names)),
        *(el("h2", "Side by side"), _legend(), cards.beside(sections, names)),
        *([el("h2", "Sizes"), _ratios(names, diff.sizes)] if diff.sizes else []),
        *(el("h2", "What it costs"), _ratios(names, figures(diff))),
        *(el("h3", "Where the parameters are"), _bars(names, told["shares"])),
        *([el("h3", "The cache of one text, in fp16"), _bytes(names, told["cache"])] if told["cache"] else []),
        *([el("h2", "Who proposed it"), terms(map(_proposed, told["why"]))] if told["why"] else []),
    ]
    title = f"{diff.names[0]} → {diff.names[1]}"
    return page(title, escape(body), diff.to_dict() | told, command, links, ("page.js",))


def _controls() -> Markup:
    box = el("label", el("input", type="checkbox", id="only"), "Only differences")
    keys = el("span", "or the keys ", el("kbd", "n"), " and ", el("kbd", "p"), kind="dim")
    told = (("Next difference", 1), ("Previous", -1))
    return el(
        "div", box, [el("button", name, type="button", data_go=step) for name, step in told], keys, kind="controls"
    )


def _legend() -> Markup:
    signs = [el("li", f"{cards.MARKS[state]} {told}") for state, told in LEGEND.items()]
    return el("ul", *signs, el("li", el("u", "underlined"), " what the other has not"), kind="legend")


def _rows(diff: Diff, names: list[Markup]) -> Markup:
    top = el("tr", [el("th", told, scope="col") for told in (el("span", "sign", kind="heard"), "aspect", *names)])
    return el("table", el("thead", top), el("tbody", [_row(row) for row in (*diff.design, *diff.same)]), kind="design")


def _row(row: Row) -> Markup:
    pairs = ((row.before, row.after), (row.after, row.before))
    cells = [el("td", cards.marked(*pair) if row.state != "same" else pair[0]) for pair in pairs]
    return el("tr", el("td", cards.sign(row.state)), el("th", row.aspect, scope="row"), cells, data_state=row.state,
              tabindex="-1")  # fmt: skip


def _ratios(names: list[Markup], pairs: Mapping[str, tuple[int, int]]) -> Markup:
    rows = [
        (name, f"{one:,}", f"{two:,}", f"× {two / one:,.3g}" if one and two else "gone" if one else "new")
        for name, (one, two) in pairs.items()
    ]
    return numbers(("", *names, "ratio"), rows)


def _shares(diff: Diff) -> list[dict[str, Any]]:
    """The parameters of each component on both sides, with their formulas."""
    sides = [{one.name: one for one in count.shares(model)[0]} for model in (diff.before, diff.after)]
    none = count.Share("", 0, 0, "")
    pairs = [(name, [side.get(name, none) for side in sides]) for name in dict.fromkeys([*sides[0], *sides[1]])]
    return [
        {"name": name, "parameters": [one.parameters for one in pair], "formulas": [one.formula for one in pair]}
        for name, pair in pairs
    ]


def _bars(names: list[Markup], shares: list[dict[str, Any]]) -> Markup:
    totals = [sum(share["parameters"][i] for share in shares) for i in (0, 1)]
    rows = [
        (share["name"], *(f"{n:,}" for n in share["parameters"]),
         bar(*(n / total for n, total in zip(share["parameters"], totals, strict=True))))
        for share in shares
    ]  # fmt: skip
    return numbers(("", *names, el("span", "share of ", names[0], " above, of ", names[1], " below")), rows, "bars")


def _cache(diff: Diff) -> list[dict[str, Any]]:
    """Bytes of keys and values for texts of some lengths; ungrouped: if each query had a key of its own."""
    models = (diff.before, diff.after)
    found: list[dict[str, Any]] = [
        {"tokens": seq, "bytes": [count.kept(model, seq) for model in models],
         "ungrouped": [count.kept(model, seq, whole=True) for model in models]}
        for seq in LENGTHS
    ]  # fmt: skip
    return found if any(found[0]["bytes"]) else []


def _bytes(names: list[Markup], cache: list[dict[str, Any]]) -> Markup:
    shared = [i for i in (0, 1) if cache[0]["bytes"][i] != cache[0]["ungrouped"][i]]
    heads = [el("span", names[i], " with a key for each query") for i in shared]
    rows = [
        (f"{one['tokens']:,} tokens", *map(bytes_text, [*one["bytes"], *(one["ungrouped"][i] for i in shared)]))
        for one in cache
    ]
    return numbers(("", *names, *heads), rows)


def why(diff: Diff) -> list[dict[str, str]]:
    """Of what the second decided otherwise than the first: who proposed it, and what for."""
    before, after = taken(diff.before), taken(diff.after)
    options = [(name, after[name]) for name in (d.name for d in BLOCK) if after[name] != before[name]]
    return [{"aspect": name, "option": one.name, "source": one.source, "why": one.why} for name, one in options if one]


def _proposed(one: Mapping[str, str]) -> tuple[str, list[object]]:
    return f"{one['aspect']}: {one['option']}", [f"{one['why']} ", el("cite", one["source"])]
