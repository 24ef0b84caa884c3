"""The gates have teeth: every attribute of every spec is changed in turn, and each change is noticed.

A change of shapes is refused when the tensors are loaded. Any other must move a result of some default probe far
above the limit of the fp64 level (or a gradient, where training alone is meant). What moves nothing is dead (remove
it), uncovered (add a case), or listed below with its reason.
"""

import json
import re
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
from lineage.parity.probes import default_probes, usable_length
from tests.mutants import Mutant, mutants, places
from tests.tiny import BY_NAME, CASES, Case
from tests.workshop import Workshop

VISIBLE = 1e-9  # relative; a thousand times the limit of the fp64 level
SAME = {"gpt2-gelu-python", "gpt2-gelu-accurate", "gpt2-swish", "gpt2-upcast", "gpt-swish"}
DISTINCT = [case for case in CASES if case.name not in SAME]  # the rest have specs that others have too
EQUIVALENT = {  # a mutant's text -> why it is no other model
    r".*activation gelu_(new|tanh) -> gelu_(tanh|new)": "one function, rounded differently in its last place",
}
TRAINING = r"embed: padding .*"  # mutants that must move a gradient, and no result


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.getbasetemp() / "tiny")


class Judge:
    """The right model with its results; `notices` says whether a mutant differs."""

    def __init__(self, model: Model, outputs: tuple[str, ...]) -> None:
        self.outputs, self.spec = outputs, model.spec
        self.state = model.state_dict()
        self.probes = default_probes(self.spec)
        self.results = [self.run(model, probe) for probe in self.probes]
        self.gradients = self.train(model)

    def notices(self, mutant: Mutant) -> bool:
        try:
            spec = mutant.make()
        except ArchitectureError:
            return True
        model = build(spec)
        state = {name: self.state.get(mutant.source(name)) for name in model.state_dict()}
        if not self.fits(model, state):
            taken = {name: tensor for name, tensor in state.items() if tensor is not None}
            rest = self.state.keys() - {mutant.source(name) for name in taken}
            with pytest.raises(RuntimeError, match="in loading state_dict"):
                model.load_state_dict(taken | {name: self.state[name] for name in rest}, strict=True, assign=True)
            return True
        model.load_state_dict(state, strict=True, assign=True)
        return self.trains_otherwise(model, mutant) if re.fullmatch(TRAINING, str(mutant)) else self.moves(model)

    def fits(self, model: Model, state: dict) -> bool:
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        have = {name: tensor.shape for name, tensor in state.items() if tensor is not None}
        return shapes == have and len(have) == len(self.state)

    def moves(self, model: Model) -> bool:
        """Whether some result is another one; a call that fails is."""
        for probe, right in zip(self.probes, self.results, strict=True):
            try:
                found = self.run(model, probe)
            except (IndexError, lineage.LineageError):
                return True
            if any(distance(found[name], right[name]) > VISIBLE for name in self.outputs):
                return True
        return False

    def run(self, model: Model, probe) -> dict:
        with torch.no_grad():
            out = model(**probe.arguments())
        found = {name: getattr(out, name) for name in self.outputs}
        keep = probe.keep_BT
        return {n: v[keep] if keep is not None and v is not None and v.dim() == 3 else v for n, v in found.items()}

    def trains_otherwise(self, model: Model, mutant: Mutant) -> bool:
        """By the largest gradient of all: some are zero in truth, and noise by themselves."""
        largest = max(gradient.abs().max().item() for gradient in self.gradients.values())
        gaps = [(g - self.gradients[mutant.source(name)]).abs().max().item() for name, g in self.train(model).items()]
        return max(gaps) > VISIBLE * largest

    def train(self, model: Model) -> dict:
        """Gradients of the sum of the results' squares, on every token there is."""
        ids = torch.arange(min(self.spec.embed.vocab, usable_length(self.spec)))[None]
        model.requires_grad_(True).zero_grad()
        out = model(ids)
        sum((getattr(out, name) ** 2).sum() for name in self.outputs).backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.requires_grad_(False)
        return {name: gradient.clone() for name, gradient in found.items()}


def distance(ours: torch.Tensor | None, theirs: torch.Tensor) -> float:
    """Relative; infinite where a result is missing or not a number."""
    if ours is None:
        return float("inf")
    gap = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-300)).item()
    return gap if gap == gap else float("inf")


@pytest.fixture(scope="session")
def judges(workshop):
    @cache
    def judge(case: Case) -> Judge:
        return Judge(lineage.from_pretrained(workshop.converted(case), dtype="fp64"), tuple(case.outputs))

    return judge


def unnoticed(one: Judge) -> list[str]:
    return [str(mutant) for mutant in mutants(one.spec) if not one.notices(mutant)]


def is_equivalent(text: str) -> bool:
    return any(re.fullmatch(known, text) for known in EQUIVALENT)


@pytest.mark.parametrize("case", DISTINCT, ids=str)
def test_every_change_is_noticed(judges, case):
    assert [text for text in unnoticed(judges(case)) if not is_equivalent(text)] == []


def test_equivalents_are_equivalent(judges):
    """What is listed moves nothing indeed, or it must leave the list."""
    one = judges(BY_NAME["bert-gelu-new"])
    listed = [mutant for mutant in mutants(one.spec) if is_equivalent(str(mutant))]
    assert {known for known in EQUIVALENT for mutant in listed if re.fullmatch(known, str(mutant))} == set(EQUIVALENT)
    assert [str(mutant) for mutant in listed if one.notices(mutant)] == []


def is_component(hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, c.Component)


def test_every_field_of_the_vocabulary_is_changed(judges):
    """A component or field that no case has is uncovered: add a case. (A part that must be there is changed inside.)"""
    kinds = [kind for kind in vars(c).values() if is_component(kind) and kind is not c.Component]
    hints = {kind: get_type_hints(kind) for kind in kinds}
    wanted = {(kind, f.name) for kind in kinds for f in fields(kind) if not is_component(hints[kind][f.name])}
    found = {
        (mutant.kind, name) for case in DISTINCT for mutant in mutants(judges(case).spec) for name in mutant.fields
    }
    assert {(kind.__name__, name) for kind, name in wanted - found} == set()


def dead_eps(self, x_xD):
    return F.layer_norm(x_xD, self.weight.shape, self.weight, self.bias, 1e-5)


def test_a_dead_attribute_is_found(judges, monkeypatch):
    one = judges(BY_NAME["gpt2-plain"])
    monkeypatch.setattr(LayerNorm, "forward", dead_eps)
    found = unnoticed(one)
    assert {"norm: eps 1e-05 -> 1.01e-05", "blocks.1.mlp.norm_input: eps 1e-05 -> 1.01e-05"} <= set(found)
    assert all("eps" in text for text in found if not is_equivalent(text))


def test_an_uncovered_case_is_found(judges):
    """On one token alone neither mask nor scale can be seen."""
    one = judges(BY_NAME["gpt2-relu"])
    blind = copy(one)
    blind.probes = [replace(probe, ids_BT=probe.ids_BT[:1, :1], keep_BT=None) for probe in one.probes[:1]]
    model = build(one.spec)
    model.load_state_dict(one.state, assign=True)
    blind.results = [blind.run(model, probe) for probe in blind.probes]
    assert {text.split()[1] for text in unnoticed(blind) if "attention.body:" in text} >= {"mask", "scale"}


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
