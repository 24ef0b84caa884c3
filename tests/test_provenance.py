"""The record and what is told of it: each document against the schema of those who read it."""

import copy
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message

import lineage
from lineage import catalog, record
from lineage.errors import FileDamaged
from lineage.parity.tiny import write_tiny
from tests import encodings, handmade
from tests.aged import AGES
from tests.handmade import main, tree
from tests.tiny import BY_NAME
from tests.workshop import Workshop

SCHEMA = jsonschema.Draft202012Validator(json.loads((files("lineage") / "schemas" / "model.json").read_text()))
REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
REPORT = {
    "schema": "lineage.verify/1", "result": "passed",
    "levels": [{"name": "fp64", "verdict": "passed", "summary": "4 probes, rel 1.9e-15"}],
}  # fmt: skip


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA.schema)
    assert SCHEMA.schema == record.schema()


def manifest(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "lineage.json").read_text())


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.getbasetemp() / "tiny-records")


@pytest.mark.parametrize("age", AGES)
def test_records_of_every_form_of_source_fit_the_schema(workshop, age):
    case = BY_NAME["roberta-masked" if age == "pooler" else "gpt2-plain"] if age != "norms" else BY_NAME["bert-masked"]
    SCHEMA.validate(workshop.manifest(case, age))


@pytest.mark.parametrize("model_type", sorted(catalog.dialects()))
def test_records_of_every_family_fit_the_schema(tmp_path, model_type):
    found = manifest(lineage.convert(str(write_tiny(model_type, tmp_path / "s")), tmp_path / "m", verify=False).output)
    SCHEMA.validate(found)
    for what, package in (("spec", "specs"), ("converter", "converters")):
        module, _, name = found["rules"][what]["module"].rpartition(".")
        assert module == f"lineage.{package}"
        assert (Path(__file__).parents[1] / package / f"{name}.py").is_file()
    assert found["rules"]["spec"]["module"].endswith(f".{found['family']}")


@pytest.mark.parametrize("make", [lambda d: encodings.fp8("llama", d), lambda d: encodings.gguf(d, "F32")])
def test_records_of_what_was_decoded_fit_the_schema(tmp_path, make):
    SCHEMA.validate(manifest(lineage.convert(str(make(tmp_path / "s")), tmp_path / "m", verify=False).output))


def test_a_record_with_parity_fits_the_schema(tmp_path):
    made = lineage.convert(str(write_tiny("gpt2", tmp_path / "s")), tmp_path / "m")
    SCHEMA.validate(manifest(made.output))
    assert manifest(made.output)["parity"]["result"] == "passed"


@cache
def example() -> dict[str, Any]:
    """A record that has something of everything."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        source = handmade.write(Path(place) / "source")
        made = lineage.convert(str(source), Path(place) / "made", verify=False, hashes=True).output
        found = manifest(made)
    found["source"] |= {"origin": "hf://openai-community/gpt2", "revision": REVISION}
    found["plan"]["dropped"] = [
        {"name": "h.0.attn.bias", "dtype": "F32", "shape": [1, 1, 6, 6], "why": "a mask", "value": None, "lossy": True}
    ]
    found["parity"] = REPORT
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


WRONG: list[Any] = [None, True, 3, -1, 1.5, "x", "../x", [], {}, ["x"], {"x": 1}, [None], "0" * 64, [-1]]


@given(data=st.data())
def test_what_the_schema_refuses_we_refuse_and_nothing_else(data):
    """Our reading of the schema against the standard's, wherever a record is not as it was."""
    found = copy.deepcopy(example())
    *path, last = data.draw(st.sampled_from(places(found)[1:]))
    owner = found
    for step in path:
        owner = owner[step]
    if data.draw(st.booleans()):
        owner[last] = data.draw(st.sampled_from(WRONG))
    elif isinstance(owner, dict):
        owner[data.draw(st.sampled_from(["x", "", "..", "a/b", "sha256"]))] = owner.pop(last)
    else:
        owner[last : last + 1] = []
    assert SCHEMA.is_valid(found) == (next(record.misfits(found, record.schema()), None) is None)


