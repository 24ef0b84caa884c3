"""From the hub to a directory: the real hub library against a hub of our own, with every way in which it can say no."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import fakehub, handmade
from tests.fakehub import Hub, Repository, serving
from tests.handmade import Outcome, command, config, safetensors, tensors

OLD, NEW = "1" * 40, "2" * 40
NOBODY = "http://127.0.0.1:1"
TRAVELS = {
    "config.json": json.dumps(config()).encode(),
    "README.md": b"# A model\n",
    "LICENSE.txt": b"free\n",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"auto_map": {"AutoTokenizer": ["tokenizer_code.Evil", null]}}',
    "merges.txt": b"a b\n",
}
STAYS = {
    "modeling_evil.py": b"raise SystemExit",
    "tokenizer_code.py": b"raise SystemExit",
    "vocab.pkl": b"cposix\nsystem\n",
    "tokenizer/nested.json": b"{}",
    "pytorch_model.bin": b"not read",
    "model.fp16.safetensors": b"not read",
    "tf_model.h5": b"not read",
    "onnx/model.onnx": b"not read",
}
SINGLE = {"model.safetensors": safetensors(tensors())}


def sharded() -> dict[str, bytes]:
    given, files = tensors(), {}
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(given)}
    for place in set(places.values()):
        files[place] = safetensors({name: given[name] for name in given if places[name] == place})
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()}


def one(files: Mapping[str, bytes], **options: Any) -> Repository:
    return Repository({NEW: {**TRAVELS, **files}}, {"main": NEW}, **options)


@pytest.fixture(scope="module")
def served() -> Iterator[Hub]:
    strange = {**TRAVELS, "config.json": json.dumps(config(model_type="gpt99")).encode()}
    moved = json.dumps(config(layer_norm_epsilon=0.5)).encode()
    repositories = {
        "org/model": Repository(
            {OLD: {**TRAVELS, **SINGLE, **STAYS, "config.json": moved}, NEW: {**TRAVELS, **SINGLE, **STAYS}},
            {"main": NEW, "v1": OLD, "refs/pr/1": OLD},
        ),
        "org/shards": one({**sharded(), **STAYS}),
        "org/gated": one(SINGLE, gated=True),
        "org/private": one(SINGLE, private=True),
        "org/strange": Repository({NEW: {**strange, **SINGLE}}, {"main": NEW}),
        "org/pickle": one({"pytorch_model.bin": b"a pickle"}),
        "org/empty": one({}),
        "org/bare": Repository({NEW: SINGLE}, {"main": NEW}),
        "org/lost-shard": one({name: data for name, data in sharded().items() if "00001-of" not in name}),
        "org/climbing": one({"model.safetensors.index.json": b'{"weight_map": {"wte.weight": "../../x.safetensors"}}'}),
    }
    with serving(Hub(repositories)) as hub:
        yield hub


@pytest.fixture
def hub(served: Hub) -> Iterator[Hub]:
    served.asked.clear()
    yield served
    served.down = None


Convert = Callable[..., Outcome]


@pytest.fixture
def convert(hub: Hub, tmp_path: Path) -> Convert:
    """Runs `lineage convert MODEL` in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()

    def run(model: str, *arguments: str | Path, **changes: str) -> Outcome:
        environment = handmade.environment(**({"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")} | changes))
        return command("convert", model, "--verify", "none", *arguments, cwd=folder, env=environment)

    return run


def manifest(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "lineage.json").read_text())


def refused(outcome: Outcome, code: int, kind: str, *words: str) -> None:
    assert outcome.code == code, outcome.text
    assert outcome.err.startswith(f"error[{kind}]: ")
    assert [word for word in words if word not in outcome.err] == []
    assert "Traceback" not in outcome.text


# what is fetched


