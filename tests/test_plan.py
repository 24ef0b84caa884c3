"""The plan covers both sides exactly, or names everything that does not fit in one message, soon."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lineage import catalog, config, graph
from lineage.components import Shape
from lineage.errors import ArchitectureError, FileDamaged, TensorMismatch
from lineage.plan import Plan, elements, expected, make_plan, resolve, step_from_json, unproved
from lineage.rules import Rule

GPT2: dict[str, Any] = {"n_layer": 3, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 6}
BERT: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 11, "intermediate_size": 12,
    "max_position_embeddings": 6,
}  # fmt: skip
NEOX = {
    "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "vocab_size": 11, "intermediate_size": 12,
}  # fmt: skip
MIXTRAL = NEOX | {"num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Info:
    dtype: str
    shape: Shape


Header = dict[str, Info]


def header_for(model_type: str, keys: dict[str, Any], base: str | None = None, **parts: bool) -> Header:
    """What a file holds for a config, by the rules, in the dialect's first prefix unless another is given."""
    dialect = catalog.dialects()[model_type]
    arguments = {**dialect.fixed, **config.read(dialect.config, keys).arguments, **parts}
    model = catalog.families()[dialect.spec].function(**arguments)
    steps = expected(dialect, model, dialect.prefixes[0] if base is None else base)
    return {n: Info("F32", s) for step in steps for n, s in zip(step.sources, step.source_shapes, strict=True)}


def plan_for(
    model_type: str, keys: dict[str, Any], header: Header, equal: Callable[[str, str], bool] = lambda a, b: True
) -> Plan:
    dialect = catalog.dialects()[model_type]
    return make_plan(dialect, resolve(dialect, config.read(dialect.config, keys).arguments, header, equal), header)


def refusal(model_type: str, keys: dict[str, Any], header: Header) -> TensorMismatch:
    with pytest.raises(TensorMismatch) as caught:
        plan_for(model_type, keys, header)
    return caught.value


HEADS = [{}, {"head": False}, {"head": False, "pooler": True}, {"pooler": True, "next_sentence": True}]
FITTING = [("gpt2", GPT2, {}), ("openai-gpt", GPT2, {}), *(("bert", BERT, parts) for parts in HEADS)]


@pytest.mark.parametrize(("model_type", "keys", "parts"), FITTING)
def test_both_sides_are_covered_exactly(model_type: str, keys: dict[str, Any], parts: dict[str, bool]) -> None:
    for base in catalog.dialects()[model_type].prefixes:
        header = header_for(model_type, keys, base, **parts)
        plan = plan_for(model_type, keys, header)
        assert plan.base == base
        assert sorted(name for step in plan.steps for name in step.sources) == sorted(header)
        given = {n: s for step in plan.steps for n, s in zip(step.targets, step.target_shapes, strict=True)}
        assert given == graph.tensors(plan.model)
        assert elements(plan) == graph.parameters(plan.model)
        assert (plan.dropped, plan.copied, unproved(plan)) == ((), (), [])


def test_everything_wrong_is_named_at_once() -> None:
    header = header_for("gpt2", GPT2)
    del header["transformer.h.1.mlp.c_fc.weight"]
    header["transformer.h.1.mlp.c_fc.weigth"] = Info("F32", (8, 32))
    header["transformer.h.0.mlp.c_proj.weight"] = Info("F32", (8, 32))
    header["transformer.wpe.weight"] = Info("F32", (7, 8))
    header["transformer.ln_f.bias"] = Info("I8", (8,))
    error = refusal("gpt2", GPT2, header)
    assert error.exit_code == 9
    assert error.facts == (
        "missing     transformer.h.1.mlp.c_fc.weight  [8, 32]",
        "unexpected  transformer.h.1.mlp.c_fc.weigth  [8, 32]  (nearest known name: transformer.h.1.mlp.c_fc.weight)",
        "shape       transformer.wpe.weight  [7, 8], expected [6, 8]",
        "shape       transformer.h.0.mlp.c_proj.weight  [8, 32], expected [32, 8]  (transposed?)",
        "type        transformer.ln_f.bias  I8, and no quantisation is declared; expected a float",
        "36 of 40 tensors fit; nothing was written",
    )
    assert error.context["problem_count"] == 5
    assert error.context["problems"] == list(error.facts[:-1])


def moved(header: Header, old: str, new: str) -> Header:
    return {name.replace(old, new): info for name, info in header.items()}


