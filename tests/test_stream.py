"""`convert --stream`: a hub's files read in place, against a plain conversion of the same, and how it can break."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lineage
from lineage.parity.tiny import write_tiny
from tests import encodings, fakehub, handmade
from tests.fakehub import Hub, Part, Repository, serving
from tests.handmade import Outcome, environment, finish, main, start, tensors, tree
from tests.test_resume import make
from tests.test_survival import names

COMMIT = "2" * 40
SIZES = {"layers": 2, "width": 256, "vocab": 900, "context": 32}
FAMILIES = ("llama", "mixtral", "gpt_neox", "falcon", "t5", "dbrx")
SPARE = 1.05  # bytes fetched, of those that the files have


def repository(folder: Path, **options: Any) -> Repository:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Repository({COMMIT: {**files, "tokenizer.json": b"{}"}}, {"main": COMMIT}, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints by name, as they lie on a disk."""
    home = tmp_path_factory.mktemp("source")
    handmade.write(home / "gpt2", handmade.config(**SIZES), tensors(**SIZES))
    make(home / "shards")
    for family in FAMILIES:
        write_tiny(family, home / family)
    encodings.fp8("deepseek_v3", home / "fp8")
    encodings.gpt_oss(home / "mxfp4")
    return {path.name: path for path in home.iterdir()}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Iterator[Hub]:
    repositories = {f"org/{name}": repository(folder) for name, folder in folders.items()}
    repositories["org/gated"] = repository(folders["gpt2"], gated=True)
    lost = repository(folders["shards"])
    del lost.commits[COMMIT]["model-00002-of-00005.safetensors"]
    repositories["org/lost"] = lost
    repositories["org/pickle"] = Repository(
        {COMMIT: {"config.json": json.dumps(handmade.config()).encode(), "pytorch_model.bin": b"a pickle"}},
        {"main": COMMIT},
    )
    with serving(Hub(repositories)) as hub:
        yield hub


@pytest.fixture
def hub(served: Hub) -> Iterator[Hub]:
    yield served
    served.asked.clear()
    served.sent.clear()
    served.wrong, served.elsewhere = None, False


Stream = Callable[..., Outcome]