def test_a_model_of_the_hub(convert: Convert, hub: Hub, tmp_path: Path) -> None:
    outcome = convert("org/model")
    assert (outcome.code, outcome.err) == (0, "")
    out = tmp_path / "work" / "model-lineage"
    kept = {path.name: path.read_bytes() for path in (out / "source").iterdir()}
    start = kept.pop("model.safetensors.header")
    assert start == safetensors(tensors())[: len(start)]
    assert kept == TRAVELS
    record = manifest(out)["source"]
    assert (record["origin"], record["revision"]) == ("hf://org/model", NEW)
    assert record["files"].keys() == TRAVELS.keys() | {"model.safetensors"}
    assert 'base_model: "org/model"' in (out / "README.md").read_text()
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["model-lineage"]

    fetched = hub.files()
    assert fetched[0] == "config.json"
    assert sorted(fetched) == sorted(record["files"])  # each once, and nothing else
    revisions = {path.split("/")[4] for _, path, _ in hub.asked if path.endswith("model.safetensors")}
    assert revisions == {NEW}  # all but the config by the commit, wherever the branch has moved since


@pytest.mark.parametrize(
    ("spelled", "option"),
    [("org/model@v1", None), (f"hf://org/model@{OLD}", None), ("org/model@refs/pr/1", None), ("org/model", "v1")],
)
def test_a_revision(spelled: str, option: str | None, convert: Convert, tmp_path: Path) -> None:
    outcome = convert(spelled, "-o", "out", *(("--revision", option) if option else ()))
    assert outcome.code == 0, outcome.err
    record = manifest(tmp_path / "work" / "out")
    assert record["source"]["revision"] == OLD
    assert record["arguments"]["eps"] == 0.5


def test_shards(convert: Convert, hub: Hub, tmp_path: Path) -> None:
    assert convert("org/shards", "-o", "shards").code == 0
    assert convert("org/model", "-o", "single").code == 0
    assert {name for name in hub.files() if name.endswith((".safetensors", ".json"))} >= sharded().keys()
    assert not set(hub.files()) & STAYS.keys()
    whole, parts = (manifest(tmp_path / "work" / name)["tensors"] for name in ("single", "shards"))
    assert whole == parts


def test_a_refused_model_costs_its_config(convert: Convert, hub: Hub) -> None:
    refused(convert("org/strange"), 6, "architecture", "gpt99")
    assert hub.files() == ["config.json"]


def test_a_place_that_is_taken_costs_the_config(convert: Convert, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "work" / "model-lineage").mkdir()
    (tmp_path / "work" / "model-lineage" / "thesis.txt").write_text("ten years")
    refused(convert("org/model"), 2, "usage", "model-lineage")
    assert hub.files() == ["config.json"]


def test_pickles_are_not_even_fetched(convert: Convert, hub: Hub) -> None:
    refused(convert("org/pickle"), 2, "usage", "pytorch_model.bin", "--allow-pickle")
    assert hub.files() == ["config.json"]
    refused(convert("org/pickle", "--allow-pickle"), 7, "file", "pytorch_model.bin")
    assert "pytorch_model.bin" in hub.files()


# what is refused


@pytest.mark.parametrize(
    ("model", "code", "kind", "words"),
    [
        ("org/gated", 5, "gated", ("org/gated", "token  none")),
        ("org/private", 5, "auth", ("org/private", "--token")),
        ("org/nothing", 4, "not_found", ("org/nothing",)),
        ("org/model@v9", 4, "not_found", ("org/model", "v9")),
        ("org/bare", 4, "not_found", ("org/bare@main", "config.json")),
        ("org/empty", 4, "not_found", ("org/empty", "model.safetensors")),
        ("org/lost-shard", 7, "file", ("model-00001-of-00002.safetensors",)),
        ("org/climbing", 7, "file", ("../../x.safetensors",)),
        ("org/--name--", 2, "usage", ("org/--name--",)),
    ],
)
def test_refused(
    model: str, code: int, kind: str, words: tuple[str, ...], convert: Convert, hub: Hub, tmp_path: Path
) -> None:
    refused(convert(model), code, kind, *words)
    assert not any(name.endswith((".safetensors", ".bin")) for name in hub.files() if "lost" not in model)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("model", ["org/gated", "org/private"])
def test_a_token_opens(model: str, convert: Convert, hub: Hub) -> None:
    assert convert(model, "-o", "one", HF_TOKEN=fakehub.TOKEN).code == 0
    assert convert(model, "-o", "two", "--token", fakehub.TOKEN).code == 0
    assert {token for _, path, token in hub.asked if "/org/" in path} == {f"Bearer {fakehub.TOKEN}"}


