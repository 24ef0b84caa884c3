"""The pages in a real browser: what it shows is the data within, it asks for nothing else, and anyone can use it."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

import lineage
from lineage import count, graph
from lineage.decisions import BLOCK, STACK
from lineage.render.cards import MARKS
from lineage.render.text import plain
from tests.browser.conftest import MODES, WIDTHS, Browser
from tests.browser.pages import HOSTILE, PAGES

pytestmark = pytest.mark.browser
ALL = "const all = (what) => [...document.querySelectorAll(what)].filter((one) => one.checkVisibility());"
WIDER = """return all("body *").filter((one) => !one.closest(".wide, .skip, .heard")
  && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML)"""
OVERLAPPING = """const boxes = all(".card, .tree > li[data-family], .pair > p")
  .map((one) => [one, one.getBoundingClientRect()]);
const over = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]) > 1;
return boxes.flatMap(([one, a], i) => boxes.slice(i + 1)
  .filter(([other, b]) => !one.contains(other) && over(a, b, "left", "right") && over(a, b, "top", "bottom"))
  .map(([other]) => `${one.textContent} | ${other.textContent}`))"""
CUT = """return all(".card, td, th, dd, pre, p, h1, h2, li").filter((one) => !one.closest(".heard, .wide, .year")
  && one.clientWidth && one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML)"""
CELLS = """return [...document.querySelectorAll(arguments[0])].map(
  (row) => [row.dataset.state, ...[...row.children].map((cell) => cell.textContent)])"""


@pytest.mark.parametrize("name", PAGES)
def test_page_holds_together(name: str, browser: Browser, pages: Path) -> None:
    """At three widths, light and dark: nothing runs over or overlaps, no rule of accessibility is broken."""
    page = pages / f"{name}.html"
    browser.open(page)
    for width in WIDTHS:
        browser.wide(width)
        for fault in (WIDER, OVERLAPPING, CUT):
            assert [one[:300] for one in browser.run(ALL + fault)] == [], f"at {width}"
    for mode in MODES:
        browser.light(mode)
        assert browser.violations() == [], mode
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("return document.title") != "taken"


@pytest.mark.parametrize("name", ["diff-script", "configurator", "tree", "models/deepseek_v3"])
def test_page_prints(name: str, browser: Browser, pages: Path) -> None:
    browser.open(pages / f"{name}.html")
    pdf = base64.b64decode(browser.printed())
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") >= 1


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith(("diff", "none", "deep"))])
def test_diff_shows_its_data(name: str, browser: Browser, pages: Path) -> None:
    browser.open(pages / f"{name}.html")
    data = browser.data()
    told = [(row["state"], row["aspect"], row["before"], row["after"]) for row in data["design"] + data["same"]]
    rows = browser.run(CELLS, ".design tbody tr")
    assert rows == [[state, MARKS[state], *texts] for state, *texts in told]
    cards = browser.run(CELLS, ".pair[data-state]")
    pairs = [pair for section in data["sections"] for pair in section["pairs"]]
    assert cards == [
        [p["state"], "".join(p["before"]) or "nothing here", MARKS[p["state"]], "".join(p["after"]) or "nothing here"]
        for p in pairs
    ]  # fmt: skip
    numbers = " ".join(browser.texts(".numbers td"))
    for before, after in [*data["sizes"].values(), data["figures"]["parameters"], data["figures"]["flops"]]:
        assert f"{before:,}" in numbers
        assert f"{after:,}" in numbers
    assert browser.texts("h1") == [plain(" → ".join(data["names"]))]


def test_only_differences(browser: Browser, pages: Path) -> None:
    browser.open(pages / "diffs/gpt2--llama-3-8b.html")
    every, same = browser.shown("[data-state]"), browser.shown("[data-state=same]")
    assert same > 3
    browser.driver.find_element("id", "only").click()
    assert (browser.shown("[data-state]"), browser.shown("[data-state=same]")) == (every - same, 0)
    browser.driver.find_element("id", "only").click()
    assert browser.shown("[data-state]") == every


def test_keys_go_from_difference_to_difference(browser: Browser, pages: Path) -> None:
    browser.open(pages / "diffs/gpt2--llama-3-8b.html")
    wanted = browser.run(
        "return [...document.querySelectorAll('[data-state]:not([data-state=same])')].map((x) => x.textContent)"
    )
    focused = "return document.activeElement.textContent"
    seen = []
    for _ in (*wanted, "once more"):
        browser.press("n")
        seen.append(browser.run(focused))
    assert seen == [*wanted, wanted[0]]
    browser.press("p")
    assert browser.run(focused) == wanted[-1]
    browser.open(pages / "none.html")
    browser.press("n")
    assert browser.run("return document.activeElement.tagName") == "BODY"
    assert browser.shown("[data-state]:not([data-state=same])") == 0


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_names_stay_text(key: str, browser: Browser, pages: Path) -> None:
    for name in (f"diff-{key}", "tree-hostile"):
        browser.open(pages / f"{name}.html")
        assert browser.run("return document.querySelectorAll('img, main script').length") == 0
        shown = plain(HOSTILE[key])
        assert any(shown in text for text in browser.texts("main bdi, main h1")), name


def test_tree_shows_its_data(browser: Browser, pages: Path) -> None:
    browser.open(pages / "tree.html")
    waiting, edges = list(browser.data()["roots"]), {}
    while waiting:
        branch = waiting.pop()
        edges[branch["name"]] = "; ".join(branch["changes"]) or branch["about"]
        waiting += [child for child in branch["children"] if child["year"]]
    names, changes = browser.texts(".tree h2"), browser.texts(".tree .changes")
    assert dict(zip(names, changes, strict=True)) == edges
    lefts = browser.run("return [...document.querySelectorAll('.tree time')].map((time) => "
                        "[Number(time.textContent), time.parentElement.getBoundingClientRect().left])")  # fmt: skip
    years = dict(sorted(lefts))
    assert list(years.values()) == sorted(years.values())


def unpacked(data: dict[str, Any]) -> dict[str, Any]:
    return json.loads(zlib.decompress(base64.b64decode(data["packed"])))


def picked(browser: Browser, picks: dict[str, int]) -> None:
    for name, option in picks.items():
        found = browser.driver.find_element("css selector", f"input[name='{name}'][value='{option}']")
        browser.run("arguments[0].scrollIntoView({block: 'center'})", found)  # from under the figures, as one does
        found.click()


def test_configurator_shows_what_was_built(browser: Browser, pages: Path) -> None:
    """Each option of each decision once, from either end; what stands there is that model's, in every form."""
    browser.open(pages / "configurator.html")
    order = dict(browser.data()["order"])
    assert list(order) == ["sizes", STACK.name, *(decision.name for decision in BLOCK)]
    seen = set()
    for start in (0, -1):
        picks = {name: start % count for name, count in order.items()}
        picked(browser, picks)
        for name, many in order.items():
            for option in range(many):
                picked(browser, {name: option})
                model = graph.model_from_json(json.loads(browser.texts("#json")[0]))
                scope: dict[str, Any] = {}
                exec(browser.texts("#python")[0], scope)
                assert scope["model"] == model
                figures = browser.texts("#figures dd")
                costs = count.figures(model)
                assert (figures[0], figures[4]) == (f"{costs['parameters']:,}", f"{costs['flops']:,}")
                assert figures[3] == f"{costs['cache']:,} bytes"
                assert str(len(model.blocks) - 1) in "".join(browser.texts("#drawing .title"))
                seen.add(model)
            picked(browser, {name: picks[name]})
    assert {lineage.spec("transformer"), lineage.spec("llama-3-8b")} <= seen
    assert len(seen) >= 2 * sum(many - 1 for many in order.values())
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["transformer", "gpt2", "llama-3-8b"])
def test_preset_is_the_published_model(name: str, browser: Browser, pages: Path) -> None:
    browser.open(pages / "configurator.html")
    for button in browser.driver.find_elements("css selector", "[data-row]"):
        if button.text == name:
            button.click()
    assert graph.model_from_json(json.loads(browser.texts("#json")[0])) == lineage.spec(name)
    assert f"This is {name}, to the last number." in browser.texts("#near")[0]
    address = browser.run("return location.href")
    checked = "return [...document.querySelectorAll('input:checked')].map((one) => one.value)"
    before = browser.run(checked)
    browser.driver.get("about:blank")
    browser.driver.get(address)  # the address holds the choice, to be shared
    assert browser.run(checked) == before


