"""A model as a page: facts, its block drawn, what it counts and costs, its tensors, and the spec to copy."""

import json
import re
from collections.abc import Mapping
from typing import Any

from lineage import count, graph
from lineage.components import Model
from lineage.decisions import BLOCK, taken
from lineage.describe import Described
from lineage.render import cards, counting
from lineage.render.diff_page import LENGTHS
from lineage.render.page import Markup, bar, el, escape, numbers, page, terms
from lineage.render.python import python
from lineage.render.text import bytes_text, summary
from lineage.words import layers_text

CARD = 80e9  # bytes
OTHER = "another way"
Kin = list[tuple[str, str, list[str]]]
"""Of each relative its name, the address of what lies between, and that in words."""


def model_page(found: Described, command: str, links: Mapping[str, str] | None = None, kin: Kin | None = None) -> str:
    """command: what makes this page; links: as in `page`."""
    model, told = found.model, summary(found)
    about = told.pop("about")
    del told["parameters"]  # they stand above, and large
    report = counting.report(found.name, model, "component", LENGTHS[0], 1, "fp16", None)
    rows, kept = _tensors(model), [(seq, count.kept(model, seq), count.kept(model, seq, whole=True)) for seq in LENGTHS]
    chosen = {name: option.name if option else None for name, option in taken(model).items()}
    body = [
        el("h1", el("bdi", found.name)),
        el("p", about, kind="lede") if about else "",
        _figures(report),
        terms((name, text) for name, text in told.items() if text),
        *(el("h2", "What a token passes"), cards.stack(model)),
        *(el("h2", "Where the parameters are"), _shares(report)),
        *([el("h2", "The cache of one text, in fp16"), _cache(kept)] if kept[0][1] else []),
        *(el("h2", "Decisions"), _decisions(chosen)),
        *([el("h2", "Relatives"), _kin(kin)] if kin else []),
        *(el("h2", "Tensors"), _table(rows)),
        *(el("h2", "The spec"), copied("python", "As Python", "\n".join(python(model)))),
        copied("json", "As JSON", json.dumps(graph.to_json(model), indent=1)),
    ]
    more = {"decisions": chosen, "params": report, "kept": kept, "rows": rows}
    return page(found.name, escape(body), found.to_dict() | more, command, links, ("page.js",))


def _figures(report: Mapping[str, Any]) -> Markup:
    total, active, weights = report["parameters"], report["active"], report["weights"]["fp16"]
    told = [("parameters", f"{total:,}", "")]
    told += (
        [("used by one token", f"{active:,}", f"{active / total:.1%}; all of them must be loaded")]
        if active != total
        else []
    )
    cards = -(-weights // CARD)
    told += [("weights in fp16", bytes_text(weights), f"{cards:.0f} cards of 80 GB hold them" if cards > 1 else "")]
    told += [("cache of a token, fp16", f"{report['cache']:,} bytes", "")] if report["cache"] else []
    told += [("operations a token", f"{report['flops']:,}", "")]
    return figures(told)


def figures(told: list[tuple[str, str, str]]) -> Markup:
    """Numbers set large. Of each its name, itself, and a remark."""
    return terms(((name, [n, el("small", more) if more else ""]) for name, n, more in told), "figures")


def _shares(report: Mapping[str, Any]) -> Markup:
    total = report["parameters"]
    rows = [
        (part["name"], f"{part['parameters']:,}", f"{part['parameters'] / total:.1%}", el("code", part["formula"]),
         bar(part["parameters"] / total))
        for part in report["parts"]
    ]  # fmt: skip
    letters = ", ".join(f"{name} = {size:,}" for name, size in report["symbols"].items())
    return escape(
        [
            numbers(("", "parameters", "share", Markup("formula"), Markup("")), rows, "bars"),
            el("p", letters, kind="dim"),
        ]
    )


def _cache(kept: list[tuple[int, int, int]]) -> Markup:
    shared = kept[0][1] != kept[0][2]
    rows = [(f"{seq:,} tokens", f"{n:,} bytes", bytes_text(n), *[bytes_text(whole)] * shared) for seq, n, whole in kept]
    return numbers(("", "exactly", "about", *["with a key for each query"] * shared), rows)


def _decisions(chosen: Mapping[str, str | None]) -> Markup:
    """Each decision with all its options; the one that was taken is marked by a sign and its weight."""
    rows = []
    for one in BLOCK:
        names = [*(option.name for option in one.options), "", ""][:3] + ["" if chosen[one.name] else OTHER]
        taken = chosen[one.name] or OTHER
        marked = [el("strong", f"✓ {name}") if name == taken else el("span", name, kind="dim") for name in names]
        rows.append((one.name, *marked))
    return numbers(("", "2017", "", "", ""), rows)


def _kin(kin: Kin) -> Markup:
    rows = (
        el("li", el("a", name, href=address), ": ", "; ".join(changes) or "sizes alone")
        for name, address, changes in kin
    )
    return el("ul", *rows)


def _tensors(model: Model) -> list[dict[str, Any]]:
    """Every tensor, those of layers with the same shapes in one row; {i} stands for the layers."""
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, shape in graph.tensors(model).items():
        layer = re.search(r"\bblocks\.(\d+)", name)
        key = re.sub(r"\bblocks\.\d+", "blocks.{i}", name, count=1)
        found.setdefault((key, shape), []).append(int(layer[1]) if layer else -1)
    return [
        {"name": name, "shape": list(shape), "layers": [] if layers == [-1] else layers}
        for (name, shape), layers in found.items()
    ]


def _table(rows: list[dict[str, Any]]) -> Markup:
    depth = max((row["layers"][-1] + 1 for row in rows if row["layers"]), default=0)
    told = [
        (el("code", row["name"]), " × ".join(f"{n:,}" for n in row["shape"]),
         layers_text(row["layers"], depth) if row["layers"] else "")
        for row in rows
    ]  # fmt: skip
    return numbers(("tensor", "shape", ""), told)


def copied(key: str, title: str, text: str, shown: bool = False) -> Markup:
    """A text to be copied, folded away; key: its place on the page."""
    button = el("button", "Copy", type="button", data_copy=key, aria_label=f"Copy: {title}", kind="copy")
    return el("details", el("summary", title), button, el("pre", text, id=key, tabindex="0"), open=shown)
