"""What is refused, and how: its own exit code, every offender named, nothing written, nothing of the user's touched."""

import json
import os
import pickle
import shutil
import zipfile
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import handmade
from tests.handmade import Outcome, command, config, main, safetensors, shard, tensors, tree, write_index

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n"
CODES = {2: {"usage"}, 4: {"not_found"}, 6: {"architecture"}, 7: {"file"}, 8: {"resources"}, 9: {"tensors"}}

Damage = Callable[[Path], object]
Fault = tuple[int, Damage, tuple[str, ...]]


def settings(**changes: Any) -> Damage:
    return lambda source: (source / "config.json").write_text(json.dumps(config(**changes)))


def holding(change: Callable[[dict[str, np.ndarray]], object], **settings: Any) -> Damage:
    def damage(source: Path) -> None:
        given = tensors()
        change(given)
        (source / "model.safetensors").write_bytes(safetensors(given))
        (source / "config.json").write_text(json.dumps(config(**settings)))

    return damage


def weights(content: bytes) -> Damage:
    return lambda source: (source / "model.safetensors").write_bytes(content)


def replaced(name: str, make: Callable[[Path], object]) -> Damage:
    def damage(source: Path) -> None:
        (source / name).unlink(missing_ok=True)
        make(source / name)

    return damage


def cut(source: Path) -> None:
    path = source / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def renumber(given: dict[str, np.ndarray]) -> None:
    for name in [name for name in given if name.startswith("h.1.")]:
        given[name.replace("h.1.", "h.2.")] = given.pop(name)


def misfit(given: dict[str, np.ndarray]) -> None:
    """Missing, unexpected and transposed at once."""
    del given["ln_f.bias"], given["h.0.mlp.c_fc.bias"]
    given |= {"h.0.attn.q_norm.weight": given["ln_f.weight"], "score.weight": given["wpe.weight"]}
    given["h.1.mlp.c_proj.weight"] = np.ascontiguousarray(given["h.1.mlp.c_proj.weight"].T)


def without_shard(source: Path) -> None:
    shard(source)
    (source / "model-00002-of-00002.safetensors").unlink()


