"""Golden files: small, checked without transformers, and moved by a moved weight."""

import os
import subprocess
import sys

import pytest
import torch

import lineage
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


def test_file_is_small(addition, tmp_path):
    file = save_golden(addition, tmp_path / "golden.safetensors")
    assert file.stat().st_size < 20_000


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
