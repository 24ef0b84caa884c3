"""An interrupted conversion goes on from its finished files, and ends in the same bytes; what it cannot use is gone.

The short form of "killed at 200 random moments" (SIGKILL_MOMENTS=200 makes it long): see docs/decisions/011.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, cast

import pytest

import lineage
import lineage.checkpoint.pickles
from lineage.checkpoint import files, journal, moving, target
from lineage.errors import FileDamaged
from tests import handmade
from tests.handmade import SLOWLY, environment, finish, main, start, tree
from tests.test_survival import MARKER, PARTIAL, disk, mounted, names, pages, until  # noqa: F401  (disk: a fixture)

SIZES = {"layers": 6, "width": 64, "vocab": 4000, "context": 16}
FILES = 5
MOMENTS = int(os.environ.get("SIGKILL_MOMENTS", "12"))
Tree = dict[str, str]


def make(directory: Path, factor: float = 1) -> Path:
    """A checkpoint in several files, without a word of the others in each."""
    given = {name: array * array.dtype.type(factor) for name, array in handmade.tensors(**SIZES).items()}
    handmade.write(directory, handmade.config(**SIZES), given)
    (directory / "model.safetensors").unlink()
    places = {name: f"model-{1 + i * FILES // len(given):05}-of-{FILES:05}.safetensors" for i, name in enumerate(given)}
    for file in set(places.values()):
        held = {name: array for name, array in given.items() if places[name] == file}
        (directory / file).write_bytes(handmade.safetensors(held))
    handmade.write_index(directory, places)
    return directory


def arguments(source: Path, box: Path, *more: str) -> tuple[str | Path, ...]:
    return ("convert", source, "-o", box / "out", "--verify", "none", *more)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("resume") / "source")


@pytest.fixture(scope="module")
def whole(source: Path) -> Tree:
    """What an undisturbed run makes of it."""
    assert main(*arguments(source, source.parent)).code == 0
    return tree(source.parent / "out")


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished waits even if it is as little as here."""
    monkeypatch.setattr(journal, "LEAST", 1)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


def finished(box: Path) -> list[str]:
    """The files that the journal of a partial output calls finished."""
    try:
        lines = (box / PARTIAL / MARKER).read_bytes().splitlines()[1:]
    except OSError:
        return []
    return [json.loads(line)["file"] for line in lines if line.endswith(b"}")]


