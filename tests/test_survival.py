"""All or nothing, whatever happens to the process or the disk; and whatever was left, the next run succeeds."""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import handmade
from tests.handmade import SLOWLY, STOPPED, environment, finish, main, start, tree

LARGE = {"layers": 4, "width": 256, "vocab": 40_000, "context": 64}
SMALL = {"layers": 2, "width": 32, "vocab": 500, "context": 16}
PARTIAL, MARKER = ".out.partial", ".lineage-partial"
Tree = dict[str, str]


def make(directory: Path, factor: float = 1, **sizes: int) -> Path:
    given = {name: array * array.dtype.type(factor) for name, array in handmade.tensors(**sizes).items()}
    return handmade.write(directory, handmade.config(**sizes), given)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two checkpoints of one shape, some 55 MB each, with different numbers."""
    root = tmp_path_factory.mktemp("large")
    return [make(root / f"source{factor}", factor, **LARGE) for factor in (1, 2)]


@pytest.fixture(scope="module")
def outputs(sources: list[Path]) -> list[Path]:
    """What undisturbed runs make of them."""
    found = [source.with_name(f"{source.name}-whole") for source in sources]
    for source, output in zip(sources, found, strict=True):
        assert main("convert", source, "-o", output, "--verify", "none").code == 0
    return found


@pytest.fixture(scope="module")
def wholes(outputs: list[Path]) -> list[Tree]:
    return [tree(output) for output in outputs]


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(box: Path) -> Iterator[Begin]:
    """Starts a conversion in a process of its own, with the signals as a terminal gives them."""
    processes: list[subprocess.Popen[str]] = []

    def run(
        source: Path, *options: str, set_up: Callable[[], object] = lambda: None, **changes: str
    ) -> "subprocess.Popen[str]":
        def clean() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            set_up()

        given = ("convert", source, "-o", box / "out", "--verify", "none", *options)
        processes.append(start(*given, command=SLOWLY, preexec_fn=clean, env=environment(**changes)))
        return processes[-1]

    yield run
    for process in processes:
        if process.returncode is None:
            process.kill()
            finish(process)


def written(box: Path) -> int:
    """Bytes that lie in a partial output, of which those of a file that is being written are reserved; -1 if none."""
    try:
        return sum(path.stat().st_size for path in (box / PARTIAL).rglob("*") if path.is_file())
    except OSError:
        return -1


def amid(box: Path) -> bool:
    """Whether weights are being written, or were when the process died."""
    new = box / PARTIAL / "new"
    return (new / "model.safetensors").exists() and not (new / "lineage.json").exists()


def inode(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


def until(process: "subprocess.Popen[str]", ready: Callable[[], bool]) -> bool:
    """Wait for something; whether it came before the process was done."""
    while process.poll() is None:
        if ready():
            return True
        time.sleep(0.0005)
    return False


def names(box: Path) -> list[str]:
    return sorted(path.name for path in box.iterdir())


def test_killed_at_any_moment(
    sources: list[Path], outputs: list[Path], wholes: list[Tree], box: Path, begin: Begin
) -> None:
    """Each run meets what the killed ones before it left. Every second one replaces an older output."""
    chance = random.Random(0)
    before = [tree(source) for source in sources]
    killed = partly = 0
    for round_ in range(20):
        replacing = round_ % 2 == 1
        shutil.rmtree(box / "out", ignore_errors=True)
        if replacing:
            shutil.copytree(outputs[1], box / "out", copy_function=os.link)
        stale = box / PARTIAL / "stale"
        if (box / PARTIAL / MARKER).exists():  # else it was killed just before, and what lies there is not yet ours
            stale.mkdir()
        process = begin(sources[0], "--force")
        share, old = chance.uniform(0, 1.5), inode(box / "out")
        until(process, lambda: not stale.exists() and written(box) >= 0)  # noqa: B023
        if share > 1.3:
            until(process, lambda: inode(box / "out") != old)  # noqa: B023
        elif share > 0.5:
            until(process, lambda: amid(box))
        else:
            time.sleep(share)  # some of these beyond the last byte: while it is synced and moved
        partly += amid(box)
        process.kill()
        killed += finish(process).code == -signal.SIGKILL
        if replacing or (box / "out").exists():
            assert tree(box / "out") in (wholes if replacing else wholes[:1])
    assert killed >= 10, "too few were caught alive to show anything"
    assert partly >= 5
    assert [tree(source) for source in sources] == before
    outcome = finish(begin(sources[0], "--force"))
    assert outcome.code == 0, outcome.text
    assert tree(box / "out") == wholes[0]
    assert names(box) == ["out"]


STOPS = {"INT": 130, "TERM": 143, "HUP": 129}


@pytest.mark.parametrize("often", [False, True], ids=["once", "often"])
@pytest.mark.parametrize("name", STOPS)
def test_asked_to_stop(name: str, often: bool, sources: list[Path], box: Path, begin: Begin) -> None:
    """Once, or over and over while it cleans up, as wrappers and impatient people do."""
    process = begin(sources[0], **STOPPED)
    assert until(process, lambda: written(box) > 10**7)
    process.send_signal(getattr(signal, f"SIG{name}"))
    while often and process.poll() is None:
        process.send_signal(getattr(signal, f"SIG{name}"))
        time.sleep(0.0005)
    outcome = finish(process)
    assert (outcome.code, outcome.out) == (STOPS[name], "")
    waiting = "; 1 finished files wait in " in outcome.err  # where the signal came when the last byte was written
    assert outcome.err.startswith("interrupted; nothing was left half-written" + ("; " if waiting else "\n"))
    assert names(box) == ([PARTIAL] if waiting else [])


def test_a_signal_that_is_ignored_stays_so(sources: list[Path], wholes: list[Tree], box: Path, begin: Begin) -> None:
    process = begin(sources[0], set_up=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as nohup does
    assert until(process, lambda: written(box) > 0)
    process.send_signal(signal.SIGHUP)
    assert finish(process).code == 0
    assert tree(box / "out") == wholes[0]


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["new", "force"])
def test_two_at_once(
    options: tuple[str, ...],
    sources: list[Path],
    outputs: list[Path],
    wholes: list[Tree],
    box: Path,
    begin: Begin,
) -> None:
    if options:
        shutil.copytree(outputs[1], box / "out")
    first = begin(sources[0], *options)
    assert until(first, lambda: written(box) > 0)
    first.send_signal(signal.SIGSTOP)
    second = finish(begin(sources[1], *options))
    first.send_signal(signal.SIGCONT)
    assert second.code == 2
    assert "another conversion is writing" in second.err
    assert finish(first).code == 0
    assert tree(box / "out") == wholes[0]
    assert names(box) == ["out"]


def test_two_that_race(sources: list[Path], wholes: list[Tree], box: Path, begin: Begin) -> None:
    processes = [begin(source) for source in sources]
    codes = [finish(process).code for process in processes]
    assert sorted(codes) == [0, 2]
    assert tree(box / "out") == wholes[codes.index(0)]
    assert names(box) == ["out"]


def test_what_a_run_set_aside_comes_back(tmp_path: Path, box: Path) -> None:
    """A run that was killed between two renames, where the system has no exchange: the old output is only aside."""
    source = make(tmp_path / "source", **SMALL)
    convert = ("convert", source, "-o", box / "out", "--verify", "none")
    assert main(*convert).code == 0
    whole = tree(box / "out")
    (box / PARTIAL).mkdir()
    (box / PARTIAL / MARKER).touch()
    (box / "out").rename(box / PARTIAL / "old")
    outcome = main(*convert)
    assert outcome.code == 2
    assert "--force" in outcome.err
    assert (tree(box / "out"), names(box)) == (whole, ["out"])


# a disk that fills


def mounted(place: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def disk(box: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of given limits on the box, in the place of the last one."""
    mounts: list[Path] = []

    def unmount() -> None:
        while mounts:
            subprocess.run(["umount", "-l", mounts.pop()], check=True)

    def mount(options: str) -> Path:
        unmount()
        mounted(box, options)
        mounts.append(box)
        return box

    yield mount
    unmount()


