"""The vocabulary: frozen values whose every field has a role and refuses what it cannot be; and their counts."""

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage import catalog, graph
from lineage import components as c
from lineage.errors import ArchitectureError
from tests.parts import PARTS
from tests.specimens import SPECIMENS

KINDS = [kind for kind in c.Component.kinds.values() if kind.__module__.startswith("lineage.")]
FIELDS = [(kind, f.name) for kind in KINDS for f in fields(kind)]
SCALINGS = [
    c.Linear(factor=2.0),
    c.Dynamic(factor=2.0, length=40),
    c.Banded(factor=8.0, low=1.0, high=4.0, length=40),
]
MODELS = [
    *(catalog.spec("llama", scaling=scaling) for scaling in SCALINGS),
    *(*SPECIMENS.values(), catalog.spec("gpt2"), catalog.spec("bert", next_sentence=True)),
]
EXAMPLES = {type(node.component): node.component for model in MODELS for node in graph.walk(model)}


def kinds_of(kind: type[c.Component], name: str) -> tuple[Any, ...]:
    """What a field may be: one kind, or those of a union."""
    hint = get_type_hints(kind)[name]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


WRONG: dict[Any, list[Any]] = {
    int: [True, "4", 4.0, math.nan, [4], -1],
    float: [True, "1e-5", math.nan, math.inf, -math.inf, 10**400],
    bool: [0, 1, "true", 1.0],
    str: [1, True, b"gelu", "no such name"],
    NoneType: [],
}


def wrong_values(kind: type[c.Component], name: str) -> Iterator[Any]:
    allowed = kinds_of(kind, name)
    for one in allowed:
        if get_origin(one) is tuple:
            right = getattr(EXAMPLES[kind], name) or (0, 0, 1)
            others = [None, c.Causal(), *WRONG.get(get_args(one)[0], [])]
            yield from [(), list(right), *((*right[:-1], other) for other in others)]
        elif one in WRONG:
            yield from WRONG[one]
        else:
            yield from [1, "Causal", (), c.Pooler() if c.Pooler not in allowed else c.Causal()]
    if NoneType not in allowed:
        yield None


@pytest.fixture
def foreign() -> Iterator[type[c.Component]]:
    """A component that another package defines."""

    class Foreign(c.Component):
        width: int = c.size()

    yield Foreign
    del c.Component.kinds["Foreign"]


def test_every_kind_has_an_example_and_a_strategy() -> None:
    assert set(PARTS) == set(KINDS) == set(EXAMPLES)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_a_final_frozen_value(kind: type[c.Component]) -> None:
    value = EXAMPLES[kind]
    assert kind.__subclasses__() == []
    assert value == replace(value)
    assert hash(value) == hash(replace(value))
    if names := [f.name for f in fields(kind)]:
        with pytest.raises(FrozenInstanceError):
            setattr(value, names[0], getattr(value, names[0]))
        with pytest.raises(TypeError, match="positional"):
            kind(*(getattr(value, name) for name in names))


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_field_has_a_role(kind: type[c.Component], name: str) -> None:
    role = next(f.metadata.get("role") for f in fields(kind) if f.name == name)
    assert role in ("size", "choice")
    assert (role == "size") <= (set(kinds_of(kind, name)) - {NoneType} in ({int}, {tuple[int, ...]}))


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_field_refuses_other_kinds(kind: type[c.Component], name: str) -> None:
    for value in wrong_values(kind, name):
        with pytest.raises(ArchitectureError) as caught:
            replace(EXAMPLES[kind], **{name: value})
        assert len(caught.value.message) < 200


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_size_is_at_least_one(kind: type[c.Component], name: str) -> None:
    if next(f.metadata["role"] for f in fields(kind) if f.name == name) == "size" and int in kinds_of(kind, name):
        for value in (0, -3):
            with pytest.raises(ArchitectureError, match="a whole number of at least 1") as caught:
                replace(EXAMPLES[kind], **{name: value})
            assert caught.value.context == {"arguments": [name]}


OTHER_TENSORS = {c.Experts: ("gate", "up", "down"), c.Router: ("correction",), c.Attention: ("sinks",)}


@given(part=st.sampled_from(KINDS).flatmap(lambda kind: PARTS[kind]), width=st.integers(1, 9))
def test_tensors_are_named_shapes(part: c.Component, width: int) -> None:
    for name, shape in part.tensors(width).items():
        assert name.endswith(("weight", "bias")) or name in OTHER_TENSORS.get(type(part), ())
        assert shape
        assert all(type(n) is int and n >= 1 for n in shape)


