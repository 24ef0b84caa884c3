"""DeBERTa 2 and 3: distances, convolution, both masked-token heads; files of both sides, aged, with planted bugs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import lineage
from lineage import graph
from lineage.errors import ArchitectureError, TensorMismatch
from lineage.modules.disentangled import Distances
from lineage.parity.tiny import write_tiny

LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}
SMALL = {"layers": 2}
CASES: dict[str, dict[str, Any]] = {
    "as version 3": {},
    "older head": {"late": False},
    "with a convolution": {"kernel": 3, "conv_activation": "gelu", "layers": 3},
    "in groups, of five tokens, table as it is": {"kernel": 5, "conv_groups": 2, "table_norm": "none"},
    "maps of their own, every distance": {"shared": False, "span": None, "reach": 9, "absolute": True, "segments": 2},
    "keys alone": {"queries": False, "shared": False},
    "queries alone": {"keys": False},
    "no distances": {"relative": False, "keys": False, "queries": False, "table_norm": "none", "absolute": True},
    "encoder": {"head": False},
    **{task: {"task": task, "head": False, "summary": "tanh"} for task in ("text", "choice", "tokens", "span")},
}


def passed(report: Any) -> Any:
    assert report is not None
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= LEVELS
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12
    return report


@pytest.mark.parametrize("name", CASES)
def test_every_level_holds(name: str, tmp_path: Path) -> None:
    source = write_tiny("deberta-v2", tmp_path / "source", **SMALL | CASES[name])
    passed(lineage.convert(str(source), tmp_path / "out").report)


D = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
V3 = D | {
    "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "position_biased_input": False, "max_relative_positions": -1,
}  # fmt: skip
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "version 3": ("DebertaV2ForMaskedLM", V3 | {"legacy": False}),
    "version 3, older head": ("DebertaV2ForMaskedLM", V3),
    "untied": ("DebertaV2ForMaskedLM", V3 | {"tie_word_embeddings": False}),
    "xlarge": ("DebertaV2ForMaskedLM", V3 | {"conv_kernel_size": 3, "conv_act": "gelu", "attention_head_size": 8}),
    "maps apart": (
        "DebertaV2ForMaskedLM",
        D | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 2},
    ),
    "the class's defaults": ("DebertaV2Model", D),
    "classes": ("DebertaV2ForSequenceClassification", V3 | {"id2label": {0: "a", 1: "b", 2: "c"}}),
}


def saved(name: str, directory: Path) -> tuple[Path, int]:
    """As transformers writes it, with spread weights; and how many parameters it counts."""
    kind, keys = MADE[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.DebertaV2Config(**keys))
    held = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            one = parameter.dim() == 1 and bool((parameter == 1).all())
            parameter.copy_(1 + 0.3 * noise if one else 0.3 * noise)
        if "cls.predictions.decoder.bias" in held:  # one, as tied; untied, no forward reads the second
            held["cls.predictions.decoder.bias"].copy_(held["cls.predictions.bias"])
    model.save_pretrained(directory)
    dead = keys["vocab_size"] if name == "untied" else 0
    return directory, model.num_parameters() - dead


@pytest.mark.parametrize("name", MADE)
def test_files_that_transformers_wrote(name: str, tmp_path: Path) -> None:
    source, count = saved(name, tmp_path / "source")
    passed(lineage.convert(str(source), tmp_path / "out").report)
    assert graph.parameters(lineage.from_pretrained(tmp_path / "out").spec) == count


def edited(directory: Path, **keys: Any) -> Path:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return directory


def test_a_file_as_it_was_published(tmp_path: Path) -> None:
    """The later head under a config that says nothing of it; a head that no class has, places that nobody reads."""
    source, _ = saved("version 3", tmp_path / "source")
    edited(source, legacy=..., architectures=..., pos_att_type="p2c|c2p", attention_head_size=8)
    file = source / "model.safetensors"
    tensors = load_file(file) | {
        "deberta.embeddings.position_ids": torch.arange(40)[None],
        "deberta.embeddings.position_embeddings.weight": torch.randn(40, 32),
        "mask_predictions.dense.weight": torch.randn(32, 32), "mask_predictions.LayerNorm.weight": torch.randn(32),
        "mask_predictions.classifier.bias": torch.randn(1),
    }  # fmt: skip
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    aged = {next((n.replace(new, o) for new, o in old.items() if n.endswith(new)), n): t for n, t in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in aged.items()}, file, {"format": "pt"})
    done = lineage.convert(str(source), tmp_path / "out")
    passed(done.report)
    lossy = {drop["name"] for drop in done.manifest["plan"]["dropped"] if drop["lossy"]}
    assert lossy == {name for name in aged if "mask_predictions" in name or "position_embeddings" in name}
    assert lineage.from_pretrained(tmp_path / "out").spec.head.late


def test_a_backbone_without_its_prefix(tmp_path: Path) -> None:
    source, _ = saved("the class's defaults", tmp_path / "source")
    file = source / "model.safetensors"
    save_file({f"deberta.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with_prefix = lineage.from_pretrained(source)
    save_file({name.removeprefix("deberta."): t for name, t in load_file(file).items()}, file, {"format": "pt"})
    assert lineage.from_pretrained(source).spec == with_prefix.spec


def converted(tmp_path: Path, **arguments: Any) -> Any:
    source = write_tiny("deberta-v2", tmp_path / "source", **SMALL | arguments)
    lineage.convert(str(source), tmp_path / "out", verify=False)
    return lineage.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize(
    ("guilty", "arguments"),
    [("blocks.1.attention.body.distance_key", {"shared": False}), ("blocks.0.attention.body.q", {}),
     ("blocks.1.mlp.body.up", {}), ("distances.norm", {})],
)  # fmt: skip
def test_a_wrong_number_is_named(guilty: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    model = converted(tmp_path, **arguments)
    with torch.no_grad():
        model.get_submodule(guilty).weight.view(-1)[0] += 1e-3
    found = {node["ours"] for node in lineage.verify(model, only=["replay"]).guilty}
    assert guilty in found
    if guilty.startswith("blocks."):  # what is wrong about distances, every block reads
        assert {one.rpartition(".")[0] for one in found} == {guilty.rpartition(".")[0]}


def test_a_convolution_of_other_tokens_is_named(tmp_path: Path) -> None:
    model = converted(tmp_path, kernel=3)
    with torch.no_grad():
        model.convolution.weight.copy_(model.convolution.weight.flip(-1))
    assert {node["ours"] for node in lineage.verify(model, only=["replay"]).guilty} == {"convolution"}


@pytest.mark.parametrize("change", ["turned round", "one range less", "the table's norm left out", "another scale"])
def test_distances_that_are_wrong_are_seen(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = converted(tmp_path)
    right = Distances.forward

    def turned(self: Distances, place_T: torch.Tensor, place_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table_RD, rows_TS = right(self, place_T, place_S)
        return table_RD, rows_TS.T if change == "turned round" else rows_TS.clamp(max=14)

    if change in ("turned round", "one range less"):
        monkeypatch.setattr(Distances, "forward", turned)
    elif change == "the table's norm left out":
        model.distances.norm = torch.nn.Identity()
    else:
        monkeypatch.setattr("lineage.modules.disentangled.math.sqrt", lambda value: value**0.5 * 1.01)
    report = lineage.verify(model, only=["replay", "fp64"])
    assert not report.passed
    assert any(".attention.body" in node["ours"] for node in report.guilty)


WRONG: dict[str, dict[str, Any]] = {
    "embedding_size": {"embedding_size": 16},
    "attention_head_size": {"attention_head_size": 12},
    "pooler_hidden_size": {"pooler_hidden_size": 48},
    "pos_att_type": {"pos_att_type": "p2c|p2p"},
    "norm_rel_ebd": {"norm_rel_ebd": "batch_norm"},
    "relative_attention": {"relative_attention": False},
    "position_buckets": {"position_buckets": 1},
    "conv_kernel_size": {"conv_kernel_size": 4},
    "conv_groups": {"conv_kernel_size": 3, "conv_groups": 5},
    "hidden_act": {"hidden_act": "selu"},
}


@pytest.mark.parametrize("key", WRONG)
def test_refused_with_the_key_named(key: str, tmp_path: Path) -> None:
    source, _ = saved("version 3", tmp_path / "source")
    edited(source, **WRONG[key])
    with pytest.raises(ArchitectureError) as caught:
        lineage.convert(str(source), tmp_path / "out", verify=False)
    assert key in str(caught.value.facts) + caught.value.message


def test_neither_keys_nor_queries_are_refused(tmp_path: Path) -> None:
    source, _ = saved("version 3", tmp_path / "source")
    edited(source, pos_att_type=None)
    with pytest.raises(ArchitectureError, match="neither keys nor queries"):
        lineage.convert(str(source), tmp_path / "out", verify=False)


def test_maps_that_are_missing_are_told(tmp_path: Path) -> None:
    source, _ = saved("version 3", tmp_path / "source")
    edited(source, share_att_key=False)
    with pytest.raises(TensorMismatch) as caught:
        lineage.convert(str(source), tmp_path / "out", verify=False)
    assert any("pos_key_proj" in fact for fact in caught.value.facts)


def test_what_changed_since_the_parent() -> None:
    found = lineage.diff("bert", "deberta-v3-base")
    assert {"disentangled", "positions"} <= {row.aspect for row in found.design}
    assert found.apply(found.before) == found.after
    assert graph.parameters(lineage.spec("deberta-v3-base", head=False)) == 183_831_552
