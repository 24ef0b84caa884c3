"""What a verification says: as text, as data that fits its schema, as a page that nothing hostile gets into."""

import json
from html.parser import HTMLParser
from importlib.resources import files

import jsonschema
import pytest
from click.testing import CliRunner

import lineage
from lineage import cli
from lineage.errors import ParityError
from lineage.parity.golden import check_golden, save_golden
from lineage.parity.report import Report, passed
from lineage.parity.verification import LEVELS
from lineage.render.page import trace_page
from tests.parity import bugs, wrong, wrong_ends
from tests.parity.bugs import ATTENTION

SCHEMA = json.loads((files("lineage") / "schemas" / "verify.json").read_text(encoding="utf-8"))
HOSTILE = "</script><script>alert('1')</script><img src=x onerror=alert(2)> \"'&"


def faulty(directory, plant):
    model = lineage.from_pretrained(directory)
    plant(model)
    return model


@pytest.fixture(scope="module")
def broken(tiny):
    """A report in which every level that runs the model fails."""
    return lineage.verify(faulty(tiny("gpt2"), bugs.turn(f"{ATTENTION}.product", wrong.SeesOneAhead)))


@pytest.fixture(scope="module")
def endless(tiny):
    """A report with figures that are not finite."""
    return lineage.verify(faulty(tiny("bert"), bugs.altered(f"{ATTENTION}.v.weight", lambda w: w / 0)))


def strict(text):
    """JSON as other languages read it: without NaN and Infinity."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def check_schema(report):
    data = strict(json.dumps(report.to_dict()))
    jsonschema.validate(data, SCHEMA, cls=jsonschema.Draft202012Validator)
    return data


# As data


def test_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_reports_fit_the_schema(tiny, addition, broken, endless, tmp_path):
    honest = lineage.verify(addition)
    against = lineage.verify(tiny("gpt2"), against=tiny("gpt2", seed=1).with_name("gpt2 seed=1 source"), only=["fp64"])
    golden = check_golden(addition, save_golden(addition, tmp_path / "golden.safetensors"))
    ported = lineage.verify_module(lineage.from_pretrained(addition).embed.tokens, addition, {"": "embed.tokens"})
    for report in (honest, against, golden, ported, broken, endless):
        data = check_schema(report)
        assert data["result"] == ("passed" if report.passed else "failed")


def test_schema_notices_what_does_not_fit(broken):
    data = broken.to_dict()
    spoiled = [
        {name: value for name, value in data.items() if name != "guilty"},
        data | {"more": 1},
        data | {"schema": "lineage.verify/2"},
        data | {"result": "perhaps"},
        data | {"levels": [{"name": "fp64"}]},
        data | {"nodes": [data["nodes"][0] | {"local": "1e-3"}]},
    ]
    for one in spoiled:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(one, SCHEMA)


def test_figures_that_are_not_finite_are_words(endless):
    data = check_schema(endless)
    assert data["guilty"][0] == {
        "ours": f"{ATTENTION}.v", "theirs": "bert.encoder.layer.1.attention.self.value", "inherited": "Infinity",
        "local": "Infinity",
    }  # fmt: skip
    assert float(data["rel"]) == float("inf")


def test_guilty_apart_from_those_that_inherit(broken):
    data = broken.to_dict()
    product = f"{ATTENTION}.product"
    assert [node["ours"] for node in data["guilty"]] == [product]
    assert data["first_divergence"]["ours"] == product
    nodes = {node["ours"]: node for node in data["nodes"]}
    assert nodes["blocks.2.mlp.body.up"]["inherited"] > 1e-3
    assert nodes["blocks.2.mlp.body.up"]["local"] < 1e-12
    assert nodes["blocks.0"]["inherited"] < 1e-12
    assert "mask" in data["likely"]


# As text


def test_lines_name_the_fault_once(tiny, broken):
    lines = broken.lines()
    guilty = [line for line in lines if line.startswith("guilty")]
    assert len(guilty) == 1
    assert f"{ATTENTION}.product" in guilty[0]
    assert "transformer.h.1.attn" in guilty[0]
    report = lineage.verify(faulty(tiny("gpt2"), bugs.acts_are(bugs.quick_gelu)), only=["replay"])
    folded = [line for line in report.lines() if line.startswith("guilty")]
    assert len(folded) == 1
    assert "blocks.0.mlp.body.act, and 2 more like it" in folded[0]


def test_whole_model_has_a_name(tiny):
    report = lineage.verify(faulty(tiny("gpt2"), bugs.turn("", wrong_ends.LayersBackwards)), only=["replay"])
    text = "\n".join(report.lines())
    assert "guilty    the whole model" in text
    assert "how the components are joined" in text


def test_each_level_has_its_line(broken):
    lines = broken.lines()
    for level in broken.levels:
        line = next(line for line in lines if line.startswith(f"{level.name} "))
        assert line.endswith("FAILED" if level.failed else "ok")


def test_columns_are_even(addition, tiny, tmp_path):
    other = check_golden(tiny("bert"), save_golden(addition, tmp_path / "golden.safetensors"))
    long = Report("a", "b", (passed("fp64", True, "x" * 90), passed("full/next_sentence", False, "y")))
    for report in (other, long, lineage.verify(addition, only=["static", "bytes"])):
        heads = [line for line in report.lines() if line.endswith((" ok", " FAILED"))]
        assert len(heads) == len(report.levels)
        assert len({len(line.removesuffix("ok").removesuffix("FAILED")) for line in heads}) == 1
        starts = {line.index(level.summary) for line, level in zip(heads, report.levels, strict=True)}
        assert len(starts) == 1


def test_the_reference_is_named_where_it_ran(tiny):
    directory = tiny("gpt2")
    source = str(directory.with_name("gpt2 source"))
    named = {
        ("static",): "its source", ("bytes", "static"): "its source",
        ("bytes", "reference"): "transformers", ("fp64",): "transformers",
    }  # fmt: skip
    for levels, who in named.items():
        assert lineage.verify(directory, only=levels).against.startswith(who), levels
    assert lineage.verify(directory, source, only=["bytes"]).against == source


def test_raise_for_status(addition, broken):
    lineage.verify(addition, only=["static"]).raise_for_status()
    with pytest.raises(ParityError, match=f"differs from transformers .*{ATTENTION}.product") as caught:
        broken.raise_for_status()
    assert caught.value.exit_code == 3
    assert caught.value.context["result"] == "failed"


def test_nothing_compared_is_not_passed():
    assert not Report("a", "b", ()).passed
    assert Report("a", "b", (passed("fp64", True, ""),)).passed


# At the command line


def run(*arguments):
    return CliRunner().invoke(cli.cli, ["verify", *map(str, arguments)])


@pytest.fixture
def wrong_record(tiny):
    """A converted directory whose record claims another activation than the source's config."""
    directory = tiny("gpt2", table_scale=0.9)
    record = directory / "lineage.json"
    record.write_text(record.read_text(encoding="utf-8").replace('"gelu_new"', '"silu"'), encoding="utf-8")
    return directory