@pytest.mark.parametrize(
    ("old", "new"), [(".h.1.", ".h.7."), (".h.2.", ".h.02."), (".h.0.", ".h.3."), ("h.1.", "H.1.")]
)
def test_gap_or_index_beyond_the_config_is_refused(old: str, new: str) -> None:
    header = header_for("gpt2", GPT2)
    error = refusal("gpt2", GPT2, moved(header, old, new))
    touched = sum(old in name for name in header)
    kinds = [fact.split()[0] for fact in error.facts[:-1]]
    assert kinds == ["missing"] * touched + ["unexpected"] * touched


@pytest.mark.parametrize("layers", [2, 4])
def test_other_number_of_layers_is_refused(layers: int) -> None:
    kind = "missing" if layers > 3 else "unexpected"
    assert {f.split()[0] for f in refusal("gpt2", GPT2 | {"n_layer": layers}, header_for("gpt2", GPT2)).facts[:-1]} == {
        kind
    }


def test_old_spelling_is_read_and_two_spellings_refused() -> None:
    header = header_for("bert", BERT)
    today, old = "bert.encoder.layer.1.output.LayerNorm.weight", "bert.encoder.layer.1.output.LayerNorm.gamma"
    spelled = {(old if name == today else name): info for name, info in header.items()}
    assert any(old in step.sources for step in plan_for("bert", BERT, spelled).steps)
    for both in (header | {old: header[today]}, spelled | {today: header[today]}):
        (fact, _) = refusal("bert", BERT, both).facts
        assert fact.startswith(f"two spellings of {today}: ")


def test_prefix_and_no_prefix_at_once_is_refused() -> None:
    header = header_for("gpt2", GPT2) | {"wte.weight": Info("F32", (11, 8))}
    assert refusal("gpt2", GPT2, header).facts[0].startswith("unexpected  wte.weight")


def test_copy_of_a_shared_table_is_explained() -> None:
    header = header_for("gpt2", GPT2)
    shared = header | {"lm_head.weight": header["transformer.wte.weight"]}
    plan = plan_for("gpt2", GPT2, shared)
    assert [(copy.name, copy.of) for copy in plan.copied] == [("lm_head.weight", "transformer.wte.weight")]
    assert plan.model.head.tied
    assert plan.to_json()["copies"] == {"lm_head.weight": "transformer.wte.weight"}


def test_copy_that_differs_is_a_table_of_its_own() -> None:
    header = header_for("gpt2", GPT2)
    shared = header | {"lm_head.weight": header["transformer.wte.weight"]}
    asked = []
    plan = plan_for("gpt2", GPT2, shared, lambda one, other: bool(asked.append((one, other))))
    assert asked == [("lm_head.weight", "transformer.wte.weight")]
    assert plan.copied == ()
    assert not plan.model.head.tied
    assert plan.steps[-1].targets == ("head.weight",)


def test_table_of_its_own_must_be_there() -> None:
    keys = GPT2 | {"tie_word_embeddings": False}
    facts = refusal("gpt2", keys, header_for("gpt2", GPT2)).facts
    assert facts[0] == "missing     lm_head.weight  [11, 8]"
    untied = plan_for("gpt2", keys, header_for("gpt2", keys), lambda one, other: True)
    assert untied.copied == ()


def test_note_says_that_the_file_overrules_the_config() -> None:
    dialect = catalog.dialects()["gpt2"]
    header = header_for("gpt2", GPT2)
    shared = header | {"lm_head.weight": header["transformer.wte.weight"]}
    (note,) = resolve(dialect, config.read(dialect.config, GPT2).arguments, shared, lambda a, b: False).notes
    assert note == (
        "config.json says tied, but lm_head.weight differs from transformer.wte.weight: taken as a table of its own"
    )


def test_buffers_are_dropped_with_their_reasons() -> None:
    header = header_for("gpt2", GPT2)
    mask = {f"transformer.h.{i}.attn.bias": Info("U8", (1, 1, 6, 6)) for i in range(3)}
    plan = plan_for("gpt2", GPT2, header | mask | {"transformer.h.0.attn.masked_bias": Info("F32", ())})
    assert [drop.name for drop in plan.dropped] == [*mask, "transformer.h.0.attn.masked_bias"]
    assert {(drop.why, drop.value) for drop in plan.dropped[:3]} == {("the causal mask, as a buffer", "lower triangle")}