def stamp(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def inodes(box: Path, files: list[str]) -> dict[str, int]:
    return {file: (box / PARTIAL / "new" / file).stat().st_ino for file in files}


Break = Callable[..., None]


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Break:
    """From some file on, the disk takes nothing more."""

    def after(count: int, code: int = errno.ENOSPC) -> None:
        seen: list[str] = []
        begin = os.open

        def opening(path: object, flags: int, *mode: int, **more: int) -> int:
            if flags & os.O_EXCL and str(path).endswith(".safetensors"):
                seen.append(str(path))
                if len(seen) > count:
                    raise OSError(code, os.strerror(code), str(path))
            return begin(path, flags, *mode, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(moving, "WORKERS", 1)
        monkeypatch.setattr(os, "open", opening)

    return after


def interrupted(source: Path, box: Path, count: int, full_after: Break, *more: str) -> list[str]:
    """A run that finds the disk full after some files. Returns what it left finished."""
    with pytest.MonkeyPatch.context():
        full_after(count)
        outcome = main(*arguments(source, box, *more))
    assert outcome.code == 8, outcome.text
    assert outcome.err.startswith("error[resources]: the disk is full")
    return finished(box)


def test_goes_on_from_finished_files(source: Path, whole: Tree, box: Path, full_after: Break, monkeypatch) -> None:
    left = interrupted(source, box, 2, full_after)
    assert len(left) == 2
    assert sorted(path.name for path in (box / PARTIAL / "new").iterdir()) == sorted(left)
    before = inodes(box, left)
    monkeypatch.undo()
    assert main(*arguments(source, box)).code == 0
    assert {file: (box / "out" / file).stat().st_ino for file in left} == before  # not written again
    assert tree(box / "out") == whole
    assert names(box) == ["out"]


def test_what_is_soon_done_again_does_not_wait(source: Path, box: Path, full_after: Break, monkeypatch) -> None:
    monkeypatch.setattr(journal, "LEAST", 1 << 28)
    assert interrupted(source, box, 2, full_after) == []
    assert names(box) == []


def test_says_what_waits(source: Path, box: Path, full_after: Break) -> None:
    full_after(3)
    outcome = main(*arguments(source, box))
    assert f"3 finished files wait in {box / PARTIAL} for the same command" in outcome.err
    assert "make room" in outcome.err


def touched(source: Path, box: Path) -> None:
    os.utime(next(source.glob("*.safetensors")))


def replaced(source: Path, box: Path) -> None:
    path = next(source.glob("*.safetensors"))
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def written_to(source: Path, box: Path) -> None:
    path = next((box / PARTIAL / "new").glob("*.safetensors"))
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")


def cut(source: Path, box: Path) -> None:
    path = box / PARTIAL / MARKER
    path.write_bytes(path.read_bytes()[:-9])


def emptied(source: Path, box: Path) -> None:
    (box / PARTIAL / MARKER).write_bytes(b"")


def gone(source: Path, box: Path) -> None:
    for path in (box / PARTIAL / "new").glob("*.safetensors"):
        path.unlink()


@pytest.mark.parametrize("change", [touched, replaced, written_to, cut, emptied, gone])
def test_what_is_no_longer_sure_is_done_again(
    change: Callable[[Path, Path], None], tmp_path: Path, whole: Tree, box: Path, full_after: Break, monkeypatch
) -> None:
    source = make(tmp_path / "source")
    left = interrupted(source, box, 2, full_after)
    before = inodes(box, left)
    monkeypatch.undo()
    held = [os.open(box / PARTIAL / "new" / file, os.O_RDONLY) for file in left]  # so that no inode is given out again
    change(source, box)
    assert main(*arguments(source, box)).code == 0
    for handle in held:
        os.close(handle)
    after = {file: (box / "out" / file).stat().st_ino for file in left}
    again = [file for file in left if after[file] != before[file]]
    assert len(again) == (1 if change is written_to else 2)
    assert tree(box / "out") == whole
    assert names(box) == ["out"]


@pytest.mark.parametrize(
    "more", [("--force",), ("--dtype", "bf16"), ("--max-shard-size", "300kB"), ("--hash",)], ids=" ".join
)
def test_another_command_begins_afresh(
    more: tuple[str, ...], source: Path, box: Path, full_after: Break, monkeypatch
) -> None:
    assert main(*arguments(source, box.parent, *more)).code == 0
    left = interrupted(source, box, 2, full_after)
    monkeypatch.undo()
    before = inodes(box, left)
    held = [os.open(box / PARTIAL / "new" / file, os.O_RDONLY) for file in left]
    assert main(*arguments(source, box, *more)).code == 0
    for handle in held:
        os.close(handle)
    assert not set(before.values()) & {path.stat().st_ino for path in (box / "out").iterdir()}
    assert tree(box / "out") == tree(box.parent / "out")


def test_force_leaves_nothing(source: Path, box: Path, full_after: Break) -> None:
    assert interrupted(source, box, 2, full_after, "--force") == []
    assert names(box) == []


def test_hashes_survive(source: Path, box: Path, full_after: Break, monkeypatch) -> None:
    assert main(*arguments(source, box.parent, "--hash")).code == 0
    interrupted(source, box, 2, full_after, "--hash")
    monkeypatch.undo()
    assert main(*arguments(source, box, "--hash")).code == 0
    assert tree(box / "out") == tree(box.parent / "out")
    assert main("verify", box / "out", "--level", "bytes").code == 0


def test_a_source_that_is_at_fault_leaves_nothing(source: Path, box: Path, monkeypatch) -> None:
    """Only what may be over the next time is worth waiting for."""
    monkeypatch.setattr(moving, "WORKERS", 1)
    monkeypatch.setattr(lineage.checkpoint.weights.Weights, "check_unchanged", failing(FileDamaged("changed")))
    assert main(*arguments(source, box)).code == 7
    assert names(box) == []


def failing(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


# faults of reading and writing


@pytest.mark.parametrize("side", ["reading", "writing", "syncing"])
def test_a_disk_that_fails(side: str, source: Path, whole: Tree, box: Path, monkeypatch) -> None:
    """EIO amid the data: exit 7 if the source is at fault, else 2; and the next run succeeds."""
    calls = []

    def failing_later(real: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            calls.append(arguments)
            if len(calls) > 40 or side == "syncing":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments)

        return call

    before = tree(source)
    with monkeypatch.context() as patch:
        patch.setattr(os, "copy_file_range", failing(OSError(errno.EIO, "")), raising=False)
        name = {"reading": "preadv", "writing": "pwrite", "syncing": "fsync"}[side]
        patch.setattr(os, name, failing_later(getattr(os, name)))
        outcome = main(*arguments(source, box))
    assert outcome.code == (7 if side == "reading" else 2), outcome.text
    assert "Input/output error" in outcome.err
    assert names(box) in ([], [PARTIAL])
    assert main(*arguments(source, box)).code == 0
    assert (tree(box / "out"), tree(source), names(box)) == (whole, before, ["out"])


class Failing:
    """A file whose nth call to read fails, counted over all that are opened under its name."""

    def __init__(self, name: str, nth: int) -> None:
        self.name, self.left = name, nth

    def open(self, file: Path | int, mode: str) -> Any:
        opened = open(file, mode)  # noqa: SIM115
        path = os.readlink(f"/proc/self/fd/{opened.fileno()}")
        return Reading(opened, self) if mode == "rb" and Path(path).name == self.name else opened


class Reading:
    def __init__(self, file: Any, how: Failing) -> None:
        self.file, self.how = file, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def read(self, *count: int) -> bytes:
        self.how.left -= 1
        if self.how.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.file.read(*count)


def refused_until_it_can_be_read(name: str, output: Path, monkeypatch: pytest.MonkeyPatch, *run: str | Path) -> int:
    """How many reads of a file there are; where any of them fails, it is that file's fault and nothing is left."""
    for nth in range(1, 30):
        how = Failing(name, nth)
        with monkeypatch.context() as patch:
            patch.setattr(files, "open", how.open, raising=False)
            outcome = main(*run)
        if how.left > 0:
            assert outcome.code == 0, outcome.text
            return nth - 1
        assert outcome.code == 7, outcome.text
        assert (name in outcome.err, "Input/output error" in outcome.err) == (True, True), outcome.err
        assert names(output.parent) == []
    raise AssertionError("it is read again and again")


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "LICENSE", "model.safetensors.index.json", "model-00001-of-00005.safetensors"],
)
def test_a_source_whose_small_files_fail(name: str, tmp_path: Path, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO at any read of a file that is only copied, too, is the source's fault, and then the export's."""
    source = make(tmp_path / "source")
    for small in ("tokenizer.json", "LICENSE"):
        (source / small).write_text("{}")
    reads = refused_until_it_can_be_read(name, box / "out", monkeypatch, *arguments(source, box, "--hash"))
    assert reads >= 2
    made = (box / "out").rename(tmp_path / "made")
    kept = next(path.name for path in (made / "source").iterdir() if path.name.startswith(name))
    reads = refused_until_it_can_be_read(
        kept, box / "out", monkeypatch, "export", made, "-o", box / "out", "--to", "hf"
    )
    assert reads >= 2


@pytest.fixture
def bad_place(tmp_path: Path) -> Iterator[Callable[[Path, str, int], Path]]:
    """A folder as on a disk that cannot be read at some place of some file; by the kernel, not by a patch of ours."""
    mount = tmp_path / "mount"
    processes: list[subprocess.Popen[str]] = []

    def mounted_with(folder: Path, name: str, place: int) -> Path:
        mount.mkdir()
        command = (sys.executable, str(Path(__file__).with_name("failing_disk.py")))
        processes.append(start(folder, mount, name, str(place), command=command))
        if processes[-1].stdout.readline() != "mounted\n":  # type: ignore[union-attr]
            pytest.skip(f"no file system in user space here: {finish(processes[-1]).err.strip()[-200:]}")
        return mount

    yield mounted_with
    for process in processes:
        if process.poll() is None:
            subprocess.run(["umount", "-l", mount], check=True)
            finish(process)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("config.json", 0), ("tokenizer.json", 0.9), ("model.safetensors.index.json", 0),
        ("model-00001-of-00005.safetensors", 0), ("model-00003-of-00005.safetensors", 0.5),
        ("model-00005-of-00005.safetensors", 0.99),
    ],
)  # fmt: skip
@pytest.mark.parametrize("more", [(), ("--hash",)])
def test_a_disk_with_a_bad_place(
    name: str,
    part: float,
    more: tuple[str, ...],
    tmp_path: Path,
    box: Path,
    bad_place: Callable[[Path, str, int], Path],
) -> None:
    source = make(tmp_path / "source")
    (source / "tokenizer.json").write_text('{"a": "%s"}' % ("b" * 100_000))
    bad_place(source, name, int(part * (source / name).stat().st_size))
    run = ("convert", "mount", "-o", box / "out", "--verify", "none", *more)
    outcome = finish(start(*run, cwd=tmp_path))
    assert outcome.code == 7, outcome.text
    assert f"error[file]: {name}: cannot be read (Input/output error) (exit 7)" in outcome.err
    assert names(box) == []


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM])
def test_where_the_kernel_does_not_copy(code: int, source: Path, whole: Tree, box: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", failing(OSError(code, os.strerror(code))))
    assert main(*arguments(source, box)).code == 0
    assert tree(box / "out") == whole


def test_where_there_is_no_such_call(source: Path, whole: Tree, box: Path, monkeypatch) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    assert main(*arguments(source, box)).code == 0
    assert tree(box / "out") == whole


def test_a_source_that_vanishes(tmp_path: Path, box: Path) -> None:
    """Unlinked amid the run: what is open stays readable, but the end sees that it is gone."""
    source = make(tmp_path / "source")
    process = start(*arguments(source, box), command=SLOWLY, env=environment(PAUSE="0.05"))
    assert until(process, lambda: (box / PARTIAL / "new").exists())
    shutil.rmtree(source)
    outcome = finish(process)
    assert outcome.code == 7, outcome.text
    assert names(box) == []


def test_what_was_called_off_is_not_waited_for() -> None:
    """A worker may take the end of a file whose last jobs the failure of another was just in time to cancel."""
    job: Future[None] = Future()
    job.cancel()
    found: list[BaseException] = []

    def run() -> None:
        try:
            moving._finished(cast(Any, None), Path("file"), [job], lambda: None)
        except CancelledError as error:
            found.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(20)
    assert found


def test_enospc_at_many_sizes(tmp_path: Path, disk: Callable[[str], Path], monkeypatch) -> None:  # noqa: F811
    """Twenty small disks: refused or done; only finished files are left; with room the same command succeeds."""
    monkeypatch.setattr(target, "check_space", lambda *arguments: None)
    source = make(tmp_path / "source")
    assert main(*arguments(source, tmp_path)).code == 0
    need = pages(source) + 10
    codes = []
    for part in range(1, 21):
        box = disk(f"size={4096 * (need * part // 19)}")
        outcome = main(*arguments(source, box))
        codes.append(outcome.code)
        assert outcome.code in (0, 8), outcome.text
        assert names(box) in ([["out"]] if outcome.code == 0 else [[], [PARTIAL]])
        left = [p.name for p in (box / PARTIAL).rglob("*") if p.is_file() and p.name != MARKER]
        assert sorted(left) == sorted(finished(box))
        if outcome.code == 8:
            mounted(box, f"remount,size={4096 * need * 2}")
            assert main(*arguments(source, box)).code == 0
        assert tree(box / "out") == tree(tmp_path / "out")
    assert {0, 8} == set(codes)


# killed


def test_killed_at_random_moments(source: Path, whole: Tree, box: Path) -> None:
    """Each run goes on from what the killed ones before it left, until one is through."""
    chance = random.Random(int(os.environ.get("SEED", "0")))
    before = tree(source)
    killed = resumed = runs = 0
    while killed < MOMENTS:
        runs += 1
        had, before_it = finished(box), stamp(box / PARTIAL / MARKER)
        process = start(*arguments(source, box), command=SLOWLY, env=environment(PAUSE="0.02"))
        if chance.random() < 0.9:  # most of them at its work, some while it begins
            until(process, lambda: stamp(box / PARTIAL / MARKER) not in (None, before_it))  # noqa: B023
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        outcome = finish(process)
        assert outcome.code in (0, -signal.SIGKILL), outcome.text
        killed += outcome.code != 0
        resumed += bool(had)
        if (box / "out").exists():
            assert tree(box / "out") == whole
            shutil.rmtree(box / "out")
    assert tree(source) == before
    assert resumed >= MOMENTS // 4, f"{resumed} of {runs} runs had something to go on with"
    assert main(*arguments(source, box)).code == 0
    assert (tree(box / "out"), names(box)) == (whole, ["out"])


def test_an_export_killed_at_random_moments(source: Path, whole: Tree, box: Path) -> None:
    """Every second run replaces an earlier export; whatever a killed one left, there is a whole one or none."""
    chance = random.Random(int(os.environ.get("SEED", "0")))
    made = source.parent / "out"
    assert main("export", made, "-o", box / "first", "--to", "hf").code == 0
    original = tree(box / "first")
    assert original == {name: what for name, what in tree(source).items() if name in original}
    (box / "first").rename(box / "out")
    killed = amid = 0
    while killed < MOMENTS:
        replacing = (box / "out").exists() and killed % 2 == 0
        if not replacing:
            shutil.rmtree(box / "out", ignore_errors=True)
        run = ("export", made, "-o", box / "out", "--to", "hf", *(("--force",) if replacing else ()))
        old = {path.stat().st_ino for path in (box / PARTIAL).glob("new")}
        process = start(*run, command=SLOWLY, env=environment(PAUSE="0.005"))
        if chance.random() < 0.9:
            until(process, lambda: any(p.stat().st_ino not in old for p in (box / PARTIAL).glob("new")))  # noqa: B023
        time.sleep(chance.uniform(0, 0.6))
        process.kill()
        outcome = finish(process)
        assert outcome.code in (0, -signal.SIGKILL), outcome.text
        killed += outcome.code != 0
        amid += (box / PARTIAL / "new").exists()
        assert (box / "out").exists() or not replacing
        assert not (box / "out").exists() or tree(box / "out") == original
        assert set(names(box)) <= {"out", PARTIAL, ".out.lock"}
    assert amid >= MOMENTS // 2, f"{amid} of {killed} were killed at their work"
    shutil.rmtree(box / "out", ignore_errors=True)
    assert main("export", made, "-o", box / "out", "--to", "hf").code == 0
    assert (tree(box / "out"), names(box), tree(made)) == (original, ["out"], whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_gone_on(number: int, source: Path, whole: Tree, box: Path) -> None:
    process = start(*arguments(source, box), command=SLOWLY, env=environment(PAUSE="0.1"), preexec_fn=heeding)
    assert until(process, lambda: len(finished(box)) >= 2)
    process.send_signal(number)
    outcome = finish(process)
    assert outcome.code == 128 + number
    left = finished(box)
    assert f"; {len(left)} finished files wait in {box / PARTIAL} for the same command\n" in outcome.err
    assert sorted(path.name for path in (box / PARTIAL / "new").iterdir()) == sorted(left)
    assert main(*arguments(source, box)).code == 0
    assert (tree(box / "out"), names(box)) == (whole, ["out"])


def heeding() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def test_an_old_pickle_that_does_not_fit_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    source = handmade.write(tmp_path / "source")
    (source / "model.safetensors").unlink()
    state = {name: torch.from_numpy(array.copy()) for name, array in handmade.tensors().items()}
    for new in (True, False):
        torch.save(state, source / "pytorch_model.bin", _use_new_zipfile_serialization=new)
        monkeypatch.setattr(lineage.checkpoint.pickles, "available_memory", lambda: 1000.0)
        outcome = main(*arguments(source, tmp_path, "--allow-pickle", "--force"))
        assert outcome.code == (0 if new else 8), outcome.text
    assert "pytorch_model.bin: an old pickle of" in outcome.err
