"""Every model type, native and aged, from file to proof: each tiny case is converted and what comes out is judged.

The report is read here, not trusted: that it holds the levels and probes it should, and that their figures are small.
Beside it stand checks that use nothing of `lineage.parity`.
"""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lineage
from lineage import catalog, graph
from lineage.errors import TensorMismatch
from tests import aged, tiny
from tests.aged import AGES
from tests.tiny import BY_NAME, CASES, Case
from tests.workshop import CORE, WITH_FP32, Workshop, check_same_tensors, restored

LENGTHS = {"short": 5, "long": 128}
FP64, FP32 = 1e-12, 2e-5
REPRESENTATIVES = [
    BY_NAME[name]
    for name in (
        "gpt2-plain", "gpt-plain", "bert-masked", "bert-encoder", "bert-pretraining", "roberta-masked",
        "roberta-encoder", "xlm-roberta-masked", "distilbert-masked", "distilbert-encoder",
    )
]  # fmt: skip
NATIVE = [(case, "native") for case in CASES]
HUB = [(case, "hub") for case in CASES]
EACH_AGE = [(case, age) for case in REPRESENTATIVES for age in AGES if age != "hub" and AGES[age].fits(case)]
EVERY = NATIVE + HUB + EACH_AGE
EPS = [*REPRESENTATIVES, *(BY_NAME[name] for name in ("gpt2-odd-mlp", "gpt-untied", "bert-untied", "roberta-relu"))]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.getbasetemp() / "tiny")


def case_and_age(pairs):
    return pytest.mark.parametrize(("case", "age"), pairs, ids=[f"{case}-{age}" for case, age in pairs])


def check_report(report, case: Case, levels=WITH_FP32) -> None:
    assert report.passed, "\n".join(report.lines())
    assert report.guilty == ()
    verdicts = {level.name: level.verdict for level in report.levels}
    assert {name for name, verdict in verdicts.items() if verdict == "passed"} >= set(levels)
    wanted = {(output, probe) for output in case.outputs for probe in ("short", "long", "full", "padded")}
    for name in {"fp64", "fp32"} & set(levels):
        rows = report.level(name).figures
        assert {(row["output"], row["probe"]) for row in rows} >= wanted
        for row in rows:
            check_figures(name, row, case)


