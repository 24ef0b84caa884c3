"""How a command ends: at once, with its exit code, everything said, and nothing lost that waits."""

import subprocess
import sys
from pathlib import Path

import pytest

LINEAGE = f"{sys.executable} -m lineage"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("command", "code"), [("env", 0), ("show gpt2", 0), ("show nosuch", 2), ("convert /gone", 4)])
@pytest.mark.parametrize("where", [">&-", "2>&-", ">&- 2>&-", "| true; exit ${PIPESTATUS[0]}"])
def test_nobody_listens(command: str, code: int, where: str) -> None:
    done = shell(f"{LINEAGE} {command} {where}")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "internal" not in done.stderr
    assert ("error[" in done.stderr) == (code > 0 and "2>&-" not in where)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [0, 3, 130])
def test_what_waits_for_the_end_is_done(code: int) -> None:
    done = python(
        "import atexit, sys\nfrom lineage.terminal import leave\n"
        f"def command():\n    atexit.register(print, 'at the end')\n    print('said'); sys.exit({code})\n"
        "leave(command)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "said\nat the end\n", "")


def test_a_thread_is_waited_for() -> None:
    done = python(
        "import sys, threading, time\nfrom lineage.terminal import leave\n"
        "def command():\n"
        "    threading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()\n    sys.exit(3)\n"
        "leave(command)"
    )
    assert (done.returncode, done.stdout) == (3, "late\n")


def test_a_profile_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-m", "lineage", "env"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "function calls" in done.stdout


def test_a_fault_is_no_end() -> None:
    done = python("from lineage.terminal import leave\ndef command():\n    raise KeyError('x')\nleave(command)")
    assert done.returncode == 1
    assert "KeyError" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command",
    ["tree", "show gpt2 --json", "diff gpt2 llama", "--help", "generate examples/addition/model [0] --tokens 2"],
)
def test_an_output_that_takes_nothing_is_no_success(command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lineage", *command.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 8
    assert "the output cannot be written: No space left" in done.stderr
    assert "Exception ignored" not in done.stderr
