"""Paths, tensors and the canonical JSON of specs; the golden files show what a change does to every architecture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from lineage import catalog, graph
from lineage import components as c
from lineage.errors import FileDamaged
from tests.parts import models
from tests.published import SIZES

GOLDEN = Path(__file__).parent / "golden"
Golden = Callable[[str, str], None]


def dumped(value: Any) -> str:
    return json.dumps(graph.to_json(value), indent=1, allow_nan=False) + "\n"


def read_back(value: Any) -> c.Model:
    return graph.model_from_json(json.loads(dumped(value)))


@pytest.mark.parametrize("size", SIZES)
def test_published_size_is_as_reviewed(size: str, golden: Golden) -> None:
    golden(f"specs/{size}.json", dumped(catalog.spec(size)))


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in (GOLDEN / "specs").iterdir()} == set(SIZES)


@pytest.mark.parametrize("size", SIZES)
def test_published_size_survives_its_json(size: str) -> None:
    assert read_back(catalog.spec(size)) == catalog.spec(size)


@given(models())
def test_any_model_survives_its_json(model: c.Model) -> None:
    back = read_back(model)
    assert back == model
    assert dumped(back) == dumped(model)
    assert graph.tensors(back) == graph.tensors(model)


def test_json_does_not_hang_on_how_a_value_came_about() -> None:
    shared = catalog.spec("gpt2", eps=1, layers=3)
    apart = catalog.spec("gpt2", eps=1.0, layers=3)
    assert shared == apart
    assert dumped(shared) == dumped(apart)
    assert list(graph.to_json(shared)) == ["component", *(f for f in c.Model.__dataclass_fields__)]


def test_equal_neighbours_are_folded_and_others_not() -> None:
    plain = graph.to_json(catalog.spec("gpt2"))["blocks"]
    assert [(run["repeat"], run["of"]["component"]) for run in plain] == [(12, "Block")]
    scaled = graph.to_json(catalog.spec("gpt2", scaled_by_layer=True))["blocks"]
    assert [run["component"] for run in scaled] == ["Block"] * 12


def at(model: c.Model, path: str) -> Any:
    found: Any = model
    for step in path.split(".") if path else []:
        found = found[int(step)] if step.isdecimal() else getattr(found, step)
    return found


STREAM = (c.Block, c.Residual, c.Attention, c.LatentAttention, c.FeedForward, c.Experts, c.Router, c.Head, c.Pooler)


@given(models())
def test_paths_and_tensors_are_unique_and_lead_to_their_component(model: c.Model) -> None:
    nodes = list(graph.walk(model))
    assert len({node.path for node in nodes}) == len(nodes)
    assert all(at(model, node.path) is node.component for node in nodes)
    for node in nodes:
        if isinstance(node.component, STREAM):
            owner = at(model, "encoder") if node.path.startswith("encoder.") else model
            assert node.width == owner.embed.stream
    named = [
        (f"{node.path}.{name}".lstrip("."), shape)
        for node in nodes
        for name, shape in node.component.tensors(node.width).items()
    ]
    assert len(dict(named)) == len(named)
    assert graph.tensors(model) == dict(named)


def test_parts_come_after_their_parents_in_the_order_of_fields() -> None:
    paths = [node.path for node in graph.walk(catalog.spec("gpt2", layers=1))]
    assert paths == [
        "", "embed", "embed.positions", "embed.positions.ids",
        "blocks.0", "blocks.0.attention", "blocks.0.attention.body", "blocks.0.attention.body.mask",
        "blocks.0.attention.norm_input", "blocks.0.mlp", "blocks.0.mlp.body", "blocks.0.mlp.norm_input",
        "norm", "head",
    ]  # fmt: skip


def changed(path: list[Any], value: Any) -> Any:
    """GPT-2's canonical form with one place changed; a value of `...` removes it."""
    data = json.loads(dumped(catalog.spec("gpt2")))
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


NORM = graph.to_json(c.LayerNorm(eps=0.1))
DAMAGED = [
    (["norm", "component"], "RootNorm", "unknown component 'RootNorm'"),
    (["norm", "component"], ..., "unknown component None"),
    (["norm", "gain"], 1, "LayerNorm has not exactly the fields it should: gain"),
    (["norm", "eps"], ..., "LayerNorm has not exactly the fields it should: eps"),
    (["norm", "eps"], "1e-5", "eps must be a finite number"),
    (["norm", "bias"], 1, "bias must be true or false"),
    (["norm", "eps"], -1.0, "negative"),
    (["norm"], [], "norm must be LayerNorm"),
    (["embed"], None, "embed must be Embed"),
    (["embed"], NORM, "embed must be Embed"),
    (["embed", "vocab"], 5.0, "vocab must be a whole number"),
    (["head", "vocab"], 7, "tied head"),
    (["blocks"], [], "at least one block"),
    (["blocks"], None, "a tuple of Block"),
    (["blocks", 0], NORM, "a tuple of Block"),
    (["blocks", 0, "of"], 3, "a tuple of Block"),
    (["blocks", 0, "of"], ..., "a repeat is not"),
    (["blocks", 0, "by"], 2, "a repeat is not"),
    (["blocks", 0, "repeat"], 1, "a repeat is not"),
    (["blocks", 0, "repeat"], -4, "a repeat is not"),
    (["blocks", 0, "repeat"], True, "a repeat is not"),
    (["blocks", 0, "repeat"], "12", "a repeat is not"),
    (["blocks", 0, "repeat"], 10**12, "a repeat is not"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGED)
def test_damaged_spec_is_refused(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(FileDamaged, match=message):
        graph.model_from_json(changed(path, value))


@pytest.mark.parametrize("data", [None, [], "Model", 7, NORM])
def test_what_is_no_model_is_refused(data: Any) -> None:
    with pytest.raises(FileDamaged, match="not a Model"):
        graph.model_from_json(data)


def test_deep_nesting_is_refused() -> None:
    data: Any = NORM
    for _ in range(3000):
        data = {"component": "Block", "attention": data, "mlp": None}
    with pytest.raises(FileDamaged, match="nested too deep"):
        graph.model_from_json(data)
