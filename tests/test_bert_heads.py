"""Heads that score classes: every class of the reference, from files of both sides; losses, refusals, heads dropped."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import lineage
from cli import cli
from lineage import catalog
from lineage.checkpoint.source import Access
from lineage.describe import describe
from lineage.errors import ArchitectureError, TensorMismatch, UsageError
from lineage.parity.tiny import write_tiny

LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}
KINDS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "albert", "mpnet", "modernbert",
         "deberta-v2")  # fmt: skip
SCORED = [
    (kind, reference.name, str(reference.decides["task"]))
    for kind in KINDS
    for reference in catalog.dialects()[kind].references
    if reference.tells
]
SMALL = {"layers": 2}
D = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
OWN = {
    "distilbert": {"vocab_size": 97, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "modernbert": D | {"local_attention": 6, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 3,
                       "cls_token_id": 3, "sep_token_id": 2},
    "electra": D | {"embedding_size": 24},
    "albert": D | {"embedding_size": 24},
}  # fmt: skip


def passed(report: Any) -> Any:
    assert report is not None
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} >= LEVELS
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12
    return report


def test_every_kind_of_head_is_tried() -> None:
    assert {task for _, _, task in SCORED} == {"text", "choice", "tokens", "span", "replaced"}
    assert all(
        {task for one, _, task in SCORED if one == kind} >= {"text", "choice", "tokens", "span"} for kind in KINDS
    )


@pytest.mark.parametrize(("kind", "name", "task"), SCORED, ids=[name for _, name, _ in SCORED])
def test_every_level_holds(kind: str, name: str, task: str, tmp_path: Path) -> None:
    classes = 2 if task == "span" else 3
    source = write_tiny(kind, tmp_path / "source", task=task, classes=classes, **SMALL)
    report = passed(lineage.convert(str(source), tmp_path / "out").report)
    assert name in report.against
    assert {figure["output"] for figure in report.level("fp64").figures} == {"scores"}


def saved(kind: str, name: str, directory: Path, **keys: Any) -> Path:
    """As transformers writes it, with spread weights."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**OWN.get(kind, D) | {"max_position_embeddings": 40} | keys)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            one = parameter.dim() == 1 and bool((parameter == 1).all())
            parameter.copy_(1 + 0.3 * noise if one else 0.3 * noise)
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("kind", "name", "task"), SCORED, ids=[name for _, name, _ in SCORED])
def test_files_that_transformers_wrote(kind: str, name: str, task: str, tmp_path: Path) -> None:
    """Compared here, apart from the ladder, by the numbers that a call gives."""
    keys = {"id2label": {0: "no", 1: "perhaps", 2: "yes"}} if task in ("text", "tokens") else {}
    source = saved(kind, name, tmp_path / "source", **keys)
    ours = lineage.from_pretrained(source, dtype="fp64")
    theirs = getattr(transformers, name).from_pretrained(source, dtype=torch.float64).eval()
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
    ids = torch.randint(5, 97, (3, 11), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    with torch.no_grad():
        mine = ours(ids, mask).scores
        given = {"input_ids": ids, "attention_mask": mask}
        out = theirs(**{key: value[None] for key, value in given.items()} if task == "choice" else given)
    if task == "span":
        want = torch.stack([out.start_logits, out.end_logits], -1)
    else:
        want = out.logits.reshape(mine.shape) if task in ("choice", "replaced") else out.logits
    kept = mask.bool() if want.dim() == 3 else ...
    assert (mine - want)[kept].abs().max() <= 1e-5 * want.abs().max()  # its norms and angles are in single precision


@pytest.mark.parametrize(
    ("problem", "classes"),
    [("regression", 1), ("regression", 3), ("single_label_classification", 3), ("multi_label_classification", 3),
     (None, 1), (None, 4)],
)  # fmt: skip
def test_losses_of_texts(problem: str | None, classes: int, tmp_path: Path) -> None:
    names = {number: f"C{number}" for number in range(classes)}
    source = saved("roberta", "RobertaForSequenceClassification", tmp_path / "s", problem_type=problem, id2label=names)
    report = lineage.verify(source, only=["training"])
    assert report.passed, "\n".join(report.lines())


def test_a_loss_that_is_another_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved("bert", "BertForSequenceClassification", tmp_path / "s", problem_type="multi_label_classification")
    monkeypatch.setattr(
        "lineage.parity.training.class_loss", lambda scores, labels, problem: F.mse_loss(scores, labels)
    )
    assert not lineage.verify(source, only=["training"]).passed


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", ["ModernBertForSequenceClassification", "ModernBertForMultipleChoice"])
def test_how_a_text_becomes_a_vector(name: str, pooling: str, tmp_path: Path) -> None:
    source = saved("modernbert", name, tmp_path / "source", classifier_pooling=pooling)
    report = passed(lineage.convert(str(source), tmp_path / "out").report)
    assert any("padded on the left" in note for note in report.notes) == (pooling == "cls" and "Sequence" in name)


def test_pretraining_heads_of_two_sentences(tmp_path: Path) -> None:
    source = saved("albert", "AlbertForPreTraining", tmp_path / "source")
    report = passed(lineage.convert(str(source), tmp_path / "out").report)
    assert {figure["output"] for figure in report.level("fp64").figures} == {"logits", "next_sentence"}


BUGS = {
    "bert": ("text", "classifier"), "roberta": ("text", "classifier.transform.dense"),
    "distilbert": ("text", "classifier.transform.dense"), "electra": ("replaced", "classifier.transform.dense"),
    "modernbert": ("tokens", "classifier.transform.dense"), "mpnet": ("span", "classifier"),
    "albert": ("choice", "pooler.dense"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BUGS)
def test_a_wrong_number_is_named(kind: str, tmp_path: Path) -> None:
    task, guilty = BUGS[kind]
    lineage.convert(str(write_tiny(kind, tmp_path / "source", task=task, **SMALL)), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        model.get_submodule(guilty).weight[0, 0] += 1e-3
    report = lineage.verify(model, only=["replay"])
    assert {node["ours"] for node in report.guilty} == {guilty}


def test_another_vector_and_another_activation_are_seen(tmp_path: Path) -> None:
    lineage.convert(str(write_tiny("roberta", tmp_path / "s", task="text", **SMALL)), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    model.classifier.transform.act.function = torch.relu
    assert {node["ours"] for node in lineage.verify(model, only=["replay"]).guilty} == {"classifier.transform.act"}
    lineage.convert(str(write_tiny("roberta", tmp_path / "t", task="choice", **SMALL)), tmp_path / "o", verify=False)
    model = lineage.from_pretrained(tmp_path / "o")
    model.pooler.register_forward_pre_hook(lambda _, args: args[0].flip(1))
    assert not lineage.verify(model, only=["fp64"]).passed


def edited(directory: Path, **keys: Any) -> Path:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | keys
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return directory


def test_an_old_file_of_tokens_with_a_pooler(tmp_path: Path) -> None:
    """Classes of tokens had one, which nothing reads: its bytes are kept."""
    source = saved("bert", "BertForSequenceClassification", tmp_path / "source")
    edited(source, architectures=["BertForTokenClassification"])
    report = passed(lineage.convert(str(source), tmp_path / "out").report)
    assert "BertForTokenClassification" in report.against
    assert any("no pooler" in note for note in report.notes)


@pytest.mark.parametrize("named", [..., [], ["BertModel"], ["BertForSequenceClassification", "BertForMultipleChoice"]])
def test_a_head_of_which_nothing_tells_is_refused(named: Any, tmp_path: Path) -> None:
    source = edited(saved("bert", "BertForSequenceClassification", tmp_path / "source"), architectures=named)
    with pytest.raises(ArchitectureError, match="architectures names") as caught:
        lineage.convert(str(source), tmp_path / "out")
    assert "BertForTokenClassification" in caught.value.facts[0]
    assert "--drop-head" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_one_kind_of_head_needs_no_name(tmp_path: Path) -> None:
    source = edited(saved("bert", "BertForQuestionAnswering", tmp_path / "source"), architectures=...)
    assert lineage.from_pretrained(source).spec.classifier.task == "span"


WRONG = {
    "id2label": {"id2label": ["no", "yes"]}, "num_labels": {"id2label": {"0": "a", "1": "b"}, "num_labels": 3},
    "problem_type": {"problem_type": "ranking"}, "label count": {"id2label": None, "num_labels": 0},
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_classes_that_cannot_be_are_refused(key: str, tmp_path: Path) -> None:
    source = edited(saved("bert", "BertForSequenceClassification", tmp_path / "source"), **WRONG[key])
    with pytest.raises(ArchitectureError) as caught:
        lineage.convert(str(source), tmp_path / "out", verify=False)
    assert (
        next(name for name in ("num_labels", "id2label", "problem_type") if name in WRONG[key]) in caught.value.message
    )


def test_as_many_classes_as_the_config_says(tmp_path: Path) -> None:
    source = edited(saved("bert", "BertForSequenceClassification", tmp_path / "source"), num_labels=5)
    with pytest.raises(TensorMismatch) as caught:
        lineage.convert(str(source), tmp_path / "out", verify=False)
    assert any("classifier.weight  [2, 32], expected [5, 32]" in fact for fact in caught.value.facts)


def test_an_answer_has_two_ends(tmp_path: Path) -> None:
    source = edited(saved("bert", "BertForQuestionAnswering", tmp_path / "source"), num_labels=3)
    with pytest.raises(ArchitectureError, match="takes 2 scores"):
        lineage.convert(str(source), tmp_path / "out", verify=False)


def test_summaries_of_other_kinds_are_refused(tmp_path: Path) -> None:
    source = saved("electra", "ElectraForMultipleChoice", tmp_path / "source", summary_type="mean")
    with pytest.raises(ArchitectureError, match="summary_type"):
        lineage.convert(str(source), tmp_path / "out", verify=False)


def strange(directory: Path, *names: str) -> Path:
    """A checkpoint with these tensors beside its own."""
    file = saved("bert", "BertForMaskedLM", directory) / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(3, 32) for name in names}, file, {"format": "pt"})
    return directory


def test_a_head_that_is_not_described_is_refused_or_dropped(tmp_path: Path) -> None:
    source = strange(tmp_path / "source", "rank_head.weight", "rank_head.more.weight")
    with pytest.raises(TensorMismatch) as caught:
        lineage.convert(str(source), tmp_path / "out")
    assert "--drop-head" in caught.value.hint
    done = lineage.convert(str(source), tmp_path / "out", drop_head=True)
    report = passed(done.report)
    assert "BertModel" in report.against
    lost = {drop["name"] for drop in done.manifest["plan"]["dropped"] if drop["lossy"]}
    assert lost == {name for name in load_file(source / "model.safetensors") if not name.startswith("bert.")}
    assert any("rank_head.weight" in note and "dropped as asked" in note for note in report.notes)
    spec = lineage.from_pretrained(tmp_path / "out").spec
    assert (spec.head, spec.classifier, spec.next_sentence) == (None, None, None)
    assert lineage.verify(tmp_path / "out").passed
    assert lineage.from_pretrained(source, drop_head=True).spec == spec
    with pytest.raises(UsageError, match="converted"):
        lineage.verify(tmp_path / "out", drop_head=True)


def test_what_lies_within_the_backbone_is_no_head(tmp_path: Path) -> None:
    source = strange(tmp_path / "source", "bert.adapter.weight", "encoder.layer.9.weight")
    with pytest.raises(TensorMismatch) as caught:
        lineage.convert(str(source), tmp_path / "out", drop_head=True)
    assert sum("unexpected" in fact for fact in caught.value.facts) == 2


def test_a_model_that_is_its_head_has_no_backbone(tmp_path: Path) -> None:
    write_tiny("gpt2", tmp_path / "source")
    with pytest.raises(ArchitectureError, match="head alone"):
        lineage.convert(str(tmp_path / "source"), tmp_path / "out", drop_head=True)


def test_the_command_line_drops_heads(tmp_path: Path) -> None:
    source = strange(tmp_path / "source", "rank_head.weight")
    arguments = [str(source), "-o", str(tmp_path / "out"), "--verify", "none"]
    refused = CliRunner().invoke(cli, ["convert", *arguments])
    assert refused.exit_code != 0
    found = CliRunner().invoke(cli, ["convert", *arguments, "--drop-head"])
    assert found.exit_code == 0, found.output
    assert "dropped for good" in found.output
    checked = CliRunner().invoke(cli, ["verify", str(source), "--drop-head", "--level", "fp64"])
    assert checked.exit_code == 0, checked.output
    assert "dropped as asked" in checked.output


def test_a_config_alone_tells_of_its_head(tmp_path: Path) -> None:
    saved("electra", "ElectraForPreTraining", tmp_path / "source")
    (tmp_path / "source" / "model.safetensors").unlink()
    model = describe(str(tmp_path / "source" / "config.json"), Access()).model
    assert (model.classifier.task, model.head) == ("replaced", None)
