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


@pytest.fixture
def project(installed: Path, addition: Path, tmp_path: Path):  # noqa: F811
    """A scratch project with the three lines and a converted model; run(arguments) runs its tests."""
    (tmp_path / "test_logits.py").write_text(EXAMPLE)
    model = tmp_path / "model-lineage"
    subprocess.run(["cp", "-r", str(addition), str(model)], check=True)
    path = os.pathsep.join([str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = ENVIRONMENT | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run, model


def test_three_lines_pass_and_fail_usefully(project):
    run, model = project
    assert "no golden file" in run().stdout
    made = run("--update-golden")
    assert made.returncode == 0, made.stdout + made.stderr
    assert run().returncode == 0
    nudge(model / "model.safetensors")
    failed = run()
    assert failed.returncode == 1
    assert "FAILED" in failed.stdout
    assert "max |Δ|" in failed.stdout
    assert "Traceback" not in failed.stdout


def test_marker_that_is_wrong_is_told(project, tmp_path):
    run, _ = project
    (tmp_path / "test_logits.py").write_text(EXAMPLE.replace("golden=", "goldne="))
    assert "goldne is not understood" in run().stdout
    (tmp_path / "test_logits.py").write_text("def test_none(parity):\n    pass\n")
    assert 'needs @pytest.mark.parity("MODEL")' in run().stdout


def nudge(file: Path) -> None:
    tensors = load_file(file)
    tensors["blocks.1.mlp.body.up.weight"][5, 7] += 1e-3
    save_file(tensors, file, metadata={"format": "pt"})