@pytest.fixture
def around(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return environment(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"), HF_HUB_DISABLE_PROGRESS_BARS="1")


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process too knows no other hub: starting one takes longer than most of what is tried."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    for name in os.environ.keys() - environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.chdir(tmp_path)
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    yield
    if shown:
        enable_progress_bars()


@pytest.fixture
def stream(here: None, tmp_path: Path) -> Stream:
    """Runs `lineage convert org/NAME --stream -o out`."""

    def run(name: str, *more: str | Path) -> Outcome:
        return main("convert", f"org/{name}", "-o", tmp_path / "out", "--verify", "none", "--stream", *more)

    return run


def weights(folder: Path) -> dict[str, str]:
    """What does not hang on where the source was."""
    return {name: what for name, what in tree(folder).items() if name not in ("lineage.json", "README.md")}


def plainly(source: Path, box: Path) -> dict[str, str]:
    shutil.copytree(source, box / "source")
    (box / "source" / "tokenizer.json").write_text("{}")
    assert main("convert", box / "source", "-o", box / "plain", "--verify", "none").code == 0
    return weights(box / "plain")


def large(hub: Hub) -> dict[str, int]:
    return {name: count for name, count in hub.sent.items() if name.endswith(".safetensors")}


def refused(outcome: Outcome, code: int, kind: str, *words: str) -> None:
    assert outcome.code == code, outcome.text
    assert f"error[{kind}]: " in outcome.err
    assert [word for word in words if word not in outcome.err] == []
    assert "Traceback" not in outcome.text


@pytest.mark.parametrize(("name", "elsewhere"), [("gpt2", True), ("shards", False)])
def test_the_same_bytes_and_none_twice(
    name: str, elsewhere: bool, stream: Stream, hub: Hub, folders: dict[str, Path], tmp_path: Path
) -> None:
    hub.elsewhere = elsewhere
    outcome = stream(name)
    assert (outcome.code, outcome.err) == (0, "")
    assert weights(tmp_path / "out") == plainly(folders[name], tmp_path)
    files = {path.name: path.stat().st_size for path in folders[name].glob("*.safetensors")}
    sent = large(hub)
    assert sent.keys() == files.keys()
    assert all(size <= sent[file] <= SPARE * size for file, size in files.items())
    asked = sum(not path.startswith("/elsewhere") for m, path, _ in hub.asked if path.endswith(".safetensors"))
    assert asked <= len(files) * 4  # its size and tag; the header's length; the header; the data, here in one piece
    kept = [path.name for path in (tmp_path / "home").rglob("*") if path.suffix == ".safetensors"]
    assert kept == []
    record = json.loads((tmp_path / "out" / "lineage.json").read_text())
    told = {file: entry for file, entry in record["source"]["files"].items() if file in files}
    whole = tree(folders[name])
    assert told == {file: {"size": size, "sha256": whole[file]} for file, size in files.items()}  # by the hub's tag
    assert any("its word" in note for note in record["notes"])


@pytest.mark.usefixtures("here")
def test_every_operation(hub: Hub, folders: dict[str, Path], tmp_path: Path) -> None:
    """Stacked, fused, cut, turned, decoded."""
    names = [*FAMILIES, "fp8", "mxfp4"]
    for name in names:
        lineage.convert(f"org/{name}", tmp_path / name, verify=False, stream=True)
    for name in names:
        (tmp_path / f"box-{name}").mkdir()
        assert weights(tmp_path / name) == plainly(folders[name], tmp_path / f"box-{name}"), name
    size = sum((folders[name] / "model.safetensors").stat().st_size for name in names)
    assert large(hub)["model.safetensors"] <= SPARE * size


def test_a_dry_run_reads_headers(hub: Hub, here: None, folders: dict[str, Path], tmp_path: Path) -> None:
    found = main("convert", "org/shards", "--dry-run", "--json")
    assert found.code == 0, found.text
    files = folders["shards"].glob("*.safetensors")
    starts = {path.name: 8 + int.from_bytes(path.read_bytes()[:8], "little") for path in files}
    assert large(hub) == starts
    assert names(tmp_path) == ["home"]
    sizes = sum(path.stat().st_size for path in folders["shards"].glob("*.safetensors"))
    assert found.json["preview"]["fetches"] == sizes


def test_compared_with_what_the_output_gives_back(
    hub: Hub, here: None, tmp_path: Path, folders: dict[str, Path]
) -> None:
    found = main("convert", "org/llama", "-o", "out", "--stream")
    assert (found.code, found.err) == (0, ""), found.text
    assert found.out.endswith("verified out/\n")
    assert large(hub)["model.safetensors"] <= SPARE * (folders["llama"] / "model.safetensors").stat().st_size
    checked = main("verify", tmp_path / "out", "--level", "bytes")  # the hub's word among what is checked
    assert checked.code == 0, checked.text


def test_the_hubs_word_is_held_against_what_came(stream: Stream, hub: Hub, tmp_path: Path) -> None:
    def flip(one: Part) -> None:
        if one.first > 8:
            one.body = one.body[:-1] + bytes([one.body[-1] ^ 1])

    hub.wrong = flip
    refused(stream("llama", "--hash"), 7, "checksum", "model.safetensors")
    assert not (tmp_path / "out").exists()


def test_taken_up_where_it_broke(stream: Stream, hub: Hub, folders: dict[str, Path], tmp_path: Path) -> None:
    """The line goes dead amid the data, then the server is out of order; what came is not asked for again."""
    firsts: list[int] = []

    def drop(one: Part) -> None:
        if len(one.body) > 100_000 and len(firsts) < 2:
            one.cut = 50_000
            firsts.append(one.first)
        elif len(firsts) == 2:
            firsts.append(one.first)
            one.status, one.body = 503, b""

    hub.wrong = drop
    outcome = stream("gpt2")
    assert outcome.code == 0, outcome.err
    assert firsts[1:] == [firsts[0] + 50_000, firsts[0] + 100_000]
    assert weights(tmp_path / "out") == plainly(folders["gpt2"], tmp_path)
    assert large(hub)["model.safetensors"] <= SPARE * (folders["gpt2"] / "model.safetensors").stat().st_size


def shorter(one: Part) -> None:
    one.headers["Content-Range"] = one.headers["Content-Range"].rpartition("/")[0] + "/77"


def another(one: Part) -> None:
    one.headers["ETag"] = '"another"'


def whole(one: Part) -> None:
    one.status = 200
    del one.headers["Content-Range"]


def gone(one: Part) -> None:
    one.status, one.body, one.headers = 404, b"", {"X-Error-Code": "EntryNotFound"}


def closed(one: Part) -> None:
    one.status, one.body, one.headers = 403, b"", {"X-Error-Code": "GatedRepo"}


def beyond(one: Part) -> None:
    one.status, one.body, one.headers = 416, b"", {"Content-Range": "bytes */5"}


@pytest.mark.parametrize(
    ("what", "code", "kind", "words"),
    [
        (shorter, 7, "file", ("model.safetensors", "changed", "/77")),
        (another, 7, "file", ("model.safetensors", "changed", "another")),
        (beyond, 7, "file", ("model.safetensors", "changed")),
        (whole, 4, "network", ("model.safetensors", "part of a file", "without --stream")),
        (gone, 4, "not_found", ("org/gpt2",)),
        (closed, 5, "gated", ("org/gpt2",)),
    ],
)
def test_changed_between_header_and_data(
    what: Callable[[Part], None], code: int, kind: str, words: tuple[str, ...], hub: Hub, stream: Stream, tmp_path: Path
) -> None:
    hub.wrong = lambda one: what(one) if one.first > 8 else None
    refused(stream("gpt2"), code, kind, *words)
    assert names(tmp_path) == ["home"]


@pytest.mark.parametrize(
    ("name", "code", "kind", "words"),
    [
        ("gated", 5, "gated", ("org/gated", "token  none")),
        ("lost", 4, "not_found", ("model-00002-of-00005.safetensors",)),
        ("pickle", 2, "usage", ("--allow-pickle",)),
        ("nothing", 4, "not_found", ("org/nothing",)),
    ],
)
def test_refused(name: str, code: int, kind: str, words: tuple[str, ...], stream: Stream, hub: Hub) -> None:
    refused(stream(name), code, kind, *words)
    assert sum(large(hub).values()) < 20_000  # headers, of those there are


def test_a_pickle_has_no_parts(stream: Stream) -> None:
    refused(stream("pickle", "--allow-pickle"), 2, "usage", "org/pickle", "--stream")


def test_a_token_opens(stream: Stream, hub: Hub) -> None:
    hub.elsewhere = True  # where it must not be sent
    assert stream("gated", "--token", fakehub.TOKEN).code == 0


def test_what_is_here_is_not_streamed(folders: dict[str, Path], tmp_path: Path) -> None:
    refused(main("convert", folders["gpt2"], "-o", tmp_path / "out", "--stream"), 2, "usage", "--stream")


def test_what_is_cached_is_read_there(stream: Stream, hub: Hub) -> None:
    assert main("convert", "org/gpt2", "--verify", "none", "-o", "one").code == 0
    hub.sent.clear()
    assert stream("gpt2").code == 0
    assert large(hub) == {}


@pytest.mark.parametrize(("share", "would_do"), [(1.5, True), (0.5, False)])
def test_room_is_looked_for_before_anything_is_fetched(
    share: float, would_do: bool, hub: Hub, here: None, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched and what is made of it lie on one disk here; --stream is named where there is room for one."""
    size = sum(path.stat().st_size for path in folders["shards"].glob("*.safetensors"))
    free = shutil.disk_usage("/")._replace(free=int(share * size))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    outcome = main("convert", "org/shards", "-o", "out", "--verify", "none")
    refused(outcome, 8, "resources", "not enough disk", "bytes to fetch, and about as many to write")
    assert ("--stream" in outcome.err) == would_do
    assert large(hub) == {}


def finished(marker: Path) -> int:
    """How many files a journal tells of."""
    return marker.read_bytes().count(b'"file"') if marker.is_file() else 0


def test_killed_and_resumed(
    stream: Stream, hub: Hub, around: dict[str, str], folders: dict[str, Path], tmp_path: Path
) -> None:
    """What is finished is not fetched again; of another commit's it would be."""
    last = "model-00004-of-00005.safetensors"

    released = threading.Event()

    def wait(one: Part) -> None:
        if one.file == last and one.first > 8:
            released.wait(60)

    arguments = ("convert", "org/shards", "-o", tmp_path / "out", "--verify", "none", "--stream")
    hub.wrong = wait
    process = start(*arguments, cwd=tmp_path, env=around)
    marker = tmp_path / ".out.partial" / ".lineage-partial"
    end = time.monotonic() + 50
    while process.poll() is None and time.monotonic() < end and finished(marker) < 2:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    outcome, done = finish(process), finished(marker)
    released.set()
    assert done >= 2, outcome.text
    hub.wrong = None
    hub.sent.clear()
    assert stream("shards").code == 0
    sizes = {path.name: path.stat().st_size for path in folders["shards"].glob("*.safetensors")}
    again = [name for name, count in large(hub).items() if count > 0.5 * sizes[name]]
    assert len(again) == len(sizes) - done
    assert weights(tmp_path / "out") == plainly(folders["shards"], tmp_path)
