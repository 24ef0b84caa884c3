"""What `show` finds under a name and how it tells it; the rest of the command line that needs no weights."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from lineage.cli import cli

import lineage
from lineage import catalog, components, describe, graph, lines
from lineage.checkpoint import source
from lineage.checkpoint.source import Access
from lineage.describe import Described
from lineage.errors import ArchitectureError, FileDamaged, LineageError, SourceError, UsageError
from lineage.record import SCHEMA
from lineage.render import drawing, text
from tests.published import DIALECTS, SIZES

Golden = Callable[[str, str], None]
TINY = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 6}
NOWHERE = Access(local_files_only=True)


def found(what: str | Path) -> Described:
    return describe.describe(str(what), NOWHERE)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def a_config(folder: Path, **keys: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(keys))
    return path


def a_record(folder: Path, **changes: Any) -> Path:
    """A converted directory's record, as far as `show` reads it."""
    record = {"schema": SCHEMA, "family": "gpt2", "spec": graph.to_json(lineage.spec("gpt2", layers=2))}
    (folder / "lineage.json").write_text(json.dumps({k: v for k, v in (record | changes).items() if v is not ...}))
    return folder


@pytest.mark.parametrize("size", ["gpt2", "bert"])
def test_show_is_as_reviewed(size: str, golden: Golden) -> None:
    shown = run("show", size)
    assert shown.exit_code == 0
    golden(f"show/{size}.txt", shown.output)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_shown_with_all_its_tensors(size: str) -> None:
    told = text.show(found(size), tensors=True)
    shapes = graph.tensors(lineage.spec(size))
    assert f"parameters  {graph.parameters(lineage.spec(size)):,}" in told
    told = told[told.index("tensors") + 1 :]
    assert [line.split(maxsplit=1) for line in told] == [[name, str(list(shape))] for name, shape in shapes.items()]


def test_show_in_json_is_the_whole_spec() -> None:
    data = json.loads(run("show", "bert", "--json").output)
    assert data["schema"] == "lineage.show/1"
    assert (data["origin"], data["family"], data["parameters"]) == ("spec", "bert", 109_514_298)
    assert graph.model_from_json(data["spec"]) == lineage.spec("bert")
    assert {name: tuple(shape) for name, shape in data["tensors"].items()} == graph.tensors(lineage.spec("bert"))


def test_blocks_that_differ_are_shown_apart() -> None:
    model = lineage.spec("gpt2", layers=3, scaled_by_layer=True)
    told = text.show(Described("x", "gpt2", model, "spec"), tensors=False)
    layers = ["layer 0", "layer 1", "layer 2"]
    assert [line for line in told if line.startswith("layer ")] == layers * 2  # in the drawing and among the parts
    shown = text.show(Described("x", "gemma2", lineage.spec("gemma2"), "spec"), tensors=False)
    assert [line for line in shown if line.startswith("layers ")][-2:] == ["layers 0, 2, 4 …", "layers 1, 3, 5 …"]


@pytest.mark.parametrize("size", SIZES)
def test_lines_fit_the_terminal(size: str) -> None:
    assert [line for line in text.show(found(size), tensors=False) if len(line) > 80] == []


def test_positions_that_padding_takes_are_no_context() -> None:
    shown = text.show(Described("x", "bert", lineage.spec("bert", context=514, pad=1), "spec"), tensors=False)
    assert "context     512" in shown


def test_prefix_says_which_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    a_record(tmp_path / "gpt2")
    (tmp_path / "gtp2").mkdir()
    a_record(tmp_path / "gtp2")
    assert found("gpt2").origin == found("spec:gpt2").origin == "spec"
    assert (found("./gpt2").origin, found("gtp2").origin, len(found("gtp2").model.blocks)) == (
        "converted",
        "converted",
        2,
    )
    with pytest.raises(UsageError, match=r"no spec or model 'gtp2'. Did you mean 'gpt2'"):
        found("spec:gtp2")
    with pytest.raises(UsageError, match=r"no spec or model './gpt2'"):
        found("spec:./gpt2")


def test_hub_is_asked_for_a_spec_name_where_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def locate(model: str, access: Access) -> Any:
        asked.append(model)
        raise SourceError("not here")

    monkeypatch.setattr(source, "locate", locate)
    for what in ("hf://gpt2", "org/gpt2", "./nothing"):
        with pytest.raises(SourceError):
            found(what)
    assert asked == ["hf://gpt2", "org/gpt2", "./nothing"]