def test_command_prints_text_or_json(addition):
    text = run(addition, "--level", "static", "--level", "fp64")
    assert text.exit_code == 0
    assert text.output.splitlines()[-1].startswith(f"verified {addition}")
    data = strict(run(addition, "--level", "fp64", "--json").output)
    jsonschema.validate(data, SCHEMA)
    assert [level["name"] for level in data["levels"]] == ["fp64"]


def test_command_exits_with_three(wrong_record):
    done = run(wrong_record, "--level", "replay", "--json")
    assert done.exit_code == 3
    assert {node["ours"] for node in strict(done.output)["guilty"]} == {f"blocks.{i}.mlp.body.act" for i in range(3)}
    assert run(wrong_record, "--level", "replay").output.splitlines()[-1].startswith("NOT EQUAL")


def test_command_writes_traces(addition, tmp_path):
    assert run(addition, "--trace", tmp_path / "trace.json").exit_code == 0
    data = strict((tmp_path / "trace.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, SCHEMA)
    assert {level["name"] for level in data["levels"]} == set(LEVELS)
    assert run(addition, "--level", "replay", "--trace", tmp_path / "trace.html").exit_code == 0
    page = Page((tmp_path / "trace.html").read_text(encoding="utf-8"))
    assert {row[0] for row in page.rows} >= {node["ours"] for node in data["nodes"] if node["ours"]}


# As a page


class Page(HTMLParser):
    """What a browser would make of it: rows of tables, scripts, and everything that could ask for a file."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.scripts, self.tags, self.addresses, self.handlers, self.metas = [], [], [], [], [], []
        self.styles, self._open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self._open.append(tag)
        self.addresses += [given[name] for name in ("src", "href", "action", "srcset", "data") if name in given]
        self.handlers += [name for name in given if name.startswith("on")]
        if tag == "meta":
            self.metas.append(given)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append((given, ""))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, text):
        if "script" in self._open:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + text)
        elif "style" in self._open:
            self.styles.append(text)
        elif self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += text


def test_page_has_a_row_for_every_component(broken):
    page = Page(trace_page(broken.to_dict()))
    signs = {row[0]: row for row in page.rows if len(row) == 5}
    for node in broken.nodes:
        row = signs[node["ours"] or "the whole model"]
        assert row[1:4] == [node["theirs"] or "the whole model", f"{node['inherited']:.1e}", f"{node['local']:.1e}"]
    assert signs[f"{ATTENTION}.product"][4] == "≠ at fault"
    assert signs["blocks.2.mlp.body"][4] == "~ inherits"
    assert signs["blocks.0"][4] == "="
    levels = {row[0]: row[1] for row in page.rows if len(row) == 3}
    assert {level.name: level.verdict for level in broken.levels}.items() <= levels.items()


def test_page_holds_the_report_as_data(broken, endless):
    for report in (broken, endless):
        page = Page(trace_page(report.to_dict()))
        ((attributes, text),) = page.scripts
        assert attributes == {"type": "application/json", "id": "data"}
        assert strict(text) == strict(json.dumps(report.to_dict()))


def test_page_asks_for_nothing(broken):
    text = trace_page(broken.to_dict())
    page = Page(text)
    assert page.addresses == page.handlers == []
    assert {"link", "img", "iframe", "object", "embed", "base", "form"}.isdisjoint(page.tags)
    assert not any(word in "".join(page.styles) for word in ("url(", "@import"))
    policy = next(m["content"] for m in page.metas if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert page.tags.index("meta") < page.tags.index("style")


def test_hostile_names_stay_text():
    node = {"ours": HOSTILE, "theirs": HOSTILE, "inherited": 1.0, "local": None}
    level = passed(HOSTILE, False, HOSTILE, [HOSTILE])
    report = Report(
        HOSTILE, HOSTILE, (level,), {HOSTILE: HOSTILE}, (node,), node, (node,), faults=(HOSTILE,), notes=(HOSTILE,)
    )
    text = trace_page(report.to_dict())
    page = Page(text)
    assert page.tags.count("script") == 1
    assert page.handlers == []
    assert "img" not in page.tags
    assert any(HOSTILE in cell for row in page.rows for cell in row)
    assert text.count("Fault of the reference: &lt;/script&gt;") == text.count("Note: &lt;/script&gt;") == 1
    assert strict(page.scripts[0][1])["subject"] == HOSTILE
