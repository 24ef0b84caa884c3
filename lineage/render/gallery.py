"""All pages, linked, in one directory: whole or not at all."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lineage import catalog, lines
from lineage.components import Model
from lineage.decisions import BLOCK, Sizes, taken
from lineage.describe import Described, named
from lineage.design import Diff, compare
from lineage.lines import Branch
from lineage.render import counting
from lineage.render.comparison import tally
from lineage.render.configurator import Bench, configurator
from lineage.render.diff_page import diff_page
from lineage.render.model_page import CARD, OTHER, Kin, model_page
from lineage.render.page import Markup, el, escape, numbers, page, terms
from lineage.render.text import bytes_text
from lineage.render.tree_page import tree_page
from lineage.values import Value

RECORD = "gallery.json"
COMMAND = "lineage gallery -o DIR"
PAGES = {"Overview": "index.html", "Configurator": "configurator.html", "Family tree": "tree.html"}
SEQ = 32768  # tokens of the text whose cache the corrections are about


def gallery(output: Path, force: bool = False) -> list[str]:
    """Write every page into a new directory; returns their names in it.

    force: replace a gallery, once the new one is complete. Raises UsageError for an output that is anything else,
    ResourceError if the disk fills; then nothing is left behind.
    """
    from lineage.checkpoint import target

    def check() -> None:
        target.check_output(output, Path(__file__).parent, force, foreign)

    check()
    with target.staged(output, check) as place:
        names = []
        for name, text in Gallery().pages():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(text.encode("utf-8", "backslashreplace"))
            names.append(name)
        record = {"schema": "lineage.gallery/1", "files": [*names, RECORD]}
        (place / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return names


def foreign(output: Path) -> list[str]:
    """The files in a directory that are of no gallery."""
    from lineage.checkpoint.files import read_json
    from lineage.errors import LineageError

    try:
        ours = set(read_json(output / RECORD)["files"])
    except (LineageError, LookupError, TypeError):
        ours = set()
    every = (path for path in output.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted({path.relative_to(output).as_posix() for path in every} - ours)


class Gallery(Value):
    """What is shown."""

    @cached_property
    def content(self) -> dict[str, Any]:
        """What a person chose: sizes of the configurator, classic pairs, corrections of what is often told wrong."""
        return json.loads((files("lineage.specs") / "gallery.json").read_text(encoding="utf-8"))

    @cached_property
    def models(self) -> dict[str, Model]:
        families = sorted(catalog.families().values(), key=lambda one: (one.year, one.name))
        return {family.name: catalog.spec(family.name) for family in families}

    @cached_property
    def branches(self) -> dict[str, Branch]:
        """Every family on the tree."""
        found, waiting = dict[str, Branch](), lines.tree()
        while waiting:
            branch = waiting.pop()
            found[branch.name] = branch
            waiting += [child for child in branch.children if child.year]
        return found

    @cached_property
    def pairs(self) -> list[tuple[Diff, str]]:
        """The classic comparisons, and what is to be seen in each."""
        found = [(named(one), named(other), told) for one, other, told in self.content["pairs"]]
        return [
            (compare(one.model, other.model, (one.name, other.name)), told)
            for one, other, told in found
            if one and other
        ]

    def pages(self) -> Iterator[tuple[str, str]]:
        """Every page: its name, its text."""
        yield "index.html", self._index()
        yield "tree.html", tree_page(lines.tree(), COMMAND, PAGES, _address)
        root = min((one for one in catalog.families().values() if not one.parent), key=lambda one: one.year)
        sizes = {one["model"]: Sizes(catalog.spec(one["model"]), one["context"]) for one in self.content["sizes"]}
        yield "configurator.html", configurator(Bench(root.name, sizes), COMMAND, PAGES, _address)
        below = {name: f"../{at}" for name, at in PAGES.items()}
        for name, model in self.models.items():
            found = Described(name, name, model, "spec")
            yield _model(name), model_page(found, COMMAND, below, self._kin(name))
            parent = catalog.families()[name].parent
            if parent in self.models:
                diff = compare(self.models[parent], model, (parent, name))
                yield _between(parent, name), diff_page(diff, COMMAND, below)
        for diff, _ in self.pairs:
            if diff.names[1] not in self.models or catalog.families()[diff.names[1]].parent != diff.names[0]:
                command = f"lineage diff {diff.names[0]} {diff.names[1]} --html FILE"
                yield _between(*diff.names), diff_page(diff, command, below)

    def _kin(self, name: str) -> Kin:
        branch, parent = self.branches[name], catalog.families()[name].parent
        edges = [(f"from {parent}", parent, name, branch.changes)] if parent in self.models else []
        edges += [(f"to {one.name}", name, one.name, one.changes) for one in branch.children if one.year]
        return [(told, f"../{quote(_between(one, other))}", list(changes)) for told, one, other, changes in edges]

    def _index(self) -> str:
        told = [self._correction(one) for one in self.content["corrections"]]
        decided = {
            name: {d: o.name if o else OTHER for d, o in taken(model).items()} for name, model in self.models.items()
        }
        body = [
            el("h1", "What changed since 2017"),
            el("p", LEDE, kind="lede"),
            el("div", [_door(*door) for door in DOORS], kind="doors"),
            *(el("h2", "Classic comparisons"), terms(_pair(*pair) for pair in self.pairs)),
            *(el("h2", "Often told wrong"), terms(((f"“{said}”", right) for said, right in told), "wrong")),
            *(el("h2", f"Who decided what: {len(decided)} families"), el("p", BOLD, kind="dim"), _matrix(decided)),
        ]
        data = {"schema": "lineage.gallery/1", "decisions": decided, "corrections": told}
        return page("What changed since 2017", escape(body), data, COMMAND, PAGES)

    def _correction(self, one: Mapping[str, Any]) -> tuple[str, str]:
        """What is said, and what is right, with the figures of the model that it is about."""
        model = catalog.spec(one["model"], **one["arguments"])
        report = counting.report(one["model"], model, "component", SEQ, 1, "fp16", None)
        weights, body = report["weights"]["fp16"], model.blocks[0].attention.body
        rotary = getattr(body, "rotary", None)
        known = {**report, **report["kept"], "fp16": bytes_text(weights), "cards": f"{-(-weights // CARD):.0f}"}
        return one["said"], one["right"].format(**known, rotary=rotary.width if rotary else 0)


LEDE = (
    "Every model here is one value, from which its modules run and its checkpoints are converted. These pages are made "
    "from it too: no number on them was typed."
)
BOLD = "In bold: not as in 2017. A family stands here by the model of its name; other sizes may have decided otherwise."
DOORS = (
    ("configurator.html", "Configurator", "Turn the block of 2017 into today's, one decision at a time."),
    ("tree.html", "Family tree", "Which family came from which, and what changed on the way."),
)


def _door(address: str, name: str, told: str) -> Markup:
    return el("a", el("b", name), el("span", told), href=address, kind="card")


def _pair(diff: Diff, told: str) -> tuple[Markup, list[object]]:
    name = el("a", f"{diff.names[0]} → {diff.names[1]}", href=quote(_between(*diff.names)))
    return name, [f"{told} ", el("span", f"{tally(diff)}.", kind="dim")]


def _matrix(decided: Mapping[str, Mapping[str, str]]) -> Markup:
    """Families by their decisions; one that is not of 2017 any more is set in bold."""
    first = {decision.name: decision.options[0].name for decision in BLOCK}
    rows = [
        (el("a", name, href=quote(_model(name))), el("span", catalog.families()[name].year),
         *(el("strong" if told != first[what] else "span", told) for what, told in options.items()))
        for name, options in decided.items()
    ]  # fmt: skip
    whole = numbers(("family", "year", *first), rows)
    return el("div", whole, kind="wide", role="region", aria_label="Decisions of all families", tabindex="0")


def _model(name: str) -> str:
    return f"models/{name}.html"


def _between(one: str, other: str) -> str:
    return f"diffs/{one}--{other}.html"


def _address(name: str, parent: str | None = None) -> str:
    return quote(_between(parent, name) if parent else _model(name))