@pytest.mark.parametrize("what", ["gtp2", "", "spec:", "spec:x/y", "a" * 5000, "a\0b", "nothing-here.json"])
def test_unknown_name_is_refused_briefly(what: str) -> None:
    with pytest.raises(LineageError) as caught:
        found(what)
    assert caught.value.exit_code in (2, 4, 7)
    assert len(caught.value.message) < 200


HEADS = [
    (["BertForPreTraining"], {"head", "pooler", "next_sentence"}),
    (["BertForMaskedLM"], {"head"}),
    (["BertForNextSentencePrediction"], {"pooler", "next_sentence"}),
    (["BertModel"], {"pooler"}),
    (["Elsewhere", "BertForMaskedLM"], {"head"}),
    (None, {"head", "pooler", "next_sentence"}),
]


@pytest.mark.parametrize(("architectures", "heads"), HEADS)
def test_config_alone_has_the_heads_of_its_class(architectures: Any, heads: set[str], tmp_path: Path) -> None:
    described = found(a_config(tmp_path, model_type="bert", num_hidden_layers=2, architectures=architectures))
    assert described.origin == "config.json"
    assert {part for part in ("head", "pooler", "next_sentence") if getattr(described.model, part)} == heads
    assert len(described.model.blocks) == 2


def test_config_of_a_class_with_other_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="BertLMHeadModel") as caught:
        found(a_config(tmp_path, model_type="bert", architectures=["BertLMHeadModel"]))
    assert "BertForMaskedLM" in caught.value.facts[0]
    assert found(a_config(tmp_path, **TINY, architectures=["GPT2Model"])).model.head.tied


def test_config_that_contradicts_itself_is_refused_in_its_own_keys(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="heads 5 does not divide") as caught:
        found(a_config(tmp_path, **TINY | {"n_head": 5}))
    assert "heads is n_head = 5" in caught.value.facts


def test_converted_directory_is_shown_by_its_record(tmp_path: Path) -> None:
    described = found(a_record(tmp_path))
    assert (described.origin, described.name) == ("converted", tmp_path.name)
    assert described.model == lineage.spec("gpt2", layers=2)


def test_family_that_is_not_installed_is_shown_by_its_record(tmp_path: Path) -> None:
    told = text.show(found(a_record(tmp_path, family="elsewhere")), tensors=False)
    assert told[:3] == [tmp_path.name, "", "family      elsewhere, not installed"]
    assert "layers      2" in told


@pytest.mark.parametrize(
    "changes",
    [{"schema": "lineage.model/99"}, {"family": ...}, {"family": 1}, {"spec": ...}, {"spec": {"component": "X"}}],
)
def test_damaged_record_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FileDamaged):
        found(a_record(tmp_path, **changes))
    (tmp_path / "lineage.json").write_text("[]")
    with pytest.raises(FileDamaged, match="not a record"):
        found(tmp_path)


def test_families_are_listed_oldest_first() -> None:
    listed = run("families")
    assert listed.exit_code == 0
    names = [line.split()[0] for line in listed.output.splitlines() if not line.startswith(" ")]
    assert names == [family["name"] for family in catalog.summary()]
    assert all(size in listed.output for size in SIZES)
    one = json.loads(run("families", "bert", "--json").output)["families"]
    assert [family["name"] for family in one] == ["bert"]
    assert set(one[0]["model_types"]) >= {"bert", "distilbert", "roberta", "xlm-roberta"}


def test_environment_is_told() -> None:
    told = json.loads(run("env", "--json").output)
    assert told["lineage"] == lineage.__version__
    assert {"python", "torch", "transformers", "platform"} <= set(told)


@pytest.mark.parametrize(
    ("given", "encoding", "printed"),
    [
        ("a\x1b[31mb\r\u202ec", "utf-8", "a\\x1b[31mb\\x0d\\x202ec"),
        ("Δ × √2 → é …", "ascii", "d x sqrt 2 -> e ..."),
        ("Δ → …", "utf-8", "Δ → …"),
        ("語", "latin-1", "\\u8a9e"),
        ("tab\tand\nline", "ascii", "tab\tand\nline"),
    ],
)
def test_only_what_the_terminal_shows_is_printed(given: str, encoding: str, printed: str) -> None:
    assert text.plain(given, encoding) == printed


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (551e6, "551.0 MB"), (9e15, "9000.0 TB")]
)
def test_bytes_are_told_in_powers_of_a_thousand(count: float, told: str) -> None:
    assert text.bytes_text(count) == told


