"""The pytest plugin in somebody else's project, where only the wheel is installed."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.test_packaging import ENVIRONMENT, built, installed  # noqa: F401  (fixtures)

EXAMPLE = """
import pytest

@pytest.mark.parity("model-lineage", golden="golden.safetensors")
def test_logits(parity):
    parity.check()
"""
REFERENCE = """
@pytest.mark.parity("model-lineage", levels=("bytes", "replay"))
def test_against_transformers(parity):
    parity.check()
"""
WRONG = """
@pytest.mark.parity("model-lineage", goldne="golden.safetensors")
def test_misspelt(parity):
    pass

def test_without_a_marker(parity):
    pass
"""


@pytest.fixture
def project(installed: Path, addition: Path, tmp_path: Path):  # noqa: F811
    """A scratch project with the three lines and a converted model; run(arguments) runs its tests."""
    (tmp_path / "test_logits.py").write_text(EXAMPLE + REFERENCE)
    model = tmp_path / "model-lineage"
    subprocess.run(["cp", "-r", str(addition), str(model)], check=True)
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = ENVIRONMENT | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run, model


def test_three_lines_pass_and_fail_usefully(project, tmp_path):
    run, model = project
    made = run("--update-golden")
    assert made.returncode == 0, made.stdout + made.stderr
    assert (tmp_path / "golden.safetensors").stat().st_size < 20_000
    again = run()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 passed" in again.stdout
    nudge(model / "model.safetensors")
    failed = run()
    assert failed.returncode == 1
    assert "2 failed" in failed.stdout
    assert "full/logits   max |Δ|" in failed.stdout
    assert "blocks.1.mlp.body.up.weight is not what the conversion wrote" in failed.stdout
    assert "Traceback" not in failed.stdout


def test_what_is_wrong_is_told(project, tmp_path):
    run, _ = project
    (tmp_path / "test_logits.py").write_text(EXAMPLE + WRONG)
    told = run().stdout
    assert "no golden file" in told
    assert "goldne is not understood" in told
    assert 'needs @pytest.mark.parity("MODEL")' in told
    assert "1 failed, 2 errors" in told
    assert "Traceback" not in told


def nudge(file: Path) -> None:
    tensors = load_file(file)
    tensors["blocks.1.mlp.body.up.weight"][5, 7] += 1e-3
    save_file(tensors, file, metadata={"format": "pt"})
