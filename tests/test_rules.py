"""Templates are reversible, and every dialect has exactly one rule for each tensor of what it can say."""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage import catalog, graph
from lineage.components import Model
from lineage.config import Flag
from lineage.errors import ArchitectureError
from lineage.plan import expected
from lineage.rules import Dialect, Rule, Stack, fill, match
from tests.published import CASES, DIALECTS, Case, keys

HOLES = {"i": st.integers(0, 999_999).map(str), "p": st.sampled_from(["weight", "bias"])}
HOLES["e"] = HOLES["i"]


def templates(dialect: Dialect) -> set[str]:
    """Every template of a dialect, on both sides."""
    rules = [name for rule in (*dialect.tensors, *dialect.memory) for name in (*rule.sources, *rule.targets)]
    taps = [name for tap in dialect.taps for name in (tap.source, tap.target, *tap.entries, *tap.feeds) if name]
    copies = [name for copy in dialect.copies for name in (copy.source, copy.of)]
    return {
        *rules,
        *taps,
        *copies,
        *(drop.source for drop in dialect.drops),
        *(name for f in dialect.finds for name in f.sources),
    }


TEMPLATES = sorted({(t, base) for d in catalog.dialects().values() for t in templates(d) for base in d.prefixes})
LAYERED = [(template, base) for template, base in TEMPLATES if "{i}" in template]


def holes(template: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", template)


@given(template=st.sampled_from(TEMPLATES), data=st.data())
def test_name_and_template_determine_each_other(template: tuple[str, str], data: st.DataObject) -> None:
    text, base = template
    binding = {hole: data.draw(HOLES[hole], hole) for hole in holes(text) if hole != "base"}
    name = fill(text, binding, base)
    assert match(text, name, base) == binding
    for wrong in (f"x{name}", f"{name}x", f"{name}\n", name.replace(".", "-", 1), f" {name}", ""):
        assert wrong == name or match(text, wrong, base) is None


@pytest.mark.parametrize(
    "number", ["01", "00", "-1", "+1", "1_0", "1.0", "", "٣", "²", " 1", "1000000", "0x1", "i", "{i}"]
)
def test_layer_has_one_spelling(number: str) -> None:
    for template, base in LAYERED:
        assert match(template, fill(template, {"i": number, "e": "0", "p": "weight"}, base), base) is None
        if "{e}" in template:
            assert match(template, fill(template, {"i": "0", "e": number, "p": "weight"}, base), base) is None


@pytest.mark.parametrize("ending", ["gamma", "weights", "Weight", "bias_", "", "w", "weight.bias"])
def test_ending_is_weight_or_bias(ending: str) -> None:
    for template, base in (pair for pair in TEMPLATES if "{p}" in pair[0]):
        assert match(template, fill(template, {"i": "0", "p": ending}, base), base) is None


def test_repeated_hole_holds_one_value() -> None:
    assert match("a.{i}.b.{i}", "a.3.b.3") == {"i": "3"}
    assert match("a.{i}.b.{i}", "a.3.b.4") is None
    assert match("a.{i}.{e}.{p}", "a.3.7.bias") == {"i": "3", "e": "7", "p": "bias"}


def test_prefix_is_taken_literally() -> None:
    assert match("{base}h.{i}", "model.h.0", "model.") == {"i": "0"}
    assert match("{base}h.{i}", "modelXh.0", "model.") is None
    assert match("{base}h.{i}", "h.0", "model.") is None


@pytest.mark.parametrize("model_type", DIALECTS)
def test_rule_binds_the_same_on_both_sides(model_type: str) -> None:
    """But for experts: one by one in files, they are rows of one tensor of the model."""
    dialect = catalog.dialects()[model_type]
    for rule in (*dialect.tensors, *dialect.memory):
        assert any("{e}" in name for name in rule.sources) == (Stack() in rule.operations)
        sides = [set(holes(name)) - {"base", "e"} for name in (*rule.sources, *rule.targets)]
        assert all(side == sides[0] for side in sides)
        assert len(rule.sources) == len(rule.targets) or rule.operations


def variants(case: Case) -> Iterator[dict[str, bool]]:
    """All that is optional on and off: heads, a shared table, the ways to scale. Some exclude each other."""
    flags = [find.argument for find in case.dialect.finds]
    flags += [key.argument for key in keys(case.dialect) if isinstance(key, Flag)]
    for values in product((True, False), repeat=len(flags)):
        yield dict(zip(flags, values, strict=True))


def models(case: Case) -> Iterator[Model]:
    yield case.model()
    for changes in variants(case):
        with contextlib.suppress(ArchitectureError):
            yield case.model(**changes, layers=2)  # names differ in the layer's number alone


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_tensor_has_exactly_one_rule_and_no_two_rules_meet(case: Case) -> None:
    """In files; and in memory, where rules of its own come first."""
    dialect = case.dialect
    for model in models(case):
        rules = [rule for rule in dialect.tensors if rule.where is None or rule.where(model)]
        targets = [target for rule in rules for target in rule.targets]
        for name in graph.tensors(model):
            assert sum(match(target, name) is not None for target in targets) == 1, name
        for tensors in (dialect.tensors, (*dialect.memory, *dialect.tensors)):
            steps = expected(replace(dialect, tensors=tensors), model, dialect.prefixes[0])
            assert set(Counter(source for step in steps for source in step.sources).values()) == {1}


def test_base_is_the_first_prefix_that_is_there() -> None:
    dialect = catalog.dialects()["gpt2"]
    assert dialect.base(["wte.weight", "h.0.ln_1.weight"]) == ""
    assert dialect.base(["transformer.wte.weight"]) == "transformer."
    assert dialect.base(["wte.weight", "transformer.wte.weight"]) == "transformer."
    assert dialect.base([]) == "transformer."


def test_old_spelling_has_a_present_one() -> None:
    dialect = catalog.dialects()["bert"]
    assert dialect.today("bert.embeddings.LayerNorm.gamma") == "bert.embeddings.LayerNorm.weight"
    assert dialect.today("bert.embeddings.LayerNorm.beta") == "bert.embeddings.LayerNorm.bias"
    assert dialect.today("LayerNorm.gamma.weight") == "LayerNorm.gamma.weight"
    assert dialect.today("gamma") == "gamma"


def test_rule_is_a_value() -> None:
    assert Rule("a.{p}", "b.{p}") == Rule(("a.{p}",), ("b.{p}",))
    assert hash(Rule("a", "b")) == hash(Rule("a", "b"))