def test_buffer_beyond_the_config_is_refused() -> None:
    header = header_for("gpt2", GPT2) | {"transformer.h.3.attn.bias": Info("U8", (1, 1, 6, 6))}
    assert refusal("gpt2", GPT2, header).facts[0].startswith("unexpected  transformer.h.3.attn.bias")


def test_million_layers_are_refused_without_building_them(monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = catalog.dialects()["gpt2"]
    header = header_for("gpt2", GPT2)
    resolved = resolve(dialect, config.read(dialect.config, GPT2).arguments, header, lambda a, b: True)
    monkeypatch.setattr(config, "build", None)
    start = time.process_time()
    with pytest.raises(TensorMismatch, match="1,000,000 layers, and the file holds 40 tensors"):
        make_plan(dialect, replace(resolved, arguments=resolved.arguments | {"layers": 1_000_000}), header)
    with pytest.raises(ArchitectureError, match="from 1 to 4,096"):
        config.read(dialect.config, {"n_layer": 1_000_000})
    assert time.process_time() - start < 1


def test_flood_of_strange_tensors_is_refused_soon_and_briefly() -> None:
    strange = {f"transformer.h.{i}.attn.weight\x1b" + "z" * 300: Info("F32", (i,) * 50) for i in range(100_000)}
    start = time.process_time()
    error = refusal("gpt2", GPT2, header_for("gpt2", GPT2) | strange)
    assert time.process_time() - start < 5
    assert len(error.facts) < 50
    assert error.facts[-2] == "… and 99,960 more"
    assert all(fact.isprintable() and len(fact) < 600 for fact in error.facts)
    assert len(error.context["problems"]) == 1000
    assert error.context["problem_count"] == 100_000


def test_step_survives_its_json() -> None:
    for model_type, keys in (("gpt2", GPT2), ("bert", BERT), ("gpt_neox", NEOX), ("mixtral", MIXTRAL)):
        plan = plan_for(model_type, keys, header_for(model_type, keys))
        stored = json.loads(json.dumps(plan.to_json()))
        shapes = graph.tensors(plan.model)
        assert tuple(step_from_json(step, shapes) for step in stored["steps"]) == plan.steps
        assert stored["base"] == plan.base


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"from": ["a"]},
        {"from": "a", "to": ["b"]},
        {"from": ["a"], "to": [1]},
        {"from": ["a"], "to": []},
        {"from": [], "to": []},
        {"from": [], "to": [], "operations": ["Split"]},
        {"from": ["a"], "to": ["c"]},
        {"from": ["a"], "to": ["b"], "operations": ["Shuffle"]},
        {"from": ["a"], "to": ["b"], "operations": None},
        {"from": ["a", "a2"], "to": ["b"], "operations": ["Split"]},
        {"from": ["a"], "to": ["b", "b"]},
        {"from": ["a"], "to": ["b", "b"], "operations": ["Stack"]},
        {"from": ["a", "a2", "a3"], "to": ["b"], "operations": ["Stack"]},
        {"from": ["a"], "to": ["b"], "operations": ["Split(axis=2)"]},
        {"from": ["a"], "to": ["b"], "operations": ["Split(axis=" + "9" * 5000 + ")"]},
        {"from": ["a"], "to": ["b"], "operations": ["Split(width=1)"]},
        {"from": ["a"], "to": ["b"], "operations": ["PerHead(width=0)"]},
        {"from": ["a"], "to": ["b"], "operations": ["PerHead(width=3)"]},
        {"from": ["a"], "to": ["b"], "operations": ["PerHead(width=999999999)"]},
    ],
)
def test_damaged_step_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(FileDamaged, match=r"^plan: "):
        step_from_json(data, {"b": (2, 3)})


def test_model_tensor_without_a_rule_is_refused() -> None:
    dialect = catalog.dialects()["gpt2"]
    model = catalog.spec("gpt2", layers=1)
    lacking = replace(dialect, tensors=tuple(rule for rule in dialect.tensors if "norm.{p}" not in rule.targets[0]))
    with pytest.raises(TensorMismatch, match="no rule for 2 tensors of the model") as caught:
        expected(lacking, model, "")
    assert caught.value.facts == ("norm.weight", "norm.bias")
    half = replace(dialect, tensors=(Rule("x.{i}", ("blocks.{i}.attention.body.q.weight", "blocks.{i}.nothing")),))
    with pytest.raises(TensorMismatch, match="no rule"):
        expected(half, model, "")