@pytest.mark.parametrize("token", ["hf_wrong", "hf_two\nlines"])
def test_a_token_that_does_not(token: str, convert: Convert) -> None:
    outcome = convert("org/private", "--token", token)
    assert outcome.code in (4, 5)
    assert token[:6] not in outcome.text
    refused(outcome, outcome.code, "auth" if outcome.code == 5 else "network", "org/private")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_hub_that_fails(status: int, convert: Convert, hub: Hub) -> None:
    hub.down = status
    refused(convert("org/model"), 4, "network", "org/model", str(status))


def test_a_hub_that_is_none(convert: Convert, hub: Hub) -> None:
    hub.down = 200
    refused(convert("org/model"), 4, "network", "org/model", "HF_ENDPOINT")


# without a network


def test_what_is_cached_needs_no_hub(convert: Convert, hub: Hub, tmp_path: Path) -> None:
    for model in ("org/model", "org/shards"):
        assert convert(model, "-o", "first").code == 0
        asked = len(hub.asked)
        assert convert(model, "-o", "offline", "--offline").code == 0
        assert convert(model, "-o", "variable", HF_HUB_OFFLINE="1").code == 0
        assert len(hub.asked) == asked
        assert convert(model, "-o", "unreachable", HF_ENDPOINT=NOBODY).code == 0
        first, *others = (
            manifest(tmp_path / "work" / name)["source"] for name in ("first", "offline", "variable", "unreachable")
        )
        assert all(other == first for other in others)
        for name in ("first", "offline", "variable", "unreachable"):
            (tmp_path / "work" / name).rename(tmp_path / f"{model[4:]}-{name}")


@pytest.mark.parametrize("how", [{"HF_HUB_OFFLINE": "1"}, {}], ids=["variable", "option"])
def test_what_is_not_cached(how: dict[str, str], convert: Convert, hub: Hub, tmp_path: Path) -> None:
    option = () if how else ("--offline",)
    refused(convert("org/model", *option, **how), 4, "offline", "org/model@main")
    assert hub.asked == []
    assert list((tmp_path / "work").iterdir()) == []


def test_half_a_cache(convert: Convert, hub: Hub, tmp_path: Path) -> None:
    """The config is there, and not all weights: that is no damaged file but a missing network."""
    assert convert("org/shards", "-o", "out").code == 0
    (snapshot,) = (tmp_path / "home" / "hub" / "models--org--shards" / "snapshots").iterdir()
    for name in ("model-00002-of-00002.safetensors", "model.safetensors.index.json"):
        (snapshot / name).unlink()
        refused(convert("org/shards", "-o", "again", "--offline"), 4, "offline", "org/shards")
        refused(convert("org/shards", "-o", "again", HF_ENDPOINT=NOBODY), 4, "network", "org/shards")
    assert convert("org/shards", "-o", "again").code == 0


def test_no_connection(convert: Convert, hub: Hub) -> None:
    refused(convert("org/model", HF_ENDPOINT=NOBODY), 4, "network", "org/model", "HF_ENDPOINT")
    error = convert("org/model", "--json", HF_ENDPOINT=NOBODY).json["error"]
    assert (error["code"], error["exit_code"]) == ("network", 4)
    assert hub.asked == []


def test_the_cache_is_where_it_is_said_to_be(convert: Convert, tmp_path: Path) -> None:
    assert convert("org/model", "-o", "out", "--cache-dir", tmp_path / "elsewhere").code == 0
    assert (tmp_path / "elsewhere" / "models--org--model").is_dir()
    assert not (tmp_path / "home" / "hub" / "models--org--model").exists()
    refused(convert("org/model", "-o", "again", "--offline"), 4, "offline")
    assert convert("org/model", "-o", "again", "--offline", "--cache-dir", tmp_path / "elsewhere").code == 0


def test_a_cache_that_cannot_be_written(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = convert("org/model", "--cache-dir", tmp_path / "file")
    refused(outcome, 2, "usage", "cache", str(tmp_path / "file"))