def index(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(source: Path) -> None:
        places: dict[str, Any] = shard(source)
        change(places)
        write_index(source, places)

    return damage


def outside(source: Path) -> None:
    """A shard elsewhere, whole and readable."""
    places = shard(source)
    there = source.parent / "private.safetensors"
    shutil.move(source / "model-00002-of-00002.safetensors", there)
    write_index(source, {name: "../private.safetensors" if "00002-of" in at else at for name, at in places.items()})


def pickled(source: Path, content: object = None, name: str = "pytorch_model.bin", pickle_of: bytes = b"") -> None:
    (source / "model.safetensors").unlink(missing_ok=True)
    with zipfile.ZipFile(source / name, "w", zipfile.ZIP_STORED) as archive:
        for member, data in (
            ("data.pkl", pickle_of or pickle.dumps(content, 2)),
            ("byteorder", b"little"),
            ("version", b"3\n"),
        ):
            archive.writestr(f"archive/{member}", data)


def two_pickles(source: Path) -> None:
    pickled(source, name="pytorch_model-00001-of-00002.bin")
    pickled(source, name="pytorch_model-00002-of-00002.bin")
    (source / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": {"wte.weight": "pytorch_model-00001-of-00002.bin"}})
    )


QKV = "h.0.attn.c_attn.weight"
FAULTS: Mapping[str, Fault] = {
    # config.json
    "unknown model_type": (6, settings(model_type="gpt99"), ("gpt99",)),
    "no model_type": (6, settings(model_type=None), ("model_type",)),
    "model_type is a path": (6, settings(model_type="../../gpt2"), ("../../gpt2",)),
    "cross-attention": (6, settings(add_cross_attention=True), ("add_cross_attention", "true")),
    "activation": (6, settings(activation_function="gelu_turbo"), ("activation_function", "gelu_turbo", "gelu_new")),
    "quantised": (6, settings(quantization_config={"quant_method": "gptq"}), ("quantization_config", "gptq")),
    "heads as text": (6, settings(n_head="2"), ("n_head", '"2"')),
    "heads as truth": (6, settings(n_head=True), ("n_head", "true")),
    "heads do not divide": (6, settings(n_head=3), ("n_head", "3", "8")),
    "infinite epsilon": (6, settings(layer_norm_epsilon=float("inf")), ("layer_norm_epsilon",)),
    "three keys at once": (
        6,
        settings(n_head=0, activation_function="x", add_cross_attention=True, vocab_size=-1),
        ("n_head", "activation_function", "add_cross_attention", "vocab_size"),
    ),
    "a million layers": (6, settings(n_layer=1_000_000), ("n_layer",)),
    "more layers than tensors": (9, settings(n_layer=4000), ("layers",)),
    "config is a list": (7, lambda source: (source / "config.json").write_text("[]"), ("config.json", "list")),
    "config is cut": (7, lambda source: (source / "config.json").write_text('{"model_type":'), ("config.json",)),
    "config says a key twice": (
        7,
        lambda source: (source / "config.json").write_text('{"n_head": 2, "n_head": 4}'),
        ("config.json", "n_head"),
    ),
    "config nested deep": (7, lambda source: (source / "config.json").write_text("[" * 10**5), ("config.json",)),
    "config is huge": (
        7,
        lambda source: (source / "config.json").write_text(json.dumps({"x": "y" * 11_000_000})),
        ("config.json", "10,000,000"),
    ),
    "config is a link to itself": (7, replaced("config.json", lambda path: path.symlink_to(path)), ("config.json",)),
    "no config": (4, lambda source: (source / "config.json").unlink(), ("config.json", "source")),
    "an adapter": (6, lambda source: (source / "adapter_config.json").write_text("{}"), ("adapter_config.json",)),
    # tensors against the model
    "missing, unexpected, transposed": (
        9,
        holding(misfit),
        ("ln_f.bias", "h.0.mlp.c_fc.bias", "q_norm", "score.weight", "h.1.mlp.c_proj.weight", "transposed"),
    ),
    "a gap in the layers": (9, holding(renumber), ("h.1.attn.c_attn.weight", "h.2.attn.c_attn.weight")),
    "fewer layers than the file": (9, settings(n_layer=1), ("h.1.attn.c_attn.weight",)),
    "more layers than the file": (9, settings(n_layer=3), ("h.2.attn.c_attn.weight",)),
    "vocabulary": (9, settings(vocab_size=12), ("wte.weight", "[11, 8]", "[12, 8]")),
    "a scalar": (9, holding(lambda t: t.update({"ln_f.bias": t["ln_f.bias"][:1].reshape(())})), ("ln_f.bias",)),
    "whole numbers": (9, holding(lambda t: t.update({QKV: np.ones((8, 24), "i1")})), (QKV, "I8")),
    "both prefixes": (9, holding(lambda t: t.update({"transformer.wte.weight": t["wte.weight"] + 1})), ("wte.weight",)),
    "a name of control characters": (9, holding(lambda t: t.update({"\x1b[2J\n": t["ln_f.bias"]})), ("unexpected",)),
    "a name that is a path": (9, holding(lambda t: t.update({"../../x": t["ln_f.bias"]})), ("../../x",)),
    # files
    "no weights": (4, lambda source: (source / "model.safetensors").unlink(), ("model.safetensors", "source")),
    "cut short": (7, cut, ("model.safetensors", "cut short", "%")),
    "LFS pointer": (7, weights(LFS.encode()), ("model.safetensors", "LFS", "git lfs pull")),
    "config is an LFS pointer": (7, lambda s: (s / "config.json").write_text(LFS), ("config.json", "LFS")),
    "empty": (7, weights(b""), ("model.safetensors", "cut short")),
    "no tensors": (7, weights(handmade.framed(b"{}")), ("model.safetensors", "no tensors")),
    "one byte too many": (7, weights(safetensors(tensors()) + b"x"), ("model.safetensors", "1 bytes after")),
    "forty dimensions": (
        7,
        weights(safetensors({"h.0.attn.masked_bias": np.ones(1, "<f4")}).replace(b"[1]", b"[" + b"1," * 39 + b"1]")),
        ("model.safetensors",),
    ),
    "weights are a directory": (
        7,
        replaced("model.safetensors", Path.mkdir),
        ("model.safetensors", "not a regular file"),
    ),
    "a shard is missing": (7, without_shard, ("model.safetensors.index.json", "model-00002-of-00002.safetensors")),
    "a shard elsewhere": (7, outside, ("index.json", "../private.safetensors", "not a plain")),
    "a tensor in no shard": (7, index(lambda m: m.update(x="model-00001-of-00002.safetensors")), ("index.json", "x")),
    "a tensor not listed": (7, index(lambda m: m.pop("ln_f.bias")), ("index.json", "ln_f.bias")),
    "a name of two lines": (
        7,
        index(lambda m: m.update({"a\nerror": "model-00001-of-00002.safetensors"})),
        ("a\\nerror",),
    ),
    "the index is no map": (7, index(lambda m: m.update({"ln_f.bias": 2})), ("index.json", "weight_map")),
    "an index of pickles": (7, index(lambda m: m.update(x="evil.bin")), ("index.json", "evil.bin")),
    "a pickle, not allowed": (2, pickled, ("pytorch_model.bin", "--allow-pickle")),
    "pickles, not allowed": (2, two_pickles, ("pytorch_model-00001-of", "pytorch_model-00002-of", "--allow-pickle")),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return handmade.write(tmp_path / "source")


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs a conversion that must be refused, and leave everything as it was."""

    def run(code: int, *words: str, arguments: tuple[str | Path, ...] = (), runs: Any = main) -> Outcome:
        before = tree(tmp_path)
        given = arguments or (tmp_path / "source", "-o", tmp_path / "out")
        outcome: Outcome = runs("convert", *given, "--verify", "none")
        assert outcome.code == code, outcome.text
        assert [word for word in words if word not in outcome.text] == []
        assert "Traceback" not in outcome.text
        assert all(char.isprintable() or char == "\n" for char in outcome.text)
        assert len(outcome.err) < 4000
        assert tree(tmp_path) == before
        return outcome

    return run


def test_the_undamaged_checkpoint_is_converted(source: Path, tmp_path: Path) -> None:
    before = tree(source)
    outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none")
    assert (outcome.code, outcome.err) == (0, "")
    assert tree(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    assert "source/config.json" in tree(tmp_path / "out")


@pytest.mark.parametrize("fault", FAULTS)
def test_refused(fault: str, source: Path, refused: Callable[..., Outcome]) -> None:
    code, damage, words = FAULTS[fault]
    damage(source)
    outcome = refused(code, *words)
    assert outcome.out == ""
    assert outcome.err.startswith(f"error[{outcome.err[6:].partition(']')[0]}]: ")
    first, *others = outcome.err.splitlines()
    assert first.endswith(f"(exit {code})")
    assert all(line.startswith(("  ", "help: ")) for line in others)


@pytest.mark.parametrize("fault", FAULTS)
def test_refused_in_json(fault: str, source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    code, damage, words = FAULTS[fault]
    damage(source)
    error = refused(code, arguments=(source, "-o", tmp_path / "out", "--json")).json["error"]
    assert error["exit_code"] == code
    assert error["code"] in CODES[code]
    said = "\n".join([error["message"], *error["facts"], error["hint"] or ""])
    assert [word for word in words if word not in said.replace("\n", "\\n")] == []


def test_all_offenders_are_in_the_context(source: Path, tmp_path: Path) -> None:
    holding(misfit)(source)
    error = main("convert", source, "-o", tmp_path / "out", "--verify", "none", "--json").json["error"]
    assert error["context"]["problem_count"] == 5


def test_wrong_use_is_json_too(source: Path) -> None:
    for arguments in (("convert", "--json"), ("convert", "--jason", "--json"), ("nothing", "--json")):
        outcome = main(*arguments)
        assert outcome.json["error"] | {"message": "", "hint": None} == {
            "code": "usage", "exit_code": 2, "message": "", "facts": [], "hint": None, "context": {},
        }  # fmt: skip
        assert outcome.code == 2


def test_a_key_that_nobody_reads(source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    settings(my_note=[1, {"a": None}], **{"an\x1bother\n": 2})(source)
    refused(6, "my_note", "other", arguments=(source, "-o", tmp_path / "out", "--strict"))
    outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none")
    assert outcome.code == 0
    assert "my_note" in outcome.out
    assert "\x1b" not in outcome.out
    assert any("my_note" in note for note in json.loads((tmp_path / "out" / "lineage.json").read_text())["notes"])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "endless"])
def test_a_file_that_never_ends(
    name: str, make: Callable[[Path], object], source: Path, refused: Callable[..., Outcome]
) -> None:
    if name.endswith("index.json"):
        shard(source)
    replaced(name, make)(source)
    refused(7, name, "not a regular file", runs=command)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.canary,)


def test_a_pickle_with_a_payload(source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps({"wte.weight": Payload(canary)}, 2)
    pickled(source, pickle_of=content)
    refused(7, "pytorch_model.bin", "not run", arguments=(source, "-o", tmp_path / "out", "--allow-pickle"))
    assert not canary.exists()
    pickle.loads(content)
    assert canary.exists()  # it was a live one


def deflated(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 10**6)


def half_an_archive(path: Path) -> None:
    deflated(path)
    os.truncate(path, path.stat().st_size // 2)


def a_list_before_an_archive(path: Path) -> None:
    """zipfile finds the archive at its end; torch looks at its beginning."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    path.write_bytes(pickle.dumps([1, 2, 3]) + path.read_bytes())


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.write_text(LFS), "LFS pointer"),
        (deflated, "deflated"),
        (half_an_archive, "cut short"),
        (a_list_before_an_archive, "cut short"),
        (lambda path: path.write_bytes(pickle.dumps([1, 2, 3])), "not a plain checkpoint"),
    ],
    ids=["fifo", "endless", "LFS pointer", "deflated", "half an archive", "two formats", "a list"],
)
def test_a_pickle_that_is_none(
    make: Callable[[Path], object], word: str, source: Path, tmp_path: Path, refused: Callable[..., Outcome]
) -> None:
    (source / "model.safetensors").unlink()
    make(source / "pytorch_model.bin")
    refused(7, "pytorch_model.bin", word, arguments=(source, "-o", tmp_path / "out", "--allow-pickle"))