def check_figures(level: str, row: dict, case: Case) -> None:
    by_token = row["output"] in ("logits", "hidden")
    if by_token and row["probe"] in {*LENGTHS, "full"}:
        assert row["positions"] == {**LENGTHS, "full": case.context}[row["probe"]]
    if row["probe"] == "padded":
        assert row["positions"] >= (40 if by_token else 3)
    assert row["std"] > 0.05, "nothing to compare"
    if level == "fp64":
        assert row["rel"] <= FP64
    elif row["probe"] == "short":
        assert row["max_abs"] <= FP32 * max(1.0, row["std"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_converts_and_passes_every_level(workshop, tmp_path, case):
    report = lineage.convert(str(workshop.source(case)), tmp_path / "out").report
    check_report(report, case, [*WITH_FP32, "against"])
    assert {level.verdict for level in report.levels} == {"passed"}


@case_and_age(HUB + EACH_AGE)
def test_aged_copy_passes(workshop, case, age):
    """In single precision only the representatives: the numbers are the native ones."""
    levels = WITH_FP32 if age == "hub" and case in REPRESENTATIVES else CORE
    check_report(workshop.report(case, age, levels), case, [*levels, "against"])


@pytest.mark.parametrize("case", EPS, ids=str)
def test_passes_where_eps_counts(workshop, case):
    check_report(workshop.report(case, "faint", WITH_FP32), case)


@case_and_age([(case, age) for case in REPRESENTATIVES for age in ("native", "hub")])
def test_converted_directory_is_proof_enough(workshop, case, age):
    check_report(lineage.verify(workshop.converted(case, age), only=CORE), case, CORE)


@case_and_age(EVERY)
def test_mapping_undone_gives_the_source(workshop, case, age):
    check_same_tensors(restored(workshop.converted(case, age)), aged.stored(workshop.source(case, age)))


@case_and_age(EVERY)
def test_counts_are_the_references(workshop, case, age):
    said = workshop.manifest(case, age)["parameters"]
    with tiny.quiet(), torch.device("meta"):
        reference = case.reference(case.config, **case.made_with)
    pooler = reference.config.hidden_size * (reference.config.hidden_size + 1) if age == "pooler" else 0
    dead = reference.config.vocab_size if tiny.has_dead_bias(case) else 0
    assert said == reference.num_parameters() + pooler - dead
    loaded = lineage.from_pretrained(workshop.converted(case, age))
    assert said == sum(parameter.numel() for parameter in loaded.parameters())


@case_and_age(EVERY)
def test_loads_alike_from_source_and_converted(workshop, case, age):
    one = lineage.from_pretrained(workshop.converted(case, age))
    other = lineage.from_pretrained(workshop.source(case, age), allow_pickle=True)
    assert one.spec == other.spec
    check_same_tensors(one.state_dict(), other.state_dict())
    assert {p.dtype for p in one.parameters()} == {torch.float16 if age == "half" else torch.float32}


@case_and_age([(case, age) for case, age in EVERY if case in REPRESENTATIVES])
def test_twice_gives_the_same_bytes(workshop, tmp_path, case, age):
    source, first = workshop.source(case, age), workshop.converted(case, age)
    again = lineage.convert(str(source), tmp_path / "again", verify=False, allow_pickle=True).output
    names = sorted(path.name for path in first.glob("model*"))
    assert len(names) == (aged.SHARDS + 1 if "sharded" in age else 1)
    assert names == sorted(path.name for path in again.glob("model*"))
    assert [(first / name).read_bytes() for name in names] == [(again / name).read_bytes() for name in names]


def calls(case: Case):
    """Our own inputs, apart from `lineage.parity`'s: short, long, the whole context, and padded on either side."""
    generator = torch.Generator().manual_seed(1)
    pad = case.config.pad_token_id or 0
    for length in (5, 128, case.context):
        ids = torch.randint(pad + 1, case.config.vocab_size, (2, length), generator=generator)
        keep = torch.ones(2, length, dtype=torch.long)
        yield {"input_ids": ids, "attention_mask": keep}
        keep = keep.clone()
        keep[0, -length // 3 :], keep[1, : length // 4] = 0, 0
        yield {"input_ids": torch.where(keep == 1, ids, pad), "attention_mask": keep}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_agrees_without_our_comparison(workshop, case, dtype):
    ours = lineage.from_pretrained(workshop.converted(case), dtype=dtype)
    theirs = tiny.load(case, workshop.source(case), dtype)
    for call, ours.attention in product(calls(case), ("sdpa", "eager")):
        with torch.no_grad():
            mine, reference = ours(**call), theirs(**call)
        for name, spelling in case.outputs.items():
            check_close(getattr(mine, name), reference[spelling], call["attention_mask"].bool())


def check_close(ours: Tensor, theirs: Tensor, keep: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype is theirs.dtype
    if ours.dim() == 3:
        ours, theirs = ours[keep], theirs[keep]
    gap = (ours - theirs).abs().max().item()
    if ours.dtype is torch.float64:
        assert gap <= FP64 * theirs.abs().max().item()
    else:
        assert gap <= FP32 * max(1.0, theirs.std().item()) * (1 if keep.shape[1] <= 5 else 2)


HEADS = ("gpt2-plain", "gpt-plain", "bert-masked", "roberta-masked", "xlm-roberta-masked", "distilbert-masked")


def conflicting(workshop: Workshop, name: str, place: Path, suffix: str) -> Path:
    """A copy in which a tensor that the config calls shared stands twice, and differs."""
    source = workshop.source(BY_NAME[name])
    draft = aged.Draft(BY_NAME[name], json.loads((source / "config.json").read_text()), aged.stored(source))
    aged.copies(draft)
    copy = next(copy for copy in aged.COPIES[draft.case.model_type] if copy.endswith(suffix))
    draft.tensors[copy] = draft.tensors[copy] + torch.linspace(-1, 1, draft.tensors[copy].shape[-1])
    return aged.write(draft, place, AGES["copies"])


@pytest.mark.parametrize("name", HEADS)
def test_head_that_differs_from_its_table_stands_alone(workshop, tmp_path, name):
    source = conflicting(workshop, name, tmp_path / "source", ".weight")
    done = lineage.convert(str(source), tmp_path / "out")
    assert done.manifest["arguments"]["tied"] is False
    assert "head.weight" in graph.tensors(graph.model_from_json(done.manifest["spec"]))
    assert [note for note in done.manifest["notes"] if "tied" in note and "table of its own" in note]
    check_report(done.report, BY_NAME[name])


@pytest.mark.parametrize("name", [name for name in HEADS if len(aged.COPIES[BY_NAME[name].model_type]) > 1])
def test_bias_that_differs_from_its_copy_is_refused(workshop, tmp_path, name):
    source = conflicting(workshop, name, tmp_path / "source", ".bias")
    with pytest.raises(TensorMismatch) as caught:
        lineage.convert(str(source), tmp_path / "out")
    assert "decoder.bias" in " ".join(caught.value.facts)
    assert not (tmp_path / "out").exists()


@case_and_age([pair for pair in HUB if pair[0].model_type not in aged.DECODERS])
def test_keys_that_nobody_reads_are_listed(workshop, case, age):
    unread = set(aged.OLD_KEYS[case.model_type]) & aged.UNREAD
    notes = " ".join(workshop.manifest(case, age)["notes"])
    assert unread
    assert all(key in notes for key in unread)


@case_and_age([pair for pair in EACH_AGE if pair[1] == "pooler"])
def test_what_the_reference_cannot_judge_is_said(workshop, case, age):
    assert any("pooler" in note for note in workshop.report(case, age, CORE).notes)


@pytest.mark.parametrize("family", sorted({catalog.dialects()[case.model_type].spec for case in CASES}))
def test_cases_vary_every_argument(workshop, family):
    """An argument that a converter reads needs two cases in which it differs."""
    manifests = [workshop.manifest(case) for case in CASES]
    given = [manifest["arguments"] for manifest in manifests if manifest["family"] == family]
    usual = catalog.defaults(catalog.families()[family])
    read = {name for arguments in given for name in arguments}
    values = {name: {json.dumps(one.get(name, usual[name])) for one in given} for name in read}
    assert [name for name, found in values.items() if len(found) < 2] == []


def test_every_converter_has_cases():
    """Here, or in a file of tests of its own line, by its name or by its reference's."""
    others = (path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    later = "".join(path.read_text() for path in others)
    names = {kind: (kind, dialect.references[0].name) for kind, dialect in catalog.dialects().items()}
    untried = {kind for kind, both in names.items() if not any(f'"{name}"' in later for name in both)}
    assert untried - {case.model_type for case in CASES} == set()