@pytest.fixture
def made(tmp_path):
    """A directory whose record says that it came from the hub."""
    source = handmade.write(tmp_path / "source")
    (source / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# GPT-2\n")
    directory = lineage.convert(str(source), tmp_path / "made-lineage", verify=False, hashes=True).output
    found = manifest(directory) | {"parity": REPORT}
    found["source"] |= {"origin": "hf://openai-community/gpt2", "revision": REVISION}
    (directory / "lineage.json").write_text(json.dumps(found))
    return directory


@pytest.fixture
def local(tmp_path):
    """One from a folder, without a report."""
    return lineage.convert(str(handmade.write(tmp_path / "here")), tmp_path / "mine", verify=False, hashes=True).output


def told(directory: Path, form: str) -> str:
    outcome = main("provenance", directory, "--format", form)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


def strict_statement(data: dict[str, Any]) -> Provenance:
    """By the messages of the two projects: any field that they do not know is an error."""
    message = ParseDict(data, Message())
    Statement.copy_from_pb(message).validate()
    assert message.predicate_type == "https://slsa.dev/provenance/v1"
    assert MessageToDict(message, preserving_proto_field_name=False) == data
    assert isinstance(message.predicate, Struct)
    return ParseDict(MessageToDict(message.predicate), Provenance())


@pytest.mark.parametrize("which", ["made", "local"])
def test_slsa_is_an_in_toto_statement(request, which):
    directory = request.getfixturevalue(which)
    data = json.loads(told(directory, "slsa"))
    provenance = strict_statement(data)
    assert data["subject"] == [{"name": n, "digest": {"sha256": s}} for n, s in manifest(directory)["files"].items()]
    materials = {one.name: dict(one.digest) for one in provenance.build_definition.resolved_dependencies if one.name}
    assert materials == {n: {"sha256": e["sha256"]} for n, e in manifest(directory)["source"]["files"].items()}
    commits = [dict(one.digest) for one in provenance.build_definition.resolved_dependencies if not one.name]
    assert commits == ([{"gitCommit": REVISION}] if which == "made" else [])
    assert provenance.run_details.builder.id == f"pkg:pypi/lineage-models@{lineage.__version__}"


def test_a_statement_that_is_none_is_seen():
    with pytest.raises(Exception, match="nonsense"):
        ParseDict({"nonsense": 1}, Provenance())


@pytest.mark.parametrize("which", ["made", "local"])
def test_cyclonedx_is_valid(request, which):
    directory = request.getfixturevalue(which)
    text = told(directory, "cyclonedx")
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(text) is None
    data = json.loads(text)
    component = data["metadata"]["component"]
    (ancestor,) = component["pedigree"]["ancestors"]
    assert (component["type"], ancestor["type"]) == ("machine-learning-model",) * 2
    if which == "made":
        assert ancestor["purl"] == f"pkg:huggingface/openai-community/gpt2@{REVISION}"
        assert component["licenses"] == [{"license": {"name": "mit"}}]
        assert "1.9e-15" in str(component["modelCard"]["quantitativeAnalysis"])
    assert told(directory, "cyclonedx") == text


@pytest.mark.parametrize("which", ["made", "local"])
def test_the_card_is_the_hubs(request, which):
    directory = request.getfixturevalue(which)
    found = ModelCard(told(directory, "card"))
    assert found.data.library_name == "lineage"
    assert found.data.base_model == ("openai-community/gpt2" if which == "made" else None)
    assert found.data.license == ("mit" if which == "made" else None)
    assert ("1.9e-15" in found.text) == (which == "made")


def test_text_names_everything(made):
    out = told(made, "text")
    found = manifest(made)
    for said in (REVISION, *found["files"].values(), *(entry["sha256"] for entry in found["source"]["files"].values())):
        assert said in out
    assert "not compared" not in out
    assert "fp64" in out


def test_a_file_is_written_and_nothing_of_the_model_touched(made, tmp_path, local):
    outcome = main("provenance", made, "--format", "cyclonedx", "-o", tmp_path / "bom.json")
    assert outcome.code == 0
    assert (tmp_path / "bom.json").read_text() == told(made, "cyclonedx")
    whole = tree(made)
    assert main("provenance", made, "-o", made / "lineage.json").code == 2
    assert main("provenance", made, "-o", tmp_path / "no" / "file").code == 2
    assert tree(made) == whole
    assert main("provenance", local, "--json").json == manifest(local)
    assert main("provenance", tmp_path / "source").code == 4


def test_a_hostile_record_prints_no_control_characters(made):
    found = manifest(made)
    found["source"]["origin"] = "hf://a\x1b[31m/b\n---\nlicense: gpl"
    (made / "lineage.json").write_text(json.dumps(found))
    assert "\x1b" not in told(made, "text") + told(made, "card") + told(made, "slsa") + told(made, "cyclonedx")
    assert ModelCard(told(made, "card")).data.license == "mit"
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(told(made, "cyclonedx")) is None


def test_a_record_without_hashes_is_no_statement(made):
    found = manifest(made)
    found["files"] = dict.fromkeys(found["files"])
    for entry in found["source"]["files"].values():
        entry.pop("sha256", None)
    (made / "lineage.json").write_text(json.dumps(found))
    outcome = main("provenance", made, "--format", "slsa")
    assert outcome.code == 2
    assert "no sha256" in outcome.err
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(told(made, "cyclonedx")) is None
    assert "no sha256" in told(made, "text")


def test_a_record_that_is_damaged_is_refused(made):
    (made / "lineage.json").write_text(json.dumps(manifest(made) | {"files": 3}))
    with pytest.raises(FileDamaged, match="files is not object"):
        record.read_manifest(made)
