"""The gates have teeth: every attribute of every spec is changed in turn, and each change is noticed.

A change of shapes is refused when the tensors are loaded. Any other must move a result of some default probe far
above the limit of the fp64 level (or a gradient, where training alone is meant). What moves nothing is dead (remove
it), uncovered (add a case), or listed below with its reason.
"""

import json
import re
import shutil
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F

import lineage
from lineage import catalog, graph
from lineage import components as c
from lineage.errors import ArchitectureError
from lineage.modules.model import Model, build
from lineage.modules.norm import LayerNorm
from lineage.parity.probes import default_probes, usable_length
from lineage.parity.tiny import spread
from tests.mutants import Mutant, mutants, places
from tests.tiny import BY_NAME, CASES, Case
from tests.workshop import Workshop

VISIBLE = 1e-9  # relative; a thousand times the limit of the fp64 level
SAME = {"gpt2-gelu-python", "gpt2-gelu-accurate", "gpt2-swish", "gpt2-upcast", "gpt-swish"}
DISTINCT: list[Case] = [case for case in CASES if case.name not in SAME]  # the rest have specs that others have too
ROUNDING = {  # what shows in short types alone
    r".*: late (True|False) -> (True|False)": "the same product, rounded before or after the weight",
    r".*: rounded (True|False) -> (True|False)": "the same sum of experts, its weights rounded before or not",
}
EQUIVALENT = ROUNDING | {  # a mutant's text -> why it is no other model
    r".*activation gelu_(new|tanh) -> gelu_(tanh|new)": "one function, rounded differently in its last place",
}


@dataclass(frozen=True)
class Grown:
    """A tiny model of a spec alone: its family's tiny arguments, some changed, two layers, spread weights."""

    name: str
    family: str
    arguments: tuple[tuple[str, Any], ...] = ()
    outputs = ("logits",)

    def __str__(self) -> str:
        return self.name

    def model(self, dtype: torch.dtype) -> Model:
        family = catalog.families()[self.family]
        spec = family.function(**{**family.tiny, "layers": 2, **dict(self.arguments)})
        model = build(spec)
        model.load_state_dict({name: tensor.to(dtype) for name, tensor in spread(spec).items()}, assign=True)
        return model.eval()


def grown(family: str, name: str = "", **arguments: Any) -> Grown:
    return Grown(f"{family}-{name or 'tiny'}", family, tuple(arguments.items()))


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
PARALLEL = r"blocks\.(\d+): attention and mlp exchanged"  # with their tensors: the same two summands
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
    def judge(case: Case | Grown) -> Judge:
        if isinstance(case, Grown):
            return Judge(case.model(torch.float64), case.outputs)
        return Judge(lineage.from_pretrained(workshop.converted(case), dtype="fp64"), tuple(case.outputs))

    return judge


def unnoticed(one: Judge) -> list[str]:
    return [str(mutant) for mutant in mutants(one.spec) if not one.notices(mutant)]


def is_equivalent(text: str, spec: c.Model) -> bool:
    turned = re.fullmatch(PARALLEL, text)
    return any(re.fullmatch(known, text) for known in EQUIVALENT) or bool(
        turned and spec.blocks[int(turned[1])].parallel
    )


@pytest.mark.parametrize("case", [*DISTINCT, *GROWN], ids=str)
def test_every_change_is_noticed(judges, case):
    one = judges(case)
    assert [text for text in unnoticed(one) if not is_equivalent(text, one.spec)] == []


def test_equivalents_are_equivalent(judges):
    """What is listed moves nothing indeed, or it must leave the list."""
    found = set()
    for one in (judges(case) for case in (BY_NAME["bert-gelu-new"], *GROWN[-2:])):
        listed = [mutant for mutant in mutants(one.spec) if is_equivalent(str(mutant), one.spec)]
        found |= {known for known in (*EQUIVALENT, PARALLEL) for mutant in listed if re.fullmatch(known, str(mutant))}
        assert [str(mutant) for mutant in listed if one.notices(mutant)] == []
    assert found == {*EQUIVALENT, PARALLEL}


@pytest.mark.parametrize("family", ["gemma2", "qwen3_moe", "mixtral"])
def test_roundings_show_in_short_types(family):
    right = grown(family).model(torch.bfloat16)
    probe = default_probes(right.spec)[1]
    with torch.no_grad():
        logits = right(**probe.arguments()).logits
        for mutant in mutants(right.spec):
            if any(re.fullmatch(known, str(mutant)) for known in ROUNDING):
                other = build(mutant.make())
                other.load_state_dict(right.state_dict(), assign=True)
                assert not torch.equal(other(**probe.arguments()).logits, logits), str(mutant)


def is_component(hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, c.Component)


def test_every_field_of_the_vocabulary_is_changed(judges):
    """A component or field that no case has is uncovered: add a case. (A part that must be there is changed inside.)"""
    kinds = [kind for kind in vars(c).values() if is_component(kind) and kind is not c.Component]
    hints = {kind: get_type_hints(kind) for kind in kinds}
    wanted = {(kind, f.name) for kind in kinds for f in fields(kind) if not is_component(hints[kind][f.name])}
    found = {
        (mutant.kind, name)
        for case in [*DISTINCT, *GROWN]
        for mutant in mutants(judges(case).spec)
        for name in mutant.fields
    }
    assert {(kind.__name__, name) for kind, name in wanted - found} == set()


def dead_eps(self, x_xD):
    return F.layer_norm(x_xD, self.weight.shape, self.weight, self.bias, 1e-5)


def test_a_dead_attribute_is_found(judges, monkeypatch):
    one = judges(BY_NAME["gpt2-plain"])
    monkeypatch.setattr(LayerNorm, "forward", dead_eps)
    found = unnoticed(one)
    assert {"norm: eps 1e-05 -> 1.01e-05", "blocks.1.mlp.norm_input: eps 1e-05 -> 1.01e-05"} <= set(found)
    assert all("eps" in text for text in found if not is_equivalent(text, one.spec))


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