def test_not_enough_disk(source: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., Outcome]) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    refused(8, "not enough disk", "1,000 bytes", "need")


# where the output goes


def user_directory(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("ten years")


def other_tool(path: Path) -> None:
    user_directory(path)
    (path / "lineage.json").write_text('{"schema": "another tool", "files": {"thesis.txt": 1}}')


PLACES: Mapping[str, tuple[str, Damage, tuple[str, ...]]] = {
    "the source itself": ("source", lambda path: None, ("in the source",)),
    "inside the source": ("source/out", lambda path: None, ("in the source",)),
    "inside the source, by a link": ("link/out", lambda path: path.parent.symlink_to("source"), ("in the source",)),
    "no folder for it": ("nowhere/out", lambda path: None, ("nowhere", "does not exist")),
    "a user's directory": ("out", user_directory, ("out", "not made by lineage")),
    "another tool's directory": ("out", other_tool, ("out", "did not write")),
    "a file": ("out", lambda path: path.write_text("mine"), ("out", "not made by lineage")),
    "a link": ("out", lambda path: path.symlink_to("nowhere"), ("out", "link")),
    "a long name": ("x" * 300, lambda path: None, ("too long",)),
}


@pytest.mark.parametrize("place", PLACES)
def test_refused_place(place: str, source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    name, make, words = PLACES[place]
    make(tmp_path / name)
    refused(2, *words, arguments=(source, "-o", tmp_path / name, "--force"))


def test_an_output_stays_without_force(source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    assert main("convert", source, "-o", tmp_path / "out", "--verify", "none").code == 0
    refused(2, "out", "exists", "--force")


def test_what_is_converted_is_no_source(source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    assert main("convert", source, "-o", tmp_path / "once", "--verify", "none").code == 0
    refused(2, "once", "converted directory", "verify", arguments=(tmp_path / "once", "-o", tmp_path / "twice"))


def test_a_file_and_its_folder_are_one_source(source: Path, tmp_path: Path) -> None:
    for place in ("", "config.json", "model.safetensors"):
        out = tmp_path / f"out {place}"
        assert main("convert", source / place, "-o", out, "--verify", "none").code == 0
        assert (out / "model.safetensors").read_bytes() == (tmp_path / "out " / "model.safetensors").read_bytes()


def test_force_replaces_what_is_ours(source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    out = tmp_path / "out"
    again = (source, "-o", out, "--force")
    assert main("convert", *again, "--verify", "none").code == 0
    first = tree(out)
    holding(lambda t: t["wte.weight"].__imul__(2))(source)
    assert main("convert", *again, "--verify", "none").code == 0
    second = tree(out)
    assert first.keys() == second.keys()
    assert first["model.safetensors"] != second["model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]

    cut(source)
    refused(7, "cut short", arguments=again)  # the old output stays when the new one fails
    holding(lambda t: None)(source)
    (out / "source" / "notes.txt").write_text("the user's")
    refused(2, "source/notes.txt", arguments=again)


@pytest.mark.parametrize("exchange", [True, False])
def test_force_where_the_system_cannot_swap(
    exchange: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two renames then, and if the second fails the first is undone."""
    from lineage.checkpoint import target

    again = ("convert", source, "-o", tmp_path / "out", "--force", "--verify", "none")
    assert main(*again).code == 0
    before = tree(tmp_path / "out")
    monkeypatch.setattr(target.ctypes, "CDLL", lambda *arguments, **options: object())
    rename = os.rename
    if not exchange:

        def failing(one: Path, other: Path) -> None:
            if other == tmp_path / "out" and one.name == "new":
                raise OSError(5, "Input/output error", str(one))
            rename(one, other)

        monkeypatch.setattr(os, "rename", failing)
    holding(lambda t: t["wte.weight"].__imul__(2))(source)
    outcome = main(*again)
    assert outcome.code == (0 if exchange else 2)
    assert (tree(tmp_path / "out") == before) is not exchange
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_what_lies_in_the_way_is_not_removed(source: Path, tmp_path: Path, refused: Callable[..., Outcome]) -> None:
    user_directory(tmp_path / ".out.partial")
    refused(2, ".out.partial", "not made by lineage")


def test_an_output_that_appears_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lineage.checkpoint import writer

    write_weights = writer.write_weights

    def slow(*arguments: Any) -> Any:
        user_directory(tmp_path / "out")
        return write_weights(*arguments)

    monkeypatch.setattr(writer, "write_weights", slow)
    outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none", "--force")
    assert outcome.code == 2
    assert tree(tmp_path / "out").keys() == {"thesis.txt"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


@pytest.mark.parametrize("how", ["shorter", "other numbers"])
def test_a_source_that_changes_while_it_is_read(
    how: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lineage.checkpoint import writer

    write_weights = writer.write_weights

    def disturbed(*arguments: Any) -> Any:
        cut(source) if how == "shorter" else holding(lambda t: t["wpe.weight"].__imul__(2))(source)
        return write_weights(*arguments)

    monkeypatch.setattr(writer, "write_weights", disturbed)
    outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none")
    assert (outcome.code, outcome.out) == (7, "")
    assert "while it was read" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


# where the model is


@pytest.mark.parametrize(
    ("model", "code", "words"),
    [
        ("./nothing", 4, ("./nothing", "no such file")),
        ("x" * 5000, 2, ("too long",)),
        ("a//b", 4, ("a//b",)),
        ("notes.txt", 2, ("notes.txt", "config.json")),
        ("org/name@one", 2, ("one", "two")),
    ],
)
def test_refused_source(
    model: str, code: int, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    revision = ("--revision", "two") if "@" in model else ()
    refused(code, *words, arguments=(model, "-o", "out", *revision))


def test_no_network(tmp_path: Path) -> None:
    """Nobody listens on port 1."""
    environment = handmade.environment(HF_ENDPOINT="http://127.0.0.1:1", HF_HOME=str(tmp_path / "cache"))
    outcome = command("convert", "org/name", "-o", tmp_path / "out", env=environment, cwd=tmp_path)
    assert outcome.code == 4
    assert "error[network]" in outcome.err
    assert "org/name" in outcome.err
    assert "Traceback" not in outcome.text
    assert not (tmp_path / "out").exists()
