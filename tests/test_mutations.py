"""The gates have teeth: every attribute of every spec is changed in turn, and each change is noticed.

A change of shapes is refused when the tensors are loaded. Any other must move a result of some default probe far
above the limit of the fp64 level (or a gradient, where training alone is meant). What moves nothing is dead (remove
it), uncovered (add a case), or listed below with its reason.
"""

import json
import shutil
from copy import copy
from dataclasses import fields, replace
from functools import cache
from typing import get_type_hints

import pytest
import torch
import torch.nn.functional as F

import lineage
from lineage import components as c
from lineage import graph
from lineage.errors import ArchitectureError
from lineage.modules.model import Model, build
from lineage.modules.norm import LayerNorm
from lineage.parity.probes import default_probes
from tests.judge import CONDITIONAL, EQUIVALENT, ROUNDING, Grown, Judge, calls, grown, known, spread_model
from tests.mutants import Mutant, mutants, places
from tests.specimens import SPECIMENS
from tests.tiny import BY_NAME, CASES, Case
from tests.workshop import Workshop

SAME = {"gpt2-gelu-python", "gpt2-gelu-accurate", "gpt2-swish", "gpt2-upcast", "gpt-swish"}
DISTINCT: list[Case] = [case for case in CASES if case.name not in SAME]  # the rest have specs that others have too
GROWN = [  # with this theta some frequency lies in every band
    grown("llama", "biased", bias=True, mlp_bias=True, tied=True),
    grown("llama", "linear", scaling=c.Linear(factor=4.0)),
    grown("llama", "dynamic", scaling=c.Dynamic(factor=4.0, length=40)),
    grown("llama", "banded", theta=100.0, scaling=c.Banded(factor=8.0, low=1.0, high=4.0, length=40)),
    grown("llama", "yarn", theta=100.0, scaling=c.Yarn(factor=4.0, length=40, fast=3.0, whole=False, attention=1.2)),
    grown("qwen3"),
    grown("gemma2"),
    grown("mixtral"),
    grown("qwen3_moe", normalise=False),
    grown("gpt_neox"),
]
COVERED: list[Case | Grown | str] = [*DISTINCT, *GROWN, *SPECIMENS]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.getbasetemp() / "tiny")


@pytest.fixture(scope="session")
def judges(workshop):
    @cache
    def judge(case: Case | Grown | str) -> Judge:
        if isinstance(case, str):
            outputs = ("logits",) if SPECIMENS[case].head else ("scores",)
            return Judge(spread_model(SPECIMENS[case]), outputs, calls(SPECIMENS[case]))
        if isinstance(case, Grown):
            return Judge(case.model(torch.float64))
        return Judge(lineage.from_pretrained(workshop.converted(case), dtype="fp64"), tuple(case.outputs))

    return judge


def unnoticed(one: Judge) -> list[Mutant]:
    return [mutant for mutant in mutants(one.spec) if not one.notices(mutant)]


@pytest.mark.parametrize("case", COVERED, ids=str)
def test_every_change_is_noticed(judges, case):
    one = judges(case)
    assert [str(mutant) for mutant in unnoticed(one) if not known(mutant, one.spec)] == []


def test_equivalents_are_equivalent(judges):
    """What is listed moves nothing indeed, or it must leave the list."""
    found = set()
    for one in (judges(case) for case in (BY_NAME["bert-gelu-new"], *GROWN[-2:], "alibi", "chunked", "projected",
                                       "a text among others")):  # fmt: skip
        listed = [mutant for mutant in mutants(one.spec) if known(mutant, one.spec) and built(mutant)]
        found |= set().union(*(known(mutant, one.spec) for mutant in listed))
        assert [str(mutant) for mutant in listed if one.notices(mutant)] == []
    assert found == {*EQUIVALENT, *CONDITIONAL}


def test_roundings_show_in_short_types():
    """In attention written out, since the fused kernel rounds as it likes."""
    shown, hidden = set(), []
    for case in (grown("gemma2"), grown("qwen3_moe"), grown("mixtral"), "mixed", "alibi"):
        right = spread_model(SPECIMENS[case], torch.bfloat16) if isinstance(case, str) else case.model(torch.bfloat16)
        call = calls(right.spec)[1] if isinstance(case, str) else default_probes(right.spec)[1]
        logits = written_out(right, call)
        for mutant in mutants(right.spec):
            entries = known(mutant, right.spec) & ROUNDING.keys()
            if entries and (other := built(mutant)):
                other.load_state_dict(right.state_dict(), assign=True)
                if torch.equal(written_out(other, call), logits):
                    hidden.append(f"{case}, {mutant}")
                else:
                    shown |= entries
    assert shown == ROUNDING.keys()
    assert hidden == ["mixed, blocks.0.attention.body: early False -> True"]  # whose scores are exact


