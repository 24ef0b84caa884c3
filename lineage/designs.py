"""The commands that read designs and no weights: show, diff, tree, path, params. Parse, call lineage, print."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lineage.terminal import Function, json_option, say, say_json, source_options


def _form(*kinds: str) -> Callable[[Function], Function]:
    return click.option("--format", "form", type=click.Choice(kinds), default=kinds[0], show_default=True)


html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it as a web page, too: one file.",
)


def _found(what: str, allow_pickle: bool, fetch: bool = False, **access: Any) -> Any:
    from lineage.describe import describe, named

    if found := named(what):
        return found
    from lineage.checkpoint.source import Access  # and with it numpy, which a name does not need

    return describe(what, Access(**access), allow_pickle, fetch)


@click.command()
@click.argument("what")
@click.option("--tensors", is_flag=True, help="List every tensor, with its source where there is one.")
@_form("text", "json", "mermaid", "svg", "python")
@html_option
@source_options
@json_option
def show(what: str, tensors: bool, form: str, as_json: bool, html_file: Path | None, **options: Any) -> None:
    """Show what a model is made of: facts, a drawing, the parts.

    WHAT is a spec's name (see `lineage families`), a public model type, a directory or its config.json, or a hub id, of
    which only the config is fetched unless --tensors asks for more. spec:NAME and hf://NAME say which is meant.
    """
    from lineage.render import drawing, text
    from lineage.render.python import python

    found = _found(what, fetch=tensors, **options)
    if html_file:
        from lineage.render.model_page import model_page
        from lineage.render.page import save

        save(html_file, model_page(found, f"lineage show {found.name} --html FILE"))
    if as_json or form == "json":
        say_json(found.to_dict())
    else:
        forms = {"mermaid": drawing.mermaid, "python": python, "svg": lambda model: drawing.svg(model).splitlines()}
        say(forms[form](found.model) if form in forms else text.show(found, tensors))


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("--only", type=click.Choice(["design", "sizes", "all"]), default="all", show_default=True)
@click.option("--exit-code", is_flag=True, help="Exit with 3 if they differ (in what --only names).")
@_form("table", "md", "json", "mermaid")
@html_option
@source_options
@json_option
def diff(
    before: str,
    after: str,
    only: str,
    exit_code: bool,
    form: str,
    as_json: bool,
    html_file: Path | None,
    **options: Any,
) -> None:
    """Tell what changed from one architecture to another: its design, apart from sizes, and what that costs.

    BEFORE and AFTER are what `show` takes. In JSON the script is whole: applied to the first it gives the second.
    """
    from lineage.design import compare
    from lineage.render import comparison

    one, other = _found(before, **options), _found(after, **options)
    found = compare(one.model, other.model, (one.name, other.name))
    if html_file:
        from lineage.render.diff_page import diff_page
        from lineage.render.page import save

        save(html_file, diff_page(found, f"lineage diff {one.name} {other.name} --html FILE"))
    if as_json or form == "json":
        say_json(found.to_dict())
    else:
        say({"table": comparison.table, "md": comparison.markdown, "mermaid": comparison.mermaid}[form](found, only))
    if exit_code and {"design": found.design, "sizes": found.sizes, "all": found.script}[only]:
        raise click.exceptions.Exit(3)


@click.command()
@click.argument("family", required=False)
@click.option("--of", metavar="MODEL", help="Place a model on the tree, and name its nearest relatives.")
@_form("text", "json", "mermaid")
@html_option
@source_options
@json_option
def tree(family: str | None, of: str | None, form: str, as_json: bool, html_file: Path | None, **options: Any) -> None:
    """Draw the family tree, or that of one FAMILY, down to the public model types; every change is computed."""
    from lineage import lines
    from lineage.render import comparison

    if of and html_file:
        raise click.UsageError("--html draws the tree, and --of tells a model's place on it: not both at once")
    if of:
        found = _found(of, **options)
        near = lines.nearest(found.model, found.family)
        data, told = lines.relatives(found.name, found.family, near), comparison.near(found.name, found.family, near)
    else:
        roots = lines.tree(family)
        data = {"schema": "lineage.tree/1", "roots": [asdict(root) for root in roots]}
        if html_file:
            from lineage.render.page import save
            from lineage.render.tree_page import tree_page

            save(html_file, tree_page(roots, f"lineage tree{f' {family}' if family else ''} --html FILE"))
        told = comparison.tree_mermaid(roots) if form == "mermaid" else comparison.tree_text(roots)
    say_json(data) if as_json or form == "json" else say(told)


@click.command()
@click.argument("before")
@click.argument("after")
@_form("text", "json")
@source_options
@json_option
def path(before: str, after: str, form: str, as_json: bool, **options: Any) -> None:
    """Go from one architecture to another, one change at a time; every model on the way is a valid one."""
    from lineage import lines
    from lineage.design import compare
    from lineage.render import comparison

    one, other = _found(before, **options), _found(after, **options)
    steps = lines.path(compare(one.model, other.model, (one.name, other.name)))
    if as_json or form == "json":
        say_json({"schema": "lineage.path/1", "names": [one.name, other.name], "steps": [s.to_dict() for s in steps]})
    else:
        say(comparison.way(steps, (one.name, other.name)))


@click.command()
@click.argument("what")
@click.option("--by", type=click.Choice(["component", "layer"]), default="component", show_default=True)
@click.option("--seq", type=click.IntRange(min=1), default=4096, show_default=True, help="Tokens of a text.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Texts at a time.")
@click.option("--kv-dtype", "kind", default="fp16", show_default=True, help="Of the cache: fp32, fp16, fp8, int4 …")
@click.option("--tokens", type=click.FloatRange(min=0, min_open=True), help="To train on, for the compute: 20e9.")
@_form("text", "json")
@source_options
@json_option
def params(
    what: str, by: str, seq: int, batch: int, kind: str, tokens: float | None, form: str, as_json: bool, **options: Any
) -> None:
    """Count parameters, with formulas; and the cache, the work of a token and of training, without any weights."""
    from lineage.render import counting

    found = _found(what, **options)
    report = counting.report(found.name, found.model, by, seq, batch, kind, tokens)
    say_json(report) if as_json or form == "json" else say(counting.text(report))


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The directory to make.")
@click.option("--force", is_flag=True, help="Replace a gallery, once the new one is complete.")
@json_option
def gallery(output: Path, force: bool, as_json: bool) -> None:
    """Write all pages, linked: overview, configurator, family tree, a page for each family and for what lies between.

    They are files that ask for nothing: open index.html. The directory appears whole or not at all.
    """
    from lineage.render.gallery import gallery as write

    names = write(output, force)
    told = {"schema": "lineage.gallery/1", "output": str(output), "pages": names}
    say_json(told) if as_json else say([f"{len(names)} pages in {output}: open {output / 'index.html'}"])


COMMANDS = (show, diff, tree, path, params, gallery)
