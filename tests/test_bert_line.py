"""The BERT line beyond BERT on tiny spread checkpoints: files of ours and of the reference, aged, with planted bugs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import lineage
from lineage import graph
from lineage.errors import ArchitectureError
from lineage.parity.tiny import write_tiny

LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "electra generator": ("electra", {}),
    "electra encoder, one width": ("electra", {"table_width": 24, "head": False}),
    "albert": ("albert", {"layers": 4}),
    "albert in two groups": ("albert", {"layers": 5, "groups": 2, "activation": "gelu"}),
    "albert encoder": ("albert", {"head": False, "pooler": True}),
    "mpnet": ("mpnet", {}),
    "mpnet encoder": ("mpnet", {"head": False, "pooler": True}),
    "modernbert": ("modernbert", {}),
    "modernbert with biases": (
        "modernbert", {"bias": True, "mlp_bias": True, "norm_bias": True, "transform_bias": True, "head_bias": False},
    ),
    "modernbert encoder, other windows": ("modernbert", {"head": False, "span": 6, "period": 2}),
    "camembert": ("camembert", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_level_holds(name: str, tmp_path: Path) -> None:
    kind, arguments = CASES[name]
    report = lineage.convert(str(write_tiny(kind, tmp_path / "source", **arguments)), tmp_path / "out").report
    assert report is not None
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= LEVELS
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12


D = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
B = D | {"max_position_embeddings": 40, "type_vocab_size": 2}
MADE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "electra": ("ElectraConfig", "ElectraForMaskedLM", B | {"embedding_size": 24}),
    "electra encoder": ("ElectraConfig", "ElectraModel", B | {"embedding_size": 24}),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", B | {"embedding_size": 24}),
    "albert in groups": (
        "AlbertConfig", "AlbertForMaskedLM",
        B | {"num_hidden_layers": 4, "embedding_size": 24, "num_hidden_groups": 2, "hidden_act": "gelu"},
    ),
    "albert pooled": ("AlbertConfig", "AlbertModel", B | {"embedding_size": 24}),
    "mpnet": ("MPNetConfig", "MPNetForMaskedLM", D | {"max_position_embeddings": 40, "layer_norm_eps": 1e-5}),
    "modernbert": (
        "ModernBertConfig", "ModernBertForMaskedLM",
        D | {"num_hidden_layers": 4, "max_position_embeddings": 64, "local_attention": 6, "pad_token_id": 1,
             "eos_token_id": 2, "bos_token_id": 3, "cls_token_id": 3, "sep_token_id": 2},
    ),
    "camembert": ("CamembertConfig", "CamembertForMaskedLM", B | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
}  # fmt: skip


def saved(name: str, directory: Path) -> tuple[Path, int]:
    """As transformers writes it, with spread weights; and how many parameters it counts."""
    config, model_class, keys = MADE[name]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config)(**keys))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            one = parameter.dim() == 1 and bool((parameter == 1).all())
            parameter.copy_(1 + 0.3 * noise if one else 0.3 * noise)
    model.save_pretrained(directory)
    return directory, model.num_parameters()


@pytest.mark.parametrize("name", MADE)
def test_files_that_transformers_wrote(name: str, tmp_path: Path) -> None:
    source, count = saved(name, tmp_path / "source")
    done = lineage.convert(str(source), tmp_path / "out")
    assert done.report is not None
    assert done.report.passed, "\n".join(done.report.lines())
    assert graph.parameters(lineage.from_pretrained(tmp_path / "out").spec) == count


def aged(source: Path, prefix: str) -> None:
    """Without the class's prefix, with the tied head beside the table, norms spelled as of old, positions' numbers."""
    file = source / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, tensor in load_file(file).items():
        for today, before in old.items():
            name = name[: -len(today)] + before if name.endswith(today) else name
        tensors[name.removeprefix(prefix)] = tensor
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(("name", "prefix"), [("electra encoder", "electra."), ("albert pooled", "albert.")])
def test_aged_files(name: str, prefix: str, tmp_path: Path) -> None:
    source, _ = saved(name, tmp_path / "source")
    aged(source, prefix)
    report = lineage.convert(str(source), tmp_path / "out").report
    assert report is not None
    assert report.passed, "\n".join(report.lines())


def test_older_keys_of_windows(tmp_path: Path) -> None:
    source, _ = saved("modernbert", tmp_path / "source")
    path = source / "config.json"
    config = json.loads(path.read_text())
    for key in ("layer_types", "rope_parameters"):
        config.pop(key, None)
    older = {"global_attn_every_n_layers": 2, "global_rope_theta": 80000.0, "local_rope_theta": 5000.0}
    path.write_text(json.dumps(config | older))
    done = lineage.convert(str(source), tmp_path / "out")
    assert done.report is not None
    assert done.report.passed, "\n".join(done.report.lines())
    bodies = [block.attention.body for block in lineage.from_pretrained(tmp_path / "out").spec.blocks]
    assert [body.rotary.theta for body in bodies] == [80000.0, 5000.0, 80000.0, 5000.0]
    assert [body.mask.reach for body in bodies] == [None, 3, None, 3]


BUGS: dict[str, tuple[str, str]] = {
    "electra": ("embed.projection.dense", "embed.projection.dense"),
    "albert": ("blocks.0.mlp.body.up", "blocks.0.mlp.body.up"),
    "mpnet": ("blocks.1.attention.body.k", "blocks.1.attention.body.k"),
    "modernbert": ("blocks.1.mlp.body.gate", "blocks.1.mlp.body.gate"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_wrong_tensor_is_named(name: str, tmp_path: Path) -> None:
    place, guilty = BUGS[name]
    lineage.convert(str(write_tiny(name, tmp_path / "source")), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        model.get_submodule(place).weight[0, 0] += 1e-3
    report = lineage.verify(model, only=["replay"])
    assert not report.passed
    assert {node["ours"] for node in report.guilty} == {guilty}


def test_a_bias_by_distance_that_is_lost_is_seen(tmp_path: Path) -> None:
    lineage.convert(str(write_tiny("mpnet", tmp_path / "source")), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        model.position_bias.weight.zero_()
    report = lineage.verify(model, only=["replay", "fp64"])
    assert not report.passed


REFUSED = {
    "electra": {"is_decoder": True},
    "albert": {"inner_group_num": 2},
    "mpnet": {"relative_attention_num_buckets": 16},
    "modernbert": {"layer_types": ["full_attention", "chunked_attention", "full_attention", "full_attention"]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_key_named(name: str, tmp_path: Path) -> None:
    write_tiny(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | REFUSED[name]))
    with pytest.raises(ArchitectureError) as caught:
        lineage.convert(str(tmp_path), tmp_path.parent / "out", verify=False)
    assert next(iter(REFUSED[name])) in str(caught.value.facts) + caught.value.message