def written_out(model: Model, call) -> torch.Tensor:
    model.attention = "eager"
    with torch.no_grad():
        return model(**call.arguments()).logits


def built(mutant: Mutant) -> Model | None:
    """The mutant's model; None if its spec is refused."""
    try:
        return build(mutant.make())
    except ArchitectureError:
        return None


def is_component(hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, c.Component)


def test_every_field_of_the_vocabulary_is_changed(judges):
    """A component or field that no case has is uncovered: add a case. (A part that must be there is changed inside.)"""
    kinds = [kind for kind in vars(c).values() if is_component(kind) and kind is not c.Component]
    hints = {kind: get_type_hints(kind) for kind in kinds}
    wanted = {(kind, f.name) for kind in kinds for f in fields(kind) if not is_component(hints[kind][f.name])}
    specs = [SPECIMENS[case] if isinstance(case, str) else judges(case).spec for case in COVERED]
    found = {(mutant.kind, name) for spec in specs for mutant in mutants(spec) for name in mutant.fields}
    assert {(kind.__name__, name) for kind, name in wanted - found} == set()


def dead_eps(self, x_xD):
    return F.layer_norm(x_xD, self.weight.shape, self.weight, self.bias, 1e-5)


def test_a_dead_attribute_is_found(judges, monkeypatch):
    one = judges(BY_NAME["gpt2-plain"])
    monkeypatch.setattr(LayerNorm, "forward", dead_eps)
    found = unnoticed(one)
    assert {"norm: eps 1e-05 -> 1.01e-05", "blocks.1.mlp.norm_input: eps 1e-05 -> 1.01e-05"} <= set(map(str, found))
    assert all("eps" in str(mutant) for mutant in found if not known(mutant, one.spec))


def test_an_uncovered_case_is_found(judges):
    """On one token alone neither mask nor scale can be seen."""
    one = judges(BY_NAME["gpt2-relu"])
    blind = copy(one)
    blind.probes = [replace(probe, ids_BT=probe.ids_BT[:1, :1], keep_BT=None) for probe in one.probes[:1]]
    model = build(one.spec)
    model.load_state_dict(one.state, assign=True)
    blind.results = [blind.run(model, probe) for probe in blind.probes]
    unseen = [str(mutant) for mutant in unnoticed(blind)]
    assert {text.split()[1] for text in unseen if "attention.body:" in text} >= {"mask", "scale"}


GUILTY = [  # a case, where its spec is changed and how, and the part of it that must be named ("" for all of it)
    ("gpt2-plain", "blocks.1.mlp.body", {"activation": "gelu"}, ".act"),
    ("gpt2-plain", "blocks.0.attention.norm_input", {"eps": 1e-6}, ""),
    ("gpt2-plain", "norm", {"eps": 1.1e-5}, ""),
    ("gpt2-plain", "blocks.1.attention.body", {"scale": 0.36}, ".product"),
    ("gpt2-plain", "blocks.0.attention.body", {"mask": c.Bidirectional()}, ".product"),
    ("gpt2-untied", "blocks.2.attention.body", {"heads": 6, "kv_heads": 6, "head_width": 5}, ".product"),
    ("gpt-plain", "blocks.1.mlp.norm_sum", {"eps": 1e-6}, ""),
    ("bert-masked", "blocks.0.mlp.body", {"activation": "gelu_new"}, ".act"),
    ("bert-masked", "blocks.1.attention.body", {"mask": c.Causal()}, ".product"),
    ("bert-masked", "embed.norm", {"eps": 1e-6}, ""),
    ("bert-masked", "head.transform", {"activation": "gelu_tanh"}, ".act"),
    ("bert-masked", "head.transform.norm", {"eps": 1e-7}, ""),
    ("roberta-masked", "embed.positions", {"ids": c.SkipPadding(pad=2)}, ""),
    ("distilbert-masked", "blocks.0.attention.body", {"scale": 0.28}, ".product"),
]


@pytest.mark.parametrize(("name", "path", "values", "part"), GUILTY, ids=[f"{n}-{p}-{min(v)}" for n, p, v, _ in GUILTY])
def test_the_guilty_component_is_named(workshop, tmp_path, name, path, values, part):
    directory = shutil.copytree(workshop.converted(BY_NAME[name]), tmp_path / "changed")
    record = json.loads((directory / "lineage.json").read_text())
    spec = graph.model_from_json(record["spec"])
    old, rebuild = next((old, rebuild) for place, old, rebuild in places(spec) if place == path)
    record["spec"] = graph.to_json(rebuild(replace(old, **values)))
    (directory / "lineage.json").write_text(json.dumps(record))
    report = lineage.verify(directory)
    assert not report.passed
    assert report.exit_code == 3
    assert report.level("bytes").verdict == "passed"
    assert {"replay", "fp64"} <= {level.name for level in report.levels if level.failed}
    assert [node["ours"] for node in report.guilty] == [path + part]
