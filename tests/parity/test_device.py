"""Another device than the CPU: refused where it is not, told in the report, strict, and everything is moved there."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import lineage
from lineage import cli
from lineage.errors import ResourceError
from lineage.parity import device
from lineage.parity.blocks import verify_blocks
from lineage.parity.golden import check_golden, save_golden

ROOT = Path(__file__).parents[2]
PRETEND = Path(__file__).with_name("pretend.py")


@pytest.fixture
def two(monkeypatch):
    """A machine with two CUDA devices, as far as anybody asks."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"GPU of {name}")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:-1", "cuda:1 ", "CPU", "cpu:0", "mps", "cuda:9999"])
def test_unknown_names_are_refused(name, two):
    with pytest.raises(ResourceError, match="is not known"):
        device.find(name)


def test_those_that_are_there(two):
    assert [device.find(name) for name in ("cpu", "cuda", "cuda:1", torch.device("cuda:1"))] == [
        "cpu", "cuda", "cuda:1", "cuda:1",
    ]  # fmt: skip
    with pytest.raises(ResourceError, match=r"no cuda:2: .* sees 2 CUDA devices"):
        device.find("cuda:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_an_absent_one_is_refused_before_any_work(tiny, tmp_path):
    source, out = tiny("gpt2").with_name("gpt2 source"), tmp_path / "out"
    calls = [
        lambda: lineage.verify("nowhere", device="cuda"),
        lambda: lineage.convert("nowhere", device="cuda"),
        lambda: verify_blocks("nowhere", device="cuda:1"),
        lambda: check_golden("nowhere", "nothing", "cuda"),
        lambda: save_golden("nowhere", "nothing", device="cuda"),
    ]
    for call in calls:
        with pytest.raises(ResourceError, match=r"there is no cuda.* sees 0 CUDA devices"):
            call()
    for arguments in (["convert", source, "-o", out], ["verify", source], ["verify", "--tiny", "gpt2"]):
        done = CliRunner().invoke(cli.cli, [*map(str, arguments), "--device", "cuda"])
        assert isinstance(done.exception, ResourceError)
        assert done.exception.exit_code == 8
    assert not out.exists()


def test_an_absent_one_exits_with_eight():
    command = [sys.executable, "-m", "lineage", "verify", "--tiny", "gpt2", "--json", "--device", "gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 8
    assert json.loads(done.stdout)["error"]["code"] == "resources"


def test_report_says_where_it_ran(tiny, two):
    report = lineage.verify(tiny("gpt2"), only=["fp64"], device="cpu")
    assert report.conditions["device"] == "cpu"
    assert not report.notes
    assert device.described("cuda:1") == "cuda:1 (GPU of cuda:1)"


def flags():
    return (
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )  # fmt: skip


@pytest.fixture(params=[True, False])
def rounding(request):
    """Products that may be rounded, and those that may not."""
    products = torch.backends.cuda.matmul
    usual, products.allow_tf32 = products.allow_tf32, request.param
    yield
    products.allow_tf32 = usual


def test_single_precision_is_strict_on_cuda_and_only_meanwhile(rounding, monkeypatch):
    settings = {}
    monkeypatch.setattr(os, "environ", settings)
    before = flags()
    with contextlib.suppress(KeyError), device.strict("cuda:0"):
        assert flags() == (False, False, False, True, True, True)
        raise KeyError
    assert settings.keys() == {"CUBLAS_WORKSPACE_CONFIG"}
    assert flags() == before
    with device.strict("cpu"):
        assert flags() == before


# On a device that keeps its tensors apart from the CPU's, and computes as the CPU does


def pretended(*runs: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(PRETEND), *runs], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_the_whole_ladder_and_blocks_elsewhere(tiny):
    dense, mixture = tiny("gpt2", tied=False, layers=2), tiny("mixtral", layers=2)
    done = pretended(f"'{dense}'", f"'{mixture}' --level replay --level training", f"'{mixture}' --blocks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("note      both ran on pretend") == done.stdout.count("verified ") == 3
    assert done.stdout.count("training ") == 2


def test_where_nothing_ran_no_device_is_named(tiny, tmp_path):
    model, file = tiny("gpt2", tied=False, layers=2), tmp_path / "golden.safetensors"
    done = pretended(f"'{model}' --level bytes --save-golden '{file}'", f"'{model}' --golden '{file}'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both ran" not in done.stdout
    assert done.stdout.count("note      run on pretend") == 1


def test_it_does_not_mix():
    mixing = "import torch, tests.parity.pretend as p; x = torch.ones(2, 3, device=p.NAME); print(x @ torch.ones(3, 2))"
    done = subprocess.run([sys.executable, "-c", mixing], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "CPU" in done.stderr or "cpu" in done.stderr