STARTED = """
import sys
from lineage.cli import main
sys.argv = ["lineage", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    print("exit", stop.code, *({"torch", "transformers", "huggingface_hub", "numpy.testing"} & set(sys.modules)))
"""


NAMED = (["show", "gpt2"], ["diff", "gpt2", "llama"], ["params", "mixtral"], ["tree"], ["path", "gpt", "gpt2"])


@pytest.mark.parametrize("arguments", [["--help"], ["families"], *NAMED], ids=" ".join)
def test_start_loads_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-W", "error", "-c", STARTED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "exit 0"
    assert len(done.stdout.splitlines()) > 1
    assert done.stderr == ""


def test_component_without_facts_is_named_alone() -> None:
    block = components.Residual(body=lineage.spec("bert").blocks[0].mlp.body, norm_sum=components.RMSNorm(eps=0.5))
    assert text.parts(block) == [
        "body                    FeedForward (width 3,072, activation gelu, bias)",
        "norm_sum                RMSNorm (eps 0.5)",
    ]


def test_folder_without_safetensors_speaks_by_its_config(tmp_path: Path) -> None:
    a_config(tmp_path, **TINY)
    assert found(tmp_path).origin == "config.json"
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    described = found(tmp_path)
    assert (described.origin, len(described.model.blocks)) == ("config.json", 2)
    assert found(tmp_path / "pytorch_model.bin").model == described.model
    with pytest.raises(FileDamaged):  # but what is allowed is read
        describe.describe(str(tmp_path), NOWHERE, allow_pickle=True)
    shown = run("show", str(tmp_path), "--tensors")
    assert shown.exit_code == 0
    assert "blocks.1.mlp.body.down.weight" in shown.output


@pytest.mark.parametrize("kind", sorted(set(DIALECTS) - set(SIZES)))
def test_public_model_type_is_what_its_defaults_make(kind: str) -> None:
    if lines.types()[kind] is None:  # some classes' own defaults make no model
        with pytest.raises(ArchitectureError, match=r"config\.json"):
            found(kind)
        return
    described = found(kind)
    assert (described.family, described.origin) == (catalog.dialects()[kind].spec, "the defaults of its config")


def test_drawing_in_every_form() -> None:
    for form, start in (("svg", "<svg"), ("mermaid", "flowchart"), ("json", "{"), ("text", "gpt2")):
        shown = run("show", "gpt2", "--format", form)
        assert (shown.exit_code, shown.output[: len(start)]) == (0, start)
    picture = ElementTree.fromstring(run("show", "gpt2", "--format", "svg").output)
    assert "\\n" not in "".join(picture.itertext())
    bundle = lineage.spec("gpt2")._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "image/svg+xml"}
    assert set(components.Pooler()._repr_mimebundle_()) == {"text/plain"}


@pytest.mark.parametrize("size", SIZES)
def test_drawing_is_whole(size: str) -> None:
    """Every branch that opens is added, and the picture is XML that asks for nothing else."""
    model = lineage.spec(size)
    kinds = [item.kind for item in drawing.items(model)]
    assert kinds.count("split") == kinds.count("sum")
    assert kinds.count("group") == kinds.count("end")
    chart = drawing.mermaid(model)
    arrows = [line.split(" --> ") for line in chart if " --> " in line]
    nodes = {re.split(r"[\[(]", line)[0] for line in chart if re.match(r"n\d+[\[(]", line)}
    assert {source for source, _ in arrows} < nodes
    assert len(nodes - {target for _, target in arrows}) == (2 if model.encoder else 1)  # where tokens come in
    picture = ElementTree.fromstring(drawing.svg(model))
    assert not {"script", "image", "a"} & {element.tag.rpartition("}")[2] for element in picture.iter()}
    assert "http" not in drawing.svg(model).replace("http://www.w3.org/2000/svg", "")


def test_hostile_words_stay_words() -> None:
    assert drawing.label('<b>"x"\n&') == '"&lt;b&gt;#quot;x#quot; &amp;"'
