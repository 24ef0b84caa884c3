"""The Llama line and its experts on tiny spread checkpoints: every scaling and option, in new keys and old."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lineage
from lineage.errors import ArchitectureError
from lineage.parity.tiny import write_tiny

BANDED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 40, "rope_theta": 10000.0}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40, "rope_theta": 10000.0}
LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
BESIDE = {"original_max_position_embeddings": 40, "max_position_embeddings": 160}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama tied with biases": ("llama", {"tied": True, "bias": True, "mlp_bias": True}, {}),
    "llama linear": ("llama", {}, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}),
    "llama linear, old keys": ("llama", {}, {"rope_parameters": None, "rope_theta": 500.0,
                                             "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama dynamic past its length": ("llama", {}, {"rope_parameters": DYNAMIC, "max_position_embeddings": 60}),
    "llama dynamic at once": ("llama", {}, {"rope_parameters": DYNAMIC, "max_position_embeddings": 8}),
    "llama longrope": ("llama", {}, {"rope_parameters": LONG | {"rope_type": "longrope", "factor": 4.0}} | BESIDE),
    "llama yarn, its length beside": ("llama", {}, BESIDE | {
        "rope_parameters": YARN | {"original_max_position_embeddings": 33}}),
    "llama without padding, old keys": ("llama", {"padding": None}, {"pad_token_id": -1, "num_key_value_heads": 2}),
    "llama with as many heads": ("llama", {"kv_heads": None}, {"num_key_value_heads": None}),
    "llama 3": ("llama", {}, {"rope_parameters": BANDED, "max_position_embeddings": 320}),
    "llama yarn": ("llama", {}, {"rope_parameters": YARN, "max_position_embeddings": 160}),
    "llama yarn not rounded": ("llama", {}, {"rope_parameters": YARN | {"truncate": False, "beta_fast": 8.0},
                                             "max_position_embeddings": 160}),
    "mistral": ("mistral", {"window": 7}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {}, {}),
    "phi3 su, old keys": ("phi3", {"width": 48}, BESIDE | {"rope_parameters": None, "rope_theta": 1e4,
                                                           "rope_scaling": LONG | {"type": "su"}}),
    "phi3 yarn, old keys": ("phi3", {"width": 48}, BESIDE | {"rope_parameters": None,
                                                             "rope_scaling": LONG | {"type": "yarn"}}),
    "gemma": ("gemma", {}, {}),
    "gemma2": ("gemma2", {}, {}),
    "qwen2 with windows": ("qwen2", {"window": 7, "full_layers": 1}, {}),
    **{kind: (kind, {}, {}) for kind in ("gemma3_text", "olmo", "olmo2", "granite", "smollm3", "starcoder2", "cohere",
                                         "stablelm", "glm", "phi3", "internlm3")},
    "gpt_neox": ("gpt_neox", {}, {}),
    "gpt_neox in sequence": ("gpt_neox", {"parallel": False}, {}),
    "gpt_neox 20b": ("gpt_neox", {"activation": "gelu_fast"}, {}),
    "mixtral": ("mixtral", {}, {}),
    "qwen3_moe": ("qwen3_moe", {}, {}),
    "qwen3_moe normalised": ("qwen3_moe", {"normalise": True, "experts": 6, "top_k": 3}, {}),
}  # fmt: skip


def checkpoint(directory: Path, name: str) -> Path:
    kind, arguments, keys = CASES[name]
    write_tiny(kind, directory, **arguments)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return directory


@pytest.mark.parametrize("name", CASES)
def test_every_level_holds(name: str, tmp_path: Path) -> None:
    done = lineage.convert(str(checkpoint(tmp_path / "source", name)), tmp_path / "out")
    report = done.report
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= {
        "static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16",
    }  # fmt: skip
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12
    assert {figure["probe"] for figure in report.level("fp64").figures} == {"short", "long", "full", "padded"}
    assert any(figure["positions"] >= 256 for figure in report.level("fp64").figures), "past every window and length"
    assert [
        word for fault in report.faults for word in ("pad_token_id = -1", "su", "longest call") if word in fault
    ] == (FAULTS.get(name, []))


FAULTS = {  # of the reference, as the report has them
    "llama without padding, old keys": ["pad_token_id = -1"],
    "phi3 su, old keys": ["su"],
    "llama dynamic at once": ["longest call"],
    "llama dynamic past its length": ["longest call"],
}


def test_minus_one_is_no_token_of_the_reference(tmp_path: Path) -> None:
    """torch takes it for the last token, which would then not be trained; the prompt has it."""
    source = checkpoint(tmp_path / "source", "llama without padding, old keys")
    prompt = [100, 1, 100, 2, 100]
    assert lineage.verify(source, only=["training", "fp64"], prompts=[prompt]).passed
    model = lineage.from_pretrained(source)
    model(torch.tensor([prompt])).logits.sum().backward()
    assert model.embed.tokens.weight.grad[100].abs().max() > 0


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "spiral"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "8", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4}}, "low_freq_factor"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta"),
        ({"rope_parameters": "linear"}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "twist": 3}}, "twist"),
        ({"rope_parameters": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}, "type"),
        ({"rope_parameters": {"rope_type": "longrope", **LONG, "long_factor": "long"}}, "long_factor"),
        ({"rope_parameters": {"rope_type": "longrope", **LONG, "attention_factor": -1}}, "attention_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"pad_token_id": -2}, "pad_token_id"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"head_dim": 7}, "odd"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ],
)
def test_refused_with_the_key_named(keys: dict[str, Any], part: str, tmp_path: Path) -> None:
    write_tiny("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(ArchitectureError) as refusal:
        lineage.convert(str(tmp_path), tmp_path.parent / "out", verify=False)
    assert part in " ".join([refusal.value.message, *refusal.value.facts])
    assert not (tmp_path.parent / "out").exists()


def test_an_expert_renumbered_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from lineage.errors import TensorMismatch

    file = write_tiny("mixtral", tmp_path) / "model.safetensors"
    save_file({name.replace("experts.2.", "experts.7."): value for name, value in load_file(file).items()}, file)
    with pytest.raises(TensorMismatch, match="does not fill") as refusal:
        lineage.convert(str(tmp_path), tmp_path.parent / "out", verify=False)
    text = "\n".join(refusal.value.facts)
    assert "missing     model.layers.0.block_sparse_moe.experts.2.w1.weight" in text
    assert "unexpected  model.layers.0.block_sparse_moe.experts.7.w1.weight" in text


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("llama-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("smollm2-135m", 134_515_008),
        ("mixtral", 46_702_792_704),
    ],
)
def test_counts_of_the_literature(size: str, count: int) -> None:
    from lineage import graph

    assert graph.parameters(lineage.spec(size)) == count
