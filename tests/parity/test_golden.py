"""Golden files: small, checked without transformers, and moved by a moved weight."""

import json
import os
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open

import lineage
from lineage import cli
from lineage.errors import FileDamaged, UsageError
from lineage.parity.golden import check_golden, save_golden

WITHOUT_TRANSFORMERS = (
    "import sys; sys.modules['transformers'] = None\n"
    "from lineage.parity.golden import check_golden\n"
    "print(check_golden(sys.argv[1], sys.argv[2]).passed)"
)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "mixtral"])
def test_same_model_passes_and_a_nudged_one_fails(tiny, kind, tmp_path):
    directory = tiny(kind)
    file = save_golden(directory, tmp_path / "golden.safetensors")
    assert check_golden(directory, file).passed
    model = lineage.from_pretrained(directory)
    with torch.no_grad():
        model.blocks[1].attention.body.v.weight[3, 2] += 1e-3
    report = check_golden(model, file)
    assert not report.passed
    assert report.exit_code == 3
    assert all(level.figures[0]["max_abs"] > 0 for level in report.levels if level.failed)


def test_file_is_small(addition, tiny, tmp_path):
    file = save_golden(addition, tmp_path / "golden.safetensors")
    assert file.stat().st_size < 20_000
    file = save_golden(tiny("bert"), tmp_path / "golden.safetensors")  # 351 positions of 101 logits
    assert file.stat().st_size < 70_000


def test_file_says_how_it_was_made(addition, tmp_path):
    with safe_open(save_golden(addition, tmp_path / "golden.safetensors"), "pt") as file:
        record = json.loads(file.metadata()["lineage"])
    assert record["schema"] == "lineage.golden/1"
    assert record["source"]["model_type"] == "gpt2"
    assert record["conditions"]["torch"] == torch.__version__


def test_entry_outside_the_largest_is_seen(tiny, tmp_path):
    """A bias of the head that moves one small logit moves the sum with signs alone."""
    model = lineage.from_pretrained(tiny("bert"), dtype="fp32")
    file = save_golden(model, tmp_path / "golden.safetensors")
    with torch.no_grad():
        lowest = model(torch.arange(9)[None]).logits[0, 4].argmin()
        model.head.bias[lowest] += 0.1
    assert not check_golden(model, file).passed


def run(*arguments):
    return CliRunner().invoke(cli.cli, ["verify", *map(str, arguments)])


def test_command_line_saves_and_checks(tiny, tmp_path):
    file, directory = tmp_path / "golden.safetensors", tiny("gpt2")
    assert run(directory, "--level", "static", "--save-golden", file).exit_code == 0
    assert file.is_file()
    done = run(directory, "--golden", file)
    assert done.exit_code == 0
    assert f"verified {directory}   against {file}" in done.output
    assert run(tiny("gpt2", seed=1), "--golden", file).exit_code == 3
    assert isinstance(run(directory, "--golden", tmp_path / "none").exception, UsageError)


def test_needs_neither_transformers_nor_a_network(tiny, tmp_path):
    file = save_golden(tiny("gpt2"), tmp_path / "golden.safetensors")
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS, str(tiny("gpt2")), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=offline)
    assert done.stdout.strip() == "True", done.stderr


def test_another_model_is_told_apart(tiny, tmp_path):
    file = save_golden(tiny("gpt2"), tmp_path / "golden.safetensors")
    assert not check_golden(tiny("openai-gpt"), file).passed


def test_wrong_files_are_refused(tiny, tmp_path):
    with pytest.raises(UsageError, match="no golden file"):
        check_golden(tiny("gpt2"), tmp_path / "none")
    (tmp_path / "text").write_text("not one")
    with pytest.raises(FileDamaged, match="not a golden file"):
        check_golden(tiny("gpt2"), tmp_path / "text")
    with pytest.raises(FileDamaged, match="schema"):
        check_golden(tiny("gpt2"), tiny("gpt2") / "model.safetensors")
