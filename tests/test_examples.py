"""The trained models that the repository carries solve their task after conversion, and are verified at every level."""

import subprocess
import sys
from pathlib import Path

import pytest

import lineage

ADDITION = Path(__file__).parents[1] / "examples" / "addition"


@pytest.mark.parametrize("name", ["model", "model-llama", "model-mixtral"])
def test_trained_model_still_adds(name: str, tmp_path: Path) -> None:
    done = lineage.convert(str(ADDITION / name), tmp_path / "out")
    assert done.report is not None
    assert done.report.passed, "\n".join(done.report.lines())
    command = [sys.executable, ADDITION / "check.py", tmp_path / "out"]
    marked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert marked.startswith("1000 of 1000 held-out sums right")
