"""The configurator: a block with its decisions to be made anew; every combination is counted and drawn beforehand."""

import base64
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from lineage import catalog, count, graph
from lineage.components import LayerNorm, Model, RMSNorm
from lineage.decisions import BLOCK, STACK, Decision, Option, Sizes, taken
from lineage.render import cards
from lineage.render.model_page import copied, figures
from lineage.render.page import Markup, el, escape, page
from lineage.render.python import python
from lineage.render.tree_page import Address
from lineage.values import Value
from lineage.words import joined

DECISIONS = (STACK, *BLOCK)
FEW = 5  # ways to differ that are named
LEDE = (
    "Six decisions, each by itself: the first options together are the paper of 2017, the last ones what is released "
    "today."
)


class Bench(Value):
    """What the configurator starts from. root: the family of the first block; sizes: published names -> their sizes."""

    root: str
    sizes: Mapping[str, Sizes]

    def first(self, sizes: Sizes) -> Model:
        """The first block's model in these sizes."""
        like = sizes.like
        body: Any = like.blocks[0].attention.body
        norms = (node.component.eps for node in graph.walk(like) if isinstance(node.component, LayerNorm | RMSNorm))
        return catalog.spec(
            self.root, vocab=like.embed.vocab, width=like.embed.stream, layers=len(like.depth), heads=body.heads,
            mlp_width=sizes.inner(False), eps=next(norms),
        )  # fmt: skip

    def models(self) -> Iterator[Model]:
        """Every combination: sizes, then the decisions in their order, the last one changing first."""
        for sizes in self.sizes.values():
            yield from _turned(self.first(sizes), DECISIONS, sizes)


def _turned(model: Model, decisions: Sequence[Decision], sizes: Sizes) -> Iterator[Model]:
    if not decisions:
        yield model
        return
    for option in decisions[0].options:
        yield from _turned(option.turn(model, sizes), decisions[1:], sizes)


def relatives() -> list[dict[tuple[str, str], list[str]]]:
    """For every combination of the block's options, those published models whose block decided most of it alike.

    (family, what it decided otherwise) -> sizes.
    """
    known: dict[tuple[str, tuple[Option | None, ...]], list[str]] = defaultdict(list)
    for name, (family, _) in catalog.published().items():
        known[family.name, tuple(taken(catalog.spec(name)).values())].append(name)
    found = []
    for options in product(*(decision.options for decision in BLOCK)):
        far = {key: sum(a is not b for a, b in zip(key[1], options, strict=True)) for key in known}
        least = min(far.values())
        near = {key: names for key, names in known.items() if far[key] == least}
        found.append({(family, _otherwise(theirs, options)): names for (family, theirs), names in near.items()})
    return found


def _otherwise(theirs: Sequence[Option | None], options: Sequence[Option]) -> str:
    pairs = zip(BLOCK, theirs, options, strict=True)
    return joined(f"{d.name} {one.name if one else 'another way'}" for d, one, other in pairs if one is not other)


def told(bench: Bench, near: Sequence[Markup]) -> dict[str, Any]:
    """Every combination as the page needs it.

    order: the decisions as the rows count them, the last one fastest; presets: name -> row; packed: zlib in base64 of
    {pool: texts, rows: of each its figures, and the numbers of its texts: drawing, Python, remarks, JSON}.
    """
    pool, presets, rows = dict[str, int](), dict[str, int](), list[Any]()
    published = {sizes.like: name for name, sizes in bench.sizes.items()}
    for i, model in enumerate(bench.models()):
        exact = published.get(model)
        remark = el("p", "This is ", el("strong", exact), ", to the last number.") if exact else ""
        presets |= {exact: i} if exact else {}
        texts = ([cards.stack(model)], python(model), [remark, near[i % len(near)]], [json.dumps(graph.to_json(model))])
        numbers = [[pool.setdefault(text, len(pool)) for text in some] for some in texts]
        rows.append([[text for _, text, _ in _figures(model)], *numbers])
    order = [["sizes", len(bench.sizes)], *([decision.name, len(decision.options)] for decision in DECISIONS)]
    packed = zlib.compress(json.dumps({"pool": list(pool), "rows": rows}, separators=(",", ":")).encode(), 9)
    return {"schema": "lineage.configurator/1", "order": order, "presets": presets,
            "packed": base64.b64encode(packed).decode()}  # fmt: skip


