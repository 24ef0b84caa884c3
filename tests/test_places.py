"""Where tensors come to lie: in pages of memory as in their source, where that is worth a page of blanks."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import lineage
from lineage.checkpoint.safetensors import PAGE, read_header, start_of
from lineage.checkpoint.weights import open_weights
from lineage.modules.loading import _Mapped
from lineage.parity.tiny import write_tiny


@pytest.mark.parametrize("place", range(0, PAGE, 8 * 37))
@pytest.mark.parametrize("name", ["x", "a name that is longer by far than one of a single letter" * 70])
def test_data_begin_where_they_are_asked_to(place: int, name: str) -> None:
    start = start_of({name: ("F32", (3,))}, {"format": "pt"}, place)
    assert len(start) % PAGE == place
    assert int.from_bytes(start[:8], "little") == len(start) - 8
    assert start.rstrip(b" ").endswith(b"}")
    assert len(start) - len(start_of({name: ("F32", (3,))}, {"format": "pt"})) < PAGE


@pytest.mark.parametrize("family", ["llama", "mixtral", "bert"])
def test_large_ones_lie_as_they_lay(family: str, tmp_path: Path) -> None:
    source = write_tiny(family, tmp_path / "source", vocab=60_000)
    lineage.convert(str(source), tmp_path / "out", verify=False)
    old, new = (read_header(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    largest, ours = (max(header.values(), key=lambda one: one.size) for header in (old, new))
    assert largest.start % PAGE == ours.start % PAGE
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == new.keys()
    lineage.export(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_whole_pages_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What file systems share where they can: it begins and ends with a page, in both files."""
    source, whole, kernel = write_tiny("llama", tmp_path / "source", vocab=60_000), [], os.copy_file_range

    def copy(from_: int, to: int, count: int, start: int, at: int) -> int:
        whole.append((count, start % PAGE == at % PAGE == count % PAGE == 0))
        return kernel(from_, to, count, start, at)

    monkeypatch.setattr(os, "copy_file_range", copy)
    lineage.convert(str(source), tmp_path / "out", verify=False)
    assert sum(count for count, pages in whole if pages) > 0.98 * (source / "model.safetensors").stat().st_size


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system whose files can share blocks."""
    place, image = tmp_path / "sharing", tmp_path / "image"
    if not shutil.which("mkfs.xfs") or os.geteuid():
        pytest.skip("no mkfs.xfs, or not root: no file system that shares blocks")
    with image.open("wb") as file:
        file.truncate(1 << 30)
    subprocess.run(["mkfs.xfs", "-q", image], check=True)
    place.mkdir()
    if subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted")
    yield place
    subprocess.run(["umount", place], check=True)


def test_blocks_are_shared_where_files_can(sharing: Path) -> None:
    source = write_tiny("mixtral", sharing / "source", vocab=500_000)
    os.sync()
    before, size = shutil.disk_usage(sharing).used, (source / "model.safetensors").stat().st_size
    lineage.convert(str(source), sharing / "out", verify=False, hashes=True)
    os.sync()
    assert size > 30_000_000
    assert shutil.disk_usage(sharing).used - before < size / 10
    assert lineage.export(sharing / "out", check=True).same


def test_small_ones_take_no_blanks(tmp_path: Path) -> None:
    lineage.convert(str(write_tiny("llama", tmp_path / "source")), tmp_path / "out", verify=False)
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = raw[8 : 8 + int.from_bytes(raw[:8], "little")]
    assert len(header) - len(header.rstrip(b" ")) < 8


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc: memory cannot be told")
def test_what_was_read_can_be_forgotten(tmp_path: Path) -> None:
    save_file({"a": torch.arange(16_000_000, dtype=torch.float32), "b": torch.ones(3)}, tmp_path / "w.safetensors")
    elements = _Mapped(open_weights(tmp_path, False, tmp_path / "w.safetensors"))
    before = resident()
    total = np.add.reduce(elements("a"), dtype=np.uint64)
    assert resident() - before > 60_000_000
    elements.forget("a", "b")
    assert resident() - before < 4_000_000
    assert np.add.reduce(elements("a"), dtype=np.uint64) == total
    assert elements("b").tolist() == [0x3F800000] * 3