def test_a_disk_that_is_too_small(tmp_path: Path, disk: Callable[[str], Path]) -> None:
    source = make(tmp_path / "source", **SMALL)
    box = disk("size=64k")
    outcome = main("convert", source, "-o", box / "out", "--verify", "none")
    assert outcome.code == 8
    assert "not enough disk" in outcome.err
    assert names(box) == []


def pages(source: Path) -> int:
    """What the source takes on a disk of 4096-byte pages; the output takes a few more."""
    return sum(-(-path.stat().st_size // 4096) for path in source.iterdir())


@pytest.mark.parametrize("limit", ["size", "inodes"])
def test_a_disk_that_fills(
    limit: str, tmp_path: Path, disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it happens: at the first folder, amid the weights, at the record. No estimate warns in time."""
    from lineage.checkpoint import target

    monkeypatch.setattr(target, "check_space", lambda *arguments: None)
    source = make(tmp_path / "source", **SMALL)
    need = pages(source)
    sizes = [f"size={4096 * count}" for count in (1, 2, need // 3, need - 3, *range(need, need + 8), 4 * need)]
    codes = []
    for options in sizes if limit == "size" else [f"size=4m,nr_inodes={count}" for count in range(1, 14)]:
        box = disk(options)
        outcome = main("convert", source, "-o", box / "out", "--verify", "none")
        codes.append(outcome.code)
        assert outcome.code in (0, 8), outcome.text
        assert names(box) in ([["out"]] if outcome.code == 0 else [[], [PARTIAL]])
        if outcome.code == 8:
            left = [path.name for path in (box / PARTIAL).rglob("*") if path.is_file()]
            assert sorted(left) in ([], [MARKER, "model.safetensors"])  # what is finished waits for the same command
            assert outcome.err.startswith("error[resources]: the disk is full")
    assert codes == sorted(codes, reverse=True)  # refused up to some size, done from there on
    assert {0, 8} == set(codes)


def test_a_limit_on_files(sources: list[Path], box: Path, begin: Begin) -> None:
    limit = 1 << 20
    outcome = finish(begin(sources[0], set_up=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
    assert outcome.code == 8
    assert "too large" in outcome.err
    assert names(box) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path, box: Path) -> None:
    source = make(tmp_path / "source", **SMALL)
    box.chmod(0o500)
    outcome = main("convert", source, "-o", box / "out", "--verify", "none")
    box.chmod(0o700)
    assert outcome.code == 2
    assert "Permission denied" in outcome.err


def test_a_disk_that_may_not_be_written(tmp_path: Path, disk: Callable[[str], Path]) -> None:
    source = make(tmp_path / "source", **SMALL)
    outcome = main("convert", source, "-o", disk("size=1m,ro") / "out", "--verify", "none")
    assert outcome.code == 2
    assert "Read-only" in outcome.err