def _figures(model: Model) -> list[tuple[str, str, str]]:
    costs, block = count.figures(model), model.blocks[-1]
    shapes = list(graph.tensors(block, model.embed.stream).values())
    return [
        ("parameters", f"{costs['parameters']:,}", ""),
        ("of one block", f"{sum(map(math.prod, shapes)):,}", ""),
        ("as a formula", count.formula(shapes, count.letters(replace(model, blocks=(block,)))), ""),
        ("cache of a token, fp16", f"{costs['cache']:,} bytes", ""),
        ("operations a token", f"{costs['flops']:,}", ""),
    ]


def configurator(
    bench: Bench, command: str, links: Mapping[str, str] | None = None, address: Address = lambda *_: None
) -> str:
    """command: what makes this page; links: as in `page`; address: of a family's page."""
    data = told(bench, [_near(found, address) for found in relatives()])
    first = next(bench.models())
    sizes = [
        (name, f"{len(one.like.depth)} layers, {one.like.embed.stream:,} wide.") for name, one in bench.sizes.items()
    ]
    form = [_field(one.name, one.name, [(o.name, f"{o.why} {o.source}") for o in one.options]) for one in BLOCK]
    form += [_field(STACK.name, "around the block", [(o.name, f"{o.why} {o.source}") for o in STACK.options])]
    form += [_field("sizes", "sizes of", sizes)]
    result = [
        el("div", id="near", aria_live="polite"),
        el("div", cards.stack(first), id="drawing"),
    ]
    presets = [el("button", name, type="button", data_row=row) for name, row in data["presets"].items()]
    many = math.prod(n for _, n in data["order"])
    body = [
        el("h1", "From the first block to today's"),
        el("p", f"{LEDE} All {many:,} combinations were built and counted.", kind="lede"),
        el("div", "Set all to", presets, kind="controls"),
        el("div", figures(_figures(first)), id="figures"),
        el(
            "div",
            el("form", form, aria_label="Decisions"),
            el("section", result, kind="result", aria_label="The model"),
            kind="bench",
        ),
        *(el("h2", "The spec"), copied("python", "As Python", "\n".join(python(first)), shown=True)),
        copied("json", "As JSON", json.dumps(graph.to_json(first), indent=1)),
    ]
    return page("From the first block to today's", escape(body), data, command, links, ("page.js", "configurator.js"))


def _field(name: str, title: str, options: Sequence[tuple[str, str]]) -> Markup:
    labels = [
        el("label", el("input", type="radio", name=name, value=i, checked=not i, data_why=why), option)
        for i, (option, why) in enumerate(options)
    ]
    return el("fieldset", el("legend", title), el("div", labels, kind="options"), el("p", options[0][1], kind="why"))


def _near(found: Mapping[tuple[str, str], list[str]], address: Address) -> Markup:
    """Those published models that come nearest, families with the same difference together."""
    alike: dict[str, list[Markup]] = defaultdict(list)
    for (family, otherwise), names in found.items():
        at, sizes = address(family, None), joined(name for name in names if name != family)
        name = el("a", family, href=at) if at else el("span", family)
        alike[otherwise].append(el("span", name, f" ({sizes})" if sizes else ""))
    rows = [
        el("li", [[", "] * (i > 0) + [one] for i, one in enumerate(names)], f": but {otherwise}" if otherwise else "")
        for otherwise, names in sorted(alike.items(), key=lambda one: -len(one[1]))[:FEW]
    ]
    title = "Public models whose block decides the same" if "" in alike else "The nearest public models"
    return escape([el("h2", title), el("ul", rows)])
