"""Self-contained HTML pages: one file, no request, no library, light and dark, printable."""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from lineage import __version__
from lineage.errors import UsageError
from lineage.render.text import plain

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
HERE = Path(__file__).parent
SINGLE = ("input", "meta", "br")  # elements without an end


class Markup(str):
    """Text that is markup already."""


def escape(value: object) -> Markup:
    """Text that cannot become markup, nor control anything; markup as it is, lists of both one after the other."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, list | tuple):
        return Markup("".join(map(escape, value)))
    text = str(value)
    return Markup(html.escape(text if text.isprintable() else plain(text), quote=True))


def el(tag: str, *within: object, **attributes: object) -> Markup:
    """An element. within: as for `escape`. attributes: `kind` is its class; None and False are left out."""
    named = {"class" if name == "kind" else name.replace("_", "-"): value for name, value in attributes.items()}
    told = "".join(
        f" {name}" if value is True else f' {name}="{escape(str(value))}"'
        for name, value in named.items()
        if value is not None and value is not False
    )
    return Markup(f"<{tag}{told}>" + ("" if tag in SINGLE else f"{escape(within)}</{tag}>"))


def page(
    title: str, body: Markup, data: Mapping[str, Any], command: str = "", links: Mapping[str, str] | None = None,
    scripts: Sequence[str] = (),
) -> str:  # fmt: skip
    """A whole page.

    data: embedded as JSON for whoever reads the page with a program. command: what makes this page. links: of a
    gallery, name -> address. scripts: files beside this one; they are embedded, and the policy lets nothing else run.
    """
    embedded = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
    codes = [_file(name) for name in scripts]
    digests = (base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in codes)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    top = [el("a", "Skip to the content", href="#main", kind="skip")] if links else []
    top += [el("nav", [el("a", name, href=at) for name, at in links.items()], aria_label="Pages")] if links else []
    return Template(_file("page.html")).substitute(
        title=escape(title), policy=f"{POLICY}; script-src {allowed}", style=_file("page.css"), top=escape(top),
        body=body, foot=el("footer", f"lineage {__version__}: ", el("code", command)) if command else "",
        data=embedded, scripts="".join(f"<script>{code}</script>" for code in codes),
    )  # fmt: skip


def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]], name: str | None = None) -> Markup:
    """A table. Each cell is (text, class). name: what it is called, for those who hear it."""
    top = el("tr", [el("th", told, scope="col") for told in head])
    lines = [el("tr", [el("td", told, kind=kind or None) for told, kind in row]) for row in rows]
    return el("table", el("thead", top), el("tbody", lines), aria_label=name)


def numbers(head: Sequence[object], rows: Sequence[Sequence[object]], kind: str = "") -> Markup:
    """A table of numbers. The first cell of each row names it; a column of markup stays on the left.

    On a narrow page the cells stand below each other, and each says of which column it is.
    """
    sides = [None if i == 0 or isinstance(one, Markup) else "number" for i, one in enumerate(rows[0])]
    labels = [html.unescape(re.sub("<[^>]*>", "", escape(one))) or None for one in head]
    top = [el("th", one, scope="col", kind=side) if one else el("td") for one, side in zip(head, sides, strict=True)]
    columns = list(zip(sides, labels, strict=True))[1:]
    lines = []
    for first, *rest in rows:
        cells = [el("td", one, kind=side, data_label=label) for one, (side, label) in zip(rest, columns, strict=True)]
        lines.append(el("tr", el("th", first, scope="row"), cells))
    return el("table", el("thead", el("tr", top)), el("tbody", lines), kind=f"numbers {kind}".strip())


def terms(pairs: Iterable[tuple[object, object]], kind: str = "facts") -> Markup:
    """Terms, and what is said of each."""
    return el("dl", [el("div", el("dt", term), el("dd", told)) for term, told in pairs], kind=kind)


def bar(*shares: float) -> Markup:
    """Shares of a whole as bars, one below the other; the numbers stand beside them."""
    high = 8 / len(shares)
    rects = [
        el(
            "rect",
            y=f"{high * i:.1f}",
            width=f"{100 * share:.2f}",
            height=f"{high - 1:.1f}",
            kind="other" if i else None,
        )
        for i, share in enumerate(shares)
    ]
    return el("svg", rects, kind="bar", viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")


def trace_page(report: Mapping[str, Any]) -> str:
    """A verification as a page: the verdicts, then every component with its own error and the inherited one."""
    guilty = {node["ours"] for node in report["guilty"]}
    verdicts = table(
        ("level", "verdict", "what was found"),
        (
            (
                (lv["name"], ""),
                (lv["verdict"], {"passed": "good", "failed": "bad"}.get(lv["verdict"], "dim")),
                (_found(lv), ""),
            )
            for lv in report["levels"]
        ),
    )
    nodes = table(
        ("component", "in the reference", "inherited", "by itself", "sign"), (_node(n, guilty) for n in report["nodes"])
    )
    more = [el("p", f"Likely: {report['likely']}", kind="bad")] if report["likely"] else []
    more += [el("p", f"Fault of the reference: {fault}", kind="bad") for fault in report["reference_faults"]]
    facts = ", ".join(f"{name} {value}" for name, value in report["conditions"].items())
    title = f"Parity of {report['subject']}"
    body = [
        el("h1", title),
        el("p", f"{report['subject']} against {report['against']}: ", el("strong", report["result"])),
        *more,
        *(el("h2", "Levels"), verdicts, el("h2", "Components, in the order of execution")),
        el(
            "p", "Inherited: our own run against the reference's. By itself: fed the reference's own input.", kind="dim"
        ),
        nodes,
        *(el("p", told, kind="dim") for told in (*(f"Note: {note}" for note in report["notes"]), facts)),
    ]
    return page(title, escape(body), report)


def _found(level: Mapping[str, Any]) -> str:
    return "; ".join([level["summary"], *(level["details"] if level["verdict"] == "failed" else [])])


def _node(node: Mapping[str, Any], guilty: set[str]) -> tuple[tuple[str, str], ...]:
    inherited = float(node["inherited"])  # a number, or the word for one that is not finite
    local = "" if node["local"] is None else f"{float(node['local']):.1e}"
    at_fault = node["ours"] in guilty
    sign, kind = ("≠ at fault", "bad") if at_fault else ("~ inherits", "warn") if inherited > 1e-9 else ("=", "good")
    number = "number"
    return (
        (node["ours"] or "the whole model", ""),
        (node["theirs"] or "the whole model", "dim"),
        (f"{inherited:.1e}", number),
        (local, number),
        (sign, kind),
    )


def save(path: Path, text: str) -> None:
    """Write a page whole or not at all. Raises UsageError for a place that cannot be written, or is no file."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", hint="name a file, such as page.html")
    partial = path.with_name(f".{os.getpid()}.partial.html")
    try:
        try:
            partial.write_bytes(text.encode("utf-8", "backslashreplace"))  # a path need not be Unicode
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="check its folder") from error
