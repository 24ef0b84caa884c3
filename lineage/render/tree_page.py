"""The family tree as a page: a lane for each family, further right the younger it is, and what changed on each edge."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from lineage.lines import Branch
from lineage.render.page import Markup, el, escape, page
from lineage.values import Value

Address = Callable[[str, str | None], str | None]
"""Of a family's page, or with its parent of the page of what lies between; None where there is none."""
LEGEND = (
    "Every line says what changed from the family that it hangs on. Nothing of it is written by hand: it is the "
    "difference between the two specs."
)


class Lane(Value):
    """A family's place: its row, its steps from the left, and those of its parent."""

    branch: Branch
    parent: "Lane | None"
    row: int
    step: int


def lanes(roots: list[Branch]) -> list[Lane]:
    """Families from top to bottom, each behind its parent; a child of the same year stands one step to the right."""
    found: list[Lane] = []
    first = min((root.year or 0 for root in roots), default=0)
    deepest = max((_deep(root) for root in roots), default=0) + 1

    def place(branch: Branch, parent: Lane | None) -> None:
        step = ((branch.year or first) - first) * deepest
        step = max(step, parent.step + 1) if parent else step
        lane = Lane(branch, parent, len(found) + 2, step)
        found.append(lane)
        for child in branch.children:
            if child.year:
                place(child, lane)

    for root in roots:
        place(root, None)
    return found


def _deep(branch: Branch) -> int:
    """How many generations of one year there are below a branch."""
    below = [_deep(child) + (child.year == branch.year) for child in branch.children if child.year]
    return max(below, default=0)


def tree_page(
    roots: list[Branch], command: str, links: Mapping[str, str] | None = None, address: Address = lambda *_: None
) -> str:
    """command: what makes this page; links: as in `page`; address: of other pages."""
    placed = lanes(roots)
    steps = max(lane.step for lane in placed) + 1
    title = "The family tree" if len(placed) > 1 else f"The family tree: {placed[0].branch.name}"
    years = [lane.branch.year for lane in placed if lane.branch.year]
    first = {year: min(lane.step for lane in placed if lane.branch.year == year) for year in sorted(set(years))}
    items = [
        el("li", f"’{year % 100}", kind="year", style=f"--at: {at + 1}", aria_hidden="true")
        for year, at in first.items()
    ]
    items += [one for lane in placed for one in _items(lane, address)]
    kinds = sum(not child.year for lane in placed for child in lane.branch.children)
    span = f"{len(placed)} families from {min(years)} to {max(years)}, {kinds} public model types." if years else ""
    body = [
        el("h1", title),
        el("p", f"{span} {LEGEND}", kind="lede"),
        el("ol", items, kind="tree", style=f"--steps: {steps}"),
    ]
    data = {"schema": "lineage.tree/1", "roots": [asdict(root) for root in roots]}
    return page(title, escape(body), data, command, links)


def _items(lane: Lane, address: Address) -> Iterator[Markup]:
    branch, parent = lane.branch, lane.parent
    if parent:
        style = f"--from: {parent.step + 1}; --at: {lane.step + 1}; --top: {parent.row}; --row: {lane.row}"
        yield el("li", kind="edge", style=style, aria_hidden="true")
    name, changes = el("bdi", branch.name), "; ".join(branch.changes) or branch.about
    at, between = address(branch.name, None), address(branch.name, parent.branch.name) if parent else None
    told = [
        el("h2", el("a", name, href=at) if at else name),
        el("time", branch.year) if branch.year else "",
        el("span", changes, kind="changes"),
        el("a", f"compare with {parent.branch.name}", href=between, kind="between") if parent and between else "",
        _public(branch),
    ]
    yield el("li", told, style=f"--at: {lane.step + 1}; --row: {lane.row}", data_family=branch.name)


def _public(branch: Branch) -> Markup:
    """The public model types that a family's converters read: those that are it, and those that are almost."""
    types = [child for child in branch.children if not child.year]
    alike = ", ".join(child.name for child in types if not child.changes)
    told = [f"as they are: {alike}"] if alike else []
    told += [f"{child.name}: {'; '.join(child.changes)}" for child in types if child.changes]
    return el("p", "public types ", " · ".join(told), kind="public") if told else Markup("")
