"""Differences between architectures, the family tree, and ways from design to design: as text, Markdown, Mermaid."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from lineage import graph
from lineage.design import Diff, Row
from lineage.lines import Branch, Step, distance
from lineage.render.drawing import label
from lineage.words import joined

SIGNS = {"changed": "≠", "moved": "↷", "added": "+", "removed": "−", "same": "="}
UNITS = {"parameters": "parameters", "active": "of these for a token", "cache": "cache a token, fp16, bytes",
         "flops": "operations a token"}  # fmt: skip


def columns(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """One row of a table as lines; a cell that is too long goes on below itself."""
    wrapped = [wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(cells, widths, strict=True)]
    rows = ([part[i] if i < len(part) else "" for part in wrapped] for i in range(max(map(len, wrapped))))
    return [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(diff: Diff, only: str = "all") -> list[str]:
    """A diff as text of 80 columns: the design, then sizes and what it leads to. only: design, sizes, or all."""
    lines, whole, grid = [_heading(diff)], only == "all", (1, 17, 29, 30)
    if only != "sizes" and diff.design:
        lines += [
            "",
            *(line for row in [("", "", *diff.names), *map(_cells, diff.design)] for line in columns(row, grid)),
        ]
    sizes = joined(f"{name} {before:,} → {after:,}" for name, (before, after) in diff.sizes.items())
    told = {"= the same": joined(row.aspect for row in diff.same) * whole, "sizes": sizes * (only != "design")}
    for name, text in told.items():
        lines += ["", *columns((name, text), (12, 67))] if text else []
    costs = figures(diff) if whole else {}
    return [
        *lines,
        *[""] * whole,
        *(f"{name:<27} {before:>20,} → {after:,}" for name, (before, after) in costs.items()),
    ]


def _cells(row: Row) -> tuple[str, str, str, str]:
    return SIGNS[row.state], row.aspect, row.before, row.after


def figures(diff: Diff) -> dict[str, tuple[int, int]]:
    """What there is to say of costs: not a cache that is none, nor that a token uses everything."""
    dense = diff.figures["active"] == diff.figures["parameters"]
    return {UNITS[name]: pair for name, pair in diff.figures.items() if any(pair) and not (dense and name == "active")}


def _heading(diff: Diff) -> str:
    return f"{diff.names[0]} → {diff.names[1]}      {tally(diff)}"


def tally(diff: Diff) -> str:
    """How much there is of what."""
    counts = ((len(diff.design), "design change"), (len(diff.sizes), "size"))
    few = joined(f"{n} {what}{'s' * (n != 1)}" for n, what in counts)
    return f"{few}, {len(diff.same)} the same"


def markdown(diff: Diff, only: str = "all") -> list[str]:
    """A diff as Markdown: one table of the design, one of sizes and figures."""
    rows = [
        (SIGNS[r.state], r.aspect, r.before, r.after) for r in (*diff.design, *(diff.same if only == "all" else ()))
    ]
    costs = figures(diff) if only == "all" else {}
    numbers = [(name, f"{before:,}", f"{after:,}") for name, (before, after) in (diff.sizes | costs).items()]
    tables: list[list[tuple[str, ...]]] = []
    tables += [[("", "design", *diff.names), ("---",) * 4, *rows]] if rows and only != "sizes" else []
    tables += [[("sizes", *diff.names), ("---", "--:", "--:"), *numbers]] if numbers and only != "design" else []
    lines = [_cell(_heading(diff))]
    return lines + [line for rows in tables for line in ["", *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]]


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def mermaid(diff: Diff, only: str = "all") -> list[str]:
    """A diff's design as a Mermaid chart: what was, what is, and the aspect between them."""
    lines = ["flowchart LR"]
    for side, name, texts in (("a", diff.names[0], "before"), ("b", diff.names[1], "after")):
        told = (f"{side}{i}[{label(getattr(row, texts))}]" for i, row in enumerate(diff.design))
        lines += [f"subgraph {side}[{label(name)}]", *told, "end"]
    return lines + [f"a{i} -->|{label(f'{SIGNS[row.state]} {row.aspect}')}| b{i}" for i, row in enumerate(diff.design)]


def tree_text(roots: Iterable[Branch]) -> list[str]:
    """The family tree as text."""
    return [line for root in roots for line in _branch(root, "", "")]


def _branch(branch: Branch, first: str, more: str) -> list[str]:
    below = [child for child in branch.children if child.year or child.changes]
    alike = joined(child.name for child in branch.children if child not in below and child.name != branch.name)
    told = "; ".join(branch.changes) or ("" if first else branch.about)
    line = f"{joined_name(branch)}  {told}" + (f"  [= {alike}]" if alike else "")
    rest = more + ("│  " if below else "   ") + "   "
    lines = wrap(line, 80, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    for child in below:
        end = child is below[-1]
        lines += _branch(child, more + ("└─ " if end else "├─ "), more + ("   " if end else "│  "))
    return lines


def joined_name(branch: Branch) -> str:
    return f"{branch.name} {branch.year}" if branch.year else branch.name


def tree_mermaid(roots: Iterable[Branch]) -> list[str]:
    """The family tree as a Mermaid chart; public model types, which have no year, have round corners."""
    lines, waiting = ["flowchart LR"], [(f"r{i}", root) for i, root in enumerate(roots)]
    while waiting:
        node, branch = waiting.pop(0)
        told = label(joined_name(branch))
        lines.append(f"{node}[{told}]" if branch.year else f"{node}({told})")
        below = [(f"{node}_{i}", child) for i, child in enumerate(branch.children)]
        changes = (f"|{label('; '.join(child.changes))}|" if child.changes else "" for _, child in below)
        lines += [f"{node} -->{text} {name}" for (name, _), text in zip(below, changes, strict=True)]
        waiting += below
    return lines


def near(name: str, family: str, found: Iterable[Diff]) -> list[str]:
    """A model's place on the tree: its family, and its nearest relatives."""
    lines = [f"{name}   of the family {family}", "", "nearest in design, then in size"]
    for diff in found:
        counted = zip(distance(diff.script), ("in design", "in numbers"), strict=False)
        far = joined(f"{n} {what}" for n, what in counted if n)
        sizes = f"sizes: {', '.join(diff.sizes)}" if diff.sizes else "identical"
        lines += columns((diff.names[0], far, "; ".join(row.label for row in diff.design) or sizes), (20, 14, 44))
    return lines


def way(steps: Sequence[Step], names: tuple[str, str]) -> list[str]:
    """The steps from one architecture to another, each with the parameters it leads to."""
    rows = (
        (str(i or ""), f"{graph.parameters(s.model):,}".rjust(18), s.change or names[0]) for i, s in enumerate(steps)
    )
    lines = [line for row in rows for line in columns(row, (2, 18, 57))]
    return [f"{names[0]} → {names[1]}      {len(steps) - 1} steps", "", *lines]
