"""Pages without a browser: whole or not at all, linked, of anything that has a design, without torch; and decisions."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import lineage
from lineage import catalog, graph
from lineage.decisions import BLOCK, STACK, Sizes, taken, turned
from lineage.design import compare
from lineage.errors import UsageError
from lineage.record import SCHEMA
from lineage.render import gallery as galleries
from lineage.render.cards import sides
from lineage.render.configurator import Bench, relatives
from lineage.render.gallery import Gallery, gallery
from lineage.render.python import python
from lineage.words import layers_text
from tests import handmade
from tests.handmade import command, config
from tests.published import SIZES

DECISIONS = (STACK, *BLOCK)
SIZED = {one["model"]: Sizes(lineage.spec(one["model"]), one["context"]) for one in Gallery().content["sizes"]}


class Page(HTMLParser):
    """What a browser would follow, and what may run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.odd: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.links += [given["href"]] if given.get("href") else []
        self.ids |= {given["id"]} if given.get("id") else set()
        self.odd += [name for name in given if name.startswith("on") or name in ("src", "srcset", "action")]
        self.policy = given["content"] or "" if given.get("http-equiv") else self.policy


def data(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery, beside it the names of all that was imported to write it."""
    output = tmp_path_factory.mktemp("out") / "gallery"
    code = (
        "import sys, lineage.cli as c; c.cli(['gallery', '-o', 'gallery'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=output.parent, capture_output=True, text=True, check=True)
    output.with_name("modules").write_text(done.stdout)
    return output


def test_gallery_is_linked_and_complete(written: Path) -> None:
    pages = {path.relative_to(written).as_posix(): Page(path.read_text("utf-8")) for path in written.rglob("*.html")}
    assert set(pages) | {"gallery.json"} == set(json.loads((written / "gallery.json").read_text())["files"])
    assert {f"models/{name}.html" for name in catalog.families()} <= set(pages)
    reached, waiting = set(), ["index.html"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for link in pages[name].links:
            if not link.startswith("#"):
                target = (written / name).parent.joinpath(unquote(link)).resolve().relative_to(written.resolve())
                assert target.as_posix() in pages, f"{name}: {link}"
                waiting += {target.as_posix()} - reached - set(waiting)
            else:
                assert link[1:] in pages[name].ids
    assert reached == set(pages)
    for name, page in pages.items():
        assert page.odd == [], name
        assert page.policy.startswith("default-src 'none'")
        assert "'unsafe-inline'" not in page.policy.partition("script-src")[2]


def test_edges_of_the_tree_say_what_their_pages_say(written: Path) -> None:
    waiting = data((written / "tree.html").read_text("utf-8"))["roots"]
    while waiting:
        branch = waiting.pop()
        for child in (one for one in branch["children"] if one["year"]):
            page = data((written / f"diffs/{branch['name']}--{child['name']}.html").read_text("utf-8"))
            diff = compare(lineage.spec(branch["name"]), lineage.spec(child["name"]), (branch["name"], child["name"]))
            assert child["changes"] == [row.label for row in diff.design]
            assert page["script"] == json.loads(json.dumps(diff.to_dict()))["script"]
            waiting.append(child)


def test_corrections_hold_the_figures(written: Path) -> None:
    told = " ".join(right for _, right in data((written / "index.html").read_text("utf-8"))["corrections"])
    for figure in ("4,294,967,296 bytes", "17,179,869,184", "46,702,792,704", "12,879,925,248", "174,604,259,328",
                   "349.2 GB", "5 such cards", "128 channels"):  # fmt: skip
        assert figure in told


def test_gallery_appears_whole_or_not_at_all(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Gallery) -> Any:
        yield "index.html", "half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(galleries.Gallery, "pages", cut)
    with pytest.raises(lineage.LineageError, match="disk is full"):
        gallery(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    index = (written / "index.html").read_bytes()
    with pytest.raises(lineage.LineageError, match="disk is full"):
        gallery(written, force=True)
    assert (written / "index.html").read_bytes() == index


def test_only_a_gallery_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galleries.Gallery, "pages", lambda self: iter([("index.html", "new")]))
    (tmp_path / "theirs").mkdir()
    gallery(tmp_path / "theirs")
    with pytest.raises(UsageError, match="exists"):
        gallery(tmp_path / "theirs")
    gallery(tmp_path / "theirs", force=True)
    (tmp_path / "theirs" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 1 files that lineage did not write: thesis\.txt"):
        gallery(tmp_path / "theirs", force=True)
    (tmp_path / "converted").mkdir()
    (tmp_path / "converted" / "lineage.json").write_text(json.dumps({"schema": SCHEMA, "files": {}}))
    with pytest.raises(UsageError, match="did not write"):
        gallery(tmp_path / "converted", force=True)
    for other in ("nowhere/gallery", "theirs/thesis.txt"):
        with pytest.raises(UsageError):
            gallery(tmp_path / other, force=True)
    assert (tmp_path / "theirs" / "thesis.txt").read_text() == "mine"


def made_of(place: Path) -> list[str]:
    """A config, a folder and a converted directory of the same model."""
    (place / "public").mkdir()
    (place / "public" / "config.json").write_text(json.dumps(config()))
    (place / "made").mkdir()
    record = {"schema": SCHEMA, "family": "gpt2", "spec": graph.to_json(lineage.spec("gpt2"))}
    (place / "made" / "lineage.json").write_text(json.dumps(record))
    return ["gpt2", "./public", "public/config.json", "./made"]


def test_commands_write_pages_of_anything(tmp_path: Path) -> None:
    for what in made_of(tmp_path):
        for arguments in (("show", what), ("diff", "llama", what)):
            outcome = command(*arguments, "--html", "page.html", cwd=tmp_path, env=handmade.environment())
            assert (outcome.code, outcome.err) == (0, ""), outcome.text
            told = data((tmp_path / "page.html").read_text("utf-8"))
            assert told["schema"] == f"lineage.{arguments[0]}/1"
    assert command("tree", "llama", "--html", "t.html", cwd=tmp_path, env=handmade.environment()).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"public", "made", "page.html", "t.html"}


@pytest.mark.parametrize("target", ["nowhere/page.html", "made", "/dev/null"])
def test_page_that_cannot_be_written(target: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    outcome = command("show", "gpt2", "--html", target, cwd=tmp_path, env=handmade.environment())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error[usage]: ")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_tree_and_place_are_not_drawn_at_once(tmp_path: Path) -> None:
    outcome = command("tree", "--of", "gpt2", "--html", "t.html", cwd=tmp_path, env=handmade.environment())
    assert outcome.code == 2
    assert list(tmp_path.iterdir()) == []


def test_pages_need_no_torch(written: Path) -> None:
    told = written.with_name("modules").read_text().split()
    assert "lineage.render.gallery" in told
    assert not {"torch", "transformers", "huggingface_hub"} & set(told)


# Decisions


@pytest.mark.parametrize(
    ("name", "sizes", "picks"),
    [
        ("transformer", "transformer", (0, 0, 0, 0, 0, 0, 0)),
        ("gpt2", "gpt2", (1, 1, 0, 1, 1, 0, 0)),
        ("llama-3-8b", "llama-3-8b", (-1, -1, -1, -1, -1, -1, -1)),
    ],
)
def test_options_lead_to_published_models(name: str, sizes: str, picks: tuple[int, ...]) -> None:
    options = [decision.options[pick] for decision, pick in zip(DECISIONS, picks, strict=True)]
    first = Bench("transformer", SIZED).first(SIZED[sizes])
    assert turned(first, options, SIZED[sizes]) == lineage.spec(name)


def test_decisions_do_not_hang_on_each_other() -> None:
    """Turned one after the other, in either order, the same comes out; and then it has just these options."""
    bench = Bench("transformer", {"gpt2": SIZED["gpt2"]})
    models = list(bench.models())
    assert len(set(models)) == len(models) == 3 * 2 * 2 * 3 * 3 * 3 * 2
    for i in range(0, len(models), 29):
        chosen = [option for option in taken(models[i]).values() if option]
        assert len(chosen) == len(BLOCK)
        again = turned(bench.first(SIZED["gpt2"]), reversed(chosen), SIZED["gpt2"])
        assert taken(again) == taken(models[i])
        assert again.blocks[0].mlp == models[i].blocks[0].mlp


def test_one_option_changes_one_aspect() -> None:
    base = lineage.spec("gpt2")
    for decision in BLOCK:
        for option in decision.options:
            found = {row.aspect for row in compare(base, option.turn(base, SIZED["gpt2"])).design}
            assert found - {"final norm"} <= {decision.name}, option.name


@pytest.mark.parametrize(
    ("name", "decision", "option"),
    [
        ("gpt2", "norm placement", "before each branch"),
        ("bert", "norm placement", "after each sum"),
        ("gemma2", "norm placement", None),
        ("bloom", "positions", None),
        ("t5", "norm", "RMSNorm"),
        ("falcon", "heads", "multi-query"),
        ("qwen2_moe", "biases", None),
        ("gemma", "mlp", None),
        ("llama-2-70b", "heads", "grouped"),
    ],
)
def test_what_models_decided(name: str, decision: str, option: str | None) -> None:
    found = taken(lineage.spec(name))[decision]
    assert (found.name if found else None) == option


def test_nearest_relatives_decided_most_alike() -> None:
    found = relatives()
    first, last = found[0], found[-1]
    assert "transformer" in dict(first)[("transformer", "")]
    assert {("llama", ""), ("mixtral", "")} <= set(last)
    assert "llama-3-8b" in last[("llama", "")]
    assert all(near for near in found)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_python_gives_the_spec(step: int) -> None:
    for name in SIZES[step::3]:
        scope: dict[str, Any] = {}
        exec("\n".join(python(lineage.spec(name))), scope)
        assert scope["model"] == lineage.spec(name), name


def test_spec_is_told_as_python(tmp_path: Path) -> None:
    outcome = command("show", "gpt2", "--format", "python", cwd=tmp_path, env=handmade.environment())
    assert outcome.out.splitlines() == python(lineage.spec("gpt2"))


# Side by side


def test_moved_norms_are_rows_of_their_own() -> None:
    found = sides(lineage.spec("gpt"), lineage.spec("gpt2"))
    states = {section.titles[1]: [pair.state for pair in section.pairs] for section in found}
    assert states == {
        "input": ["size", "size"],
        layers_text(list(range(12)), 12): ["moved", "same", "same", "moved", "same", "same"],
        "output": ["added", "size"],
    }


@pytest.mark.parametrize("before", ["gpt2", "transformer", "gemma3", "deepseek_v3", "falcon"])
@pytest.mark.parametrize("after", ["llama-3-8b", "bert", "gemma2", "gptj", "t5"])
def test_no_change_is_left_out(before: str, after: str) -> None:
    """Where designs differ a card says so; beside itself nothing does; the other way round, what was new is gone."""
    one, other = lineage.spec(before), lineage.spec(after)
    turned_round = {"added": "removed", "removed": "added"}
    there, back = (
        sorted((pair.state, pair.before, pair.after) for section in found for pair in section.pairs)
        for found in (sides(one, other), sides(other, one))
    )
    assert len(there) == len(back)
    assert there == sorted((turned_round.get(state, state), b, a) for state, a, b in back)
    assert {state for state, *_ in there} - {"same", "size"}
    assert {pair.state for section in sides(one, one) for pair in section.pairs} == {"same"}
