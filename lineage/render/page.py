"""Self-contained HTML pages: one file, no request, no library, light and dark, printable."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #c8ccd2; --dim: #555c66; --bad: #a4161a; --warn: #8a5a00; --good: #1f6f43; }
@media (prefers-color-scheme: dark) {
  :root { --line: #454b54; --dim: #a9b1bc; --bad: #ff8f8f; --warn: #f0c063; --good: #7fd6a4; }
}
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 1.6rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; } td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.dim { color: var(--dim); } .bad { color: var(--bad); font-weight: 600; } .warn { color: var(--warn); }
.good { color: var(--good); } pre { white-space: pre-wrap; }
@media (max-width: 40rem) { th, td { padding: .2rem .3rem; font-size: 13px; } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def escape(value: object) -> str:
    """Text that cannot become markup."""
    return html.escape(str(value), quote=True)


def page(title: str, body: str, data: Mapping[str, Any]) -> str:
    """A whole page. body: markup; data: embedded as JSON for whoever reads the page with a program."""
    embedded = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1>\n{body}\n</main>\n"
        f'<script type="application/json" id="data">{embedded}</script>\n</body></html>\n'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]]) -> str:
    """A table. Each cell is (text, class)."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = ("".join(f'<td class="{kind}">{escape(text)}</td>' for text, kind in row) for row in rows)
    return (
        f"<table><thead><tr>{top}</tr></thead><tbody>"
        + "".join(f"<tr>{line}</tr>" for line in lines)
        + "</tbody></table>"
    )


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
    more = f'<p class="bad">Likely: {escape(report["likely"])}</p>' if report["likely"] else ""
    more += "".join(
        f'<p class="bad">Fault of the reference: {escape(fault)}</p>' for fault in report["reference_faults"]
    )
    notes = "".join(f'<p class="dim">Note: {escape(note)}</p>' for note in report["notes"])
    facts = escape(", ".join(f"{name} {value}" for name, value in report["conditions"].items()))
    who = f"{escape(report['subject'])} against {escape(report['against'])}"
    legend = "Inherited: our own run against the reference's. By itself: fed the reference's own input."
    body = (
        f"<p>{who}: <strong>{escape(report['result'])}</strong></p>"
        f"{more}<h2>Levels</h2>{verdicts}<h2>Components, in the order of execution</h2>"
        f'<p class="dim">{legend}</p>{nodes}{notes}'
        f'<p class="dim">{facts}</p>'
    )
    return page(f"Parity of {report['subject']}", body, report)


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