def test_configurator_obeys_the_keyboard(browser: Browser, pages: Path) -> None:
    browser.open(pages / "configurator.html")
    browser.driver.find_element("css selector", "input[name='norm'][value='0']").send_keys("\ue014")  # arrow right
    model = graph.model_from_json(json.loads(browser.texts("#json")[0]))
    assert type(model.blocks[0].mlp.norm_sum).__name__ == "RMSNorm"


def test_copying_selects_the_text(browser: Browser, pages: Path) -> None:
    browser.open(pages / "configurator.html")
    browser.driver.find_element("css selector", "[data-copy=python]").click()
    assert browser.run("return getSelection().toString()").strip() == browser.texts("#python")[0].strip()


def test_every_combination_is_there(browser: Browser, pages: Path) -> None:
    browser.open(pages / "configurator.html")
    data = browser.data()
    rows = unpacked(data)["rows"]
    many = 1
    for _, options in data["order"]:
        many *= options
    assert len(rows) == many


def test_a_bad_page_is_seen(browser: Browser, tmp_path: Path) -> None:
    """Each check of `test_page_holds_together` has something to find here."""
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><html><title>bad</title><body><img src="other.png"><script>console.error("oh")</script>'
        '<p class="card" style="width: 3000px">wide</p><p class="card" style="margin-top: -2em">over it</p>'
        '<p style="width: 2em; white-space: nowrap; overflow: hidden">what is cut off</p>'
    )
    browser.open(page)
    for fault in (WIDER, OVERLAPPING, CUT):
        assert browser.run(ALL + fault), fault
    assert {told.split(":")[0] for told in browser.violations()} >= {"html-has-lang", "image-alt"}
    assert any("oh" in told for told in browser.complaints())
    assert browser.requests() == [page.as_uri(), (tmp_path / "other.png").as_uri()]
