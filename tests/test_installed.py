"""What is installed, against importlib.metadata, which reads every file."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from lineage import installed


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (installed._looked_up, installed._entries, installed._texts):
        monkeypatch.setattr(installed, cached.__name__, cached.__wrapped__)


def test_versions_as_installers_wrote_them() -> None:
    for package in metadata.distributions():
        name = package.metadata["Name"]
        assert installed.version(name) == metadata.version(name)


@pytest.mark.parametrize("name", ["huggingface-hub", "huggingface_hub", "Huggingface.Hub"])
def test_spelling_does_not_matter(name: str) -> None:
    assert installed.version(name) == metadata.version("huggingface-hub")


def test_what_is_not_there_has_no_version() -> None:
    assert installed.version("no-such-package") is None


def package(place: Path, folder: str, entries: str) -> None:
    (place / folder).mkdir(parents=True)
    (place / folder / "entry_points.txt").write_text(entries)
    for name in ("METADATA", "PKG-INFO"):
        (place / folder / name).write_text("Metadata-Version: 2.1\nName: a-guest\nVersion: 1.2.post1\n")


ENTRY = "[lineage.specs]\nguest = json.decoder\n"


@pytest.mark.parametrize("folder", ["a_guest-1.2.post1.dist-info", "a_guest.egg-info"])
def test_found_in_folders_new_and_old(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, folder, ENTRY)
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.version("a-guest") == "1.2.post1"
    assert [(entry.name, entry.value) for entry in installed.offered("lineage.specs")] == [("guest", "json.decoder")]
    assert not list(installed.offered("lineage.converters"))


def test_the_first_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path / "one", "a_guest-1.0.dist-info", "")
    package(tmp_path / "two", "a_guest-2.0.dist-info", ENTRY)
    monkeypatch.syspath_prepend(tmp_path / "two")
    monkeypatch.syspath_prepend(tmp_path / "one")
    assert installed.version("a-guest") == "1.0"
    assert [*installed.offered("lineage.specs"), *metadata.entry_points(group="lineage.specs")] == []


def test_an_archive_is_asked_the_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "guests.zip", "w") as archive:
        archive.writestr("a_guest-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-guest\nVersion: 1.2\n")
        archive.writestr("a_guest-1.2.dist-info/entry_points.txt", ENTRY)
    monkeypatch.syspath_prepend(tmp_path / "guests.zip")
    assert installed.version("a_guest") == "1.2"
    assert [entry.name for entry in installed.offered("lineage.specs")] == ["guest"]


def test_places_that_are_not_there_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "gone"), *sys.path])
    assert installed.version("torch")
    assert not list(installed.offered("lineage.specs"))


def test_a_finder_of_its_own_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "a_guest-1.2.post1.dist-info", ENTRY)

    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

        @staticmethod
        def find_distributions(context: metadata.DistributionFinder.Context) -> list[metadata.Distribution]:
            mine = context.name in (None, "a-guest")
            return [metadata.PathDistribution(tmp_path / "a_guest-1.2.post1.dist-info")] if mine else []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert installed.version("a-guest") == "1.2.post1"
    assert [entry.name for entry in installed.offered("lineage.specs")] == ["guest"]