def test_projections_are_as_wide_as_their_heads() -> None:
    attention = c.Attention(heads=6, kv_heads=2, head_width=5, mask=c.Causal(), bias=True, output_bias=True)
    assert attention.tensors(8) == {
        "q.weight": (30, 8), "q.bias": (30,), "k.weight": (10, 8), "k.bias": (10,),
        "v.weight": (10, 8), "v.bias": (10,), "o.weight": (8, 30), "o.bias": (8,),
    }  # fmt: skip
    assert list(replace(attention, bias=False, output_bias=False).tensors(8)) == [
        "q.weight",
        "k.weight",
        "v.weight",
        "o.weight",
    ]
    assert c.FeedForward(width=7, activation="relu", bias=False).tensors(8) == {
        "up.weight": (7, 8),
        "down.weight": (8, 7),
    }
    assert c.FeedForward(width=7, activation="silu", bias=True, gated=True).tensors(8) == {
        "gate.weight": (7, 8), "gate.bias": (7,), "up.weight": (7, 8), "up.bias": (7,),
        "down.weight": (8, 7), "down.bias": (8,),
    }  # fmt: skip
    router = c.Router(experts=3, top_k=2)
    assert router.tensors(8) == {"weight": (3, 8)}
    assert c.Experts(router=router, width=7, activation="silu").tensors(8) == {
        "gate": (3, 7, 8), "up": (3, 7, 8), "down": (3, 8, 7),
    }  # fmt: skip
    assert c.Head(vocab=9, tied=False).tensors(8) == {"weight": (9, 8)}


def test_norms_of_heads_are_as_wide_as_a_head() -> None:
    spec = catalog.spec("qwen3", layers=1, width=48, head_size=6)
    shapes = graph.tensors(spec)
    assert {name: shape for name, shape in shapes.items() if "query_norm" in name or "key_norm" in name} == {
        "blocks.0.attention.body.query_norm.weight": (6,),
        "blocks.0.attention.body.key_norm.weight": (6,),
    }


def test_whole_number_stands_for_a_number() -> None:
    assert repr(c.LayerNorm(eps=1)) == repr(c.LayerNorm(eps=1.0))
    assert repr(replace(EXAMPLES[c.Attention], scale=2).scale) == "2.0"


def test_component_of_another_package_may_stand_anywhere(foreign: type[c.Component]) -> None:
    block = EXAMPLES[c.Block]
    residual = replace(block.mlp, body=foreign(width=3))
    assert replace(block, mlp=residual).mlp.body == foreign(width=3)
    with pytest.raises(ArchitectureError, match="body must be Attention or LatentAttention or FeedForward or Experts"):
        replace(block.mlp, body=c.Pooler())
    with pytest.raises(ArchitectureError, match="width must be a whole number"):
        foreign(width=0)


def classic(width: int, layers: int, vocab: int, context: int, tied: bool) -> c.Model:
    """The block of 2017 with GELU, in the decoder that history.md counts."""
    norm = c.LayerNorm(eps=1e-5)
    attention = c.Attention(heads=16, kv_heads=16, head_width=width // 16, mask=c.Causal(), bias=True, output_bias=True)
    mlp = c.FeedForward(width=4 * width, activation="gelu", bias=True)
    attention, mlp = c.Residual(body=attention, norm_input=norm), c.Residual(body=mlp, norm_input=norm)
    return c.Model(
        embed=c.Embed(vocab=vocab, width=width, positions=c.LearnedPositions(length=context)),
        blocks=(c.Block(attention=attention, mlp=mlp),) * layers,
        norm=norm,
        head=c.Head(vocab=vocab, tied=tied, bias=True),
    )


@pytest.mark.parametrize("width", [16, 1024])
def test_classic_block(width: int) -> None:
    block = classic(width, 1, 2, 2, True).blocks[0]
    assert sum(math.prod(shape) for shape in graph.tensors(block, width).values()) == 12 * width**2 + 13 * width
    if width == 1024:
        assert 12 * width**2 + 13 * width == 12_596_224


def test_classic_language_model_and_its_shares() -> None:
    model = classic(1024, 24, 50_000, 2048, tied=False)
    shares = dict.fromkeys(("mlp.body", "attention.body", "head", "tokens", "positions", "norm"), 0)
    for name, shape in graph.tensors(model).items():
        shares[next(share for share in shares if share in name)] += math.prod(shape)
    assert list(shares.values()) == [201_449_472, 100_761_600, 51_250_000, 51_200_000, 2_097_152, 100_352]
    assert graph.parameters(model) == sum(shares.values()) == 406_858_576
    assert graph.parameters(classic(1024, 24, 50_000, 2048, tied=True)) == 355_658_576


COUNTS = {
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert": 109_514_298,
    "bert-large": 335_174_458,
    "bert-encoder": 109_482_240,
    "bert-large-encoder": 335_141_888,
}


@pytest.mark.parametrize(("size", "count"), COUNTS.items())
def test_published_count(size: str, count: int) -> None:
    assert graph.parameters(catalog.spec(size)) == count
