"""Inputs that mean harm: refused in our words, soon, nothing written or touched; or taken, where that is decided."""

import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lineage import catalog
from lineage import config as configs
from lineage.checkpoint.files import read_json
from lineage.errors import FileDamaged
from tests import handmade
from tests.handmade import Outcome, main, shard, tree, write_index
from tests.published import usual

HUGE = 10**400
SURROGATE = "\ud800"  # what JSON can say and no file of UTF-8 can hold
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return handmade.write(tmp_path / "source")


@pytest.fixture
def convert(source: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Runs a conversion: what is refused leaves everything as it was, what is taken leaves the source so."""

    def run(code: int, *words: str, options: tuple[str, ...] = ()) -> Outcome:
        before = tree(tmp_path)
        outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none", *options)
        assert outcome.code == code, outcome.text
        assert [word for word in words if word not in outcome.text] == []
        assert all(char.isprintable() or char == "\n" for char in outcome.text)
        assert len(outcome.err) < 6000
        after = tree(tmp_path)
        assert {name: what for name, what in after.items() if name.partition("/")[0] != "out"} == before
        assert ("out" in after) == (code == 0)
        return outcome

    return run


def said(source: Path, settings: dict[str, Any]) -> None:
    (source / "config.json").write_text(json.dumps(settings))


# Configs: numbers that no model has, in keys that make something for each.

HUGE_KEYS = [
    ("albert", {"num_hidden_groups": 2**31 - 1}, 6),
    ("albert", {"num_labels": HUGE}, 6),
    ("bart", {"decoder_layers": 4096}, 9),
    ("t5", {"num_layers": 10**6}, 6),
    ("t5", {"num_decoder_layers": 4096}, 9),
    ("switch_transformers", {"num_experts": 2**31 - 1}, 9),
    ("mixtral", {"num_local_experts": 2**31 - 1}, 9),
    ("olmoe", {"num_experts": 2**31 - 1}, 9),
    ("deepseek_v2", {"n_routed_experts": 2**31 - 1}, 9),
    ("glm4_moe", {"n_routed_experts": 2**31 - 1}, 9),
    ("gpt_oss", {"original_max_position_embeddings": HUGE}, 6),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": HUGE}}, 6),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "short_factor": [HUGE], "long_factor": [1.0]}}, 6),
]


@pytest.mark.parametrize(("kind", "changes", "code"), HUGE_KEYS)
def test_what_a_config_claims_costs_nothing(
    kind: str, changes: dict[str, Any], code: int, source: Path, convert: Callable[..., Outcome]
) -> None:
    dialect = catalog.dialects()[kind]
    said(source, {"model_type": kind, **configs.write(dialect.config, usual(dialect)), **changes})
    convert(code)  # loads what is loaded once
    tracemalloc.start()
    try:
        convert(code)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_a_small_file_of_json_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    tracemalloc.start()
    try:
        assert read_json(tmp_path / "x.json") == {}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [10, 11])
def test_the_limit_on_json_is_exact(size: int, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('"' + "y" * (size - 2) + '"')
    if size == 10:
        assert read_json(tmp_path / "x.json", limit=10) == "y" * 8
    else:
        with pytest.raises(FileDamaged, match="over 10 bytes"):
            read_json(tmp_path / "x.json", limit=10)


@pytest.mark.parametrize("key", ["model_type", "activation_function", "n_head", SURROGATE])
@pytest.mark.parametrize("value", [SURROGATE, "\x1b]0;x\x07\n", "é" * 4000, {"a": {"b": [[[]] * 9]}}, "../" * 20])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_strange_words_in_a_config(
    key: str, value: Any, form: tuple[str, ...], source: Path, convert: Callable[..., Outcome]
) -> None:
    said(source, handmade.config(**{key: value}))
    if key == SURROGATE:
        convert(0, options=form)
    else:
        convert(6, options=form)


# Names of tensors.

NAMES = {
    "lone surrogate": SURROGATE,
    "control": "\x1b[2J\x00\r\n\x07",
    "right to left": "\u202eweight.b",
    "nothing": "",
    "long": "w" * 4096,
    "long path": "../" * 1365,
    "decomposed": "h.0.ln_1.weight" + "\u0301",
    "format": "{i}{0}%s%n",
    "a type": "__metadata__ ",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_strange_names(name: str, form: tuple[str, ...], source: Path, convert: Callable[..., Outcome]) -> None:
    given = handmade.tensors()
    given[NAMES[name]] = given["ln_f.bias"]
    (source / "model.safetensors").write_bytes(handmade.safetensors(given))
    convert(9, "unexpected", options=form)


# Indexes.

ELSEWHERE = [
    "../model.safetensors", "/etc/x.safetensors", "./" + ONE, "a/../" + ONE, "a\\b.safetensors", "..", ".", "", "\0",
    ONE + "/", ONE + "\0", "C:x.safetensors", SURROGATE + ".safetensors", "x" * 4000 + ".safetensors",
    "model.safetensors.index.json", "config.json", "~/x.safetensors", "hf://a/b.safetensors", "🦙.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("place", ELSEWHERE)
def test_an_index_that_points_elsewhere(place: str, source: Path, convert: Callable[..., Outcome]) -> None:
    places = shard(source)
    write_index(source, places | {"ln_f.bias": place})
    convert(7, "model.safetensors.index.json")


INDEXES = {
    "a list": "[]", "null": "null", "no map": "{}", "an empty map": '{"weight_map": {}}', "a list of files":
    '{"weight_map": ["a.safetensors"]}', "files in lists": '{"weight_map": {"a": ["a.safetensors"]}}', "a tensor twice":
    f'{{"weight_map": {{"wte.weight": "{ONE}", "wte.weight": "{TWO}"}}}}', "two maps":
    f'{{"weight_map": {{"wte.weight": "{ONE}"}}, "weight_map": {{}}}}', "deep": '{"weight_map": ' + "[" * 10**5,
    "not UTF-8": "\udcff", "nothing": "", "a mark before it": "\ufeff{}",
}  # fmt: skip


@pytest.mark.parametrize("fault", INDEXES)
def test_an_index_that_is_none(fault: str, source: Path, convert: Callable[..., Outcome]) -> None:
    shard(source)
    raw = INDEXES[fault].encode("utf-8", "surrogateescape")
    (source / "model.safetensors.index.json").write_bytes(raw)
    convert(7, "model.safetensors.index.json")


@pytest.mark.parametrize("total", [None, 0, -1, 1, 2**64, HUGE, "12", 1e308, [], {"a": []}])
def test_a_total_that_is_wrong_is_not_read(total: Any, source: Path, convert: Callable[..., Outcome]) -> None:
    index = {"metadata": {"total_size": total}, "weight_map": shard(source)}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(0)


def test_a_tensor_in_two_shards(source: Path, convert: Callable[..., Outcome]) -> None:
    places = shard(source)
    given = handmade.tensors()
    held = {name: given[name] for name, place in places.items() if place == TWO} | {"wte.weight": given["wte.weight"]}
    (source / TWO).write_bytes(handmade.safetensors(held))
    convert(7, "wte.weight", "another shard")


# Links and what is no file.


def to(target: str | Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def listening(path: Path) -> None:
    os.mknod(path, 0o600 | 0o140000)  # a socket


ODD = {
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": to("gone"),
    "a link to a folder": to("."),
    "a link to memory": to("/proc/self/mem"),
    "a link to what has no size": to("/proc/self/status"),
    "a device": to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a socket": listening,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", ONE, "model.safetensors.index.json"])
def test_what_is_no_regular_file(kind: str, name: str, source: Path, convert: Callable[..., Outcome]) -> None:
    if name not in ("config.json", "model.safetensors"):
        shard(source)
    (source / name).unlink()
    ODD[kind](source / name)
    missing = kind == "a link to nothing" and name in ("config.json", "model.safetensors.index.json")
    convert(4 if missing else 7, name)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "LICENSE"])
@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "a link to memory"])  # which tells of it by an error
def test_small_files_that_are_none_stay_behind(
    kind: str, name: str, source: Path, tmp_path: Path, convert: Callable[..., Outcome]
) -> None:
    ODD[kind](source / name)
    convert(0)
    assert not (tmp_path / "out" / "source" / name).exists() or kind == "a link to what has no size"


# Archives of pickles.


def archive(path: Path, members: list[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data)


class Call:
    """A pickle that calls what it names."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def plain(content: object) -> list[tuple[str, bytes]]:
    return [("archive/data.pkl", pickle.dumps(content, 2)), ("archive/byteorder", b"little"), ("archive/version", b"3")]


ARCHIVES = {
    "calls mkdir": plain({"a": Call(os.mkdir, "canary")}),
    "evaluates": plain({"a": Call(eval, "__import__('os').mkdir('canary')")}),
    "imports": plain(Call(__import__, "antigravity")),
    "reads a file": plain({"a": Call(open, "/etc/hostname")}),
    "a member outside": [*plain({}), ("../../canary", b"x")],
    "an absolute member": [*plain({}), ("/tmp/canary", b"x")],
    "a member twice": [*plain({}), *plain({"a": 1})],
    "no pickle": [("archive/version", b"3")],
    "an endless string": [("archive/data.pkl", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.")],
    "an endless list": [("archive/data.pkl", b"\x80\x02" + b"(" * 10**5 + b"l" * 10**5 + b".")],
    "a list of itself": [("archive/data.pkl", b"\x80\x02]q\x00h\x00a.")],
    "a hole": [("archive/data.pkl", b"")],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("fault", ARCHIVES)
def test_archives(fault: str, source: Path, monkeypatch: pytest.MonkeyPatch, convert: Callable[..., Outcome]) -> None:
    monkeypatch.chdir(source)
    (source / "model.safetensors").unlink()
    archive(source / "pytorch_model.bin", ARCHIVES[fault])
    convert(2, "--allow-pickle")
    convert(7, "pytorch_model.bin", options=("--allow-pickle",))
