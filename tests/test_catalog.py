"""How specs and converters are found: ours, and another package's by the same door."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

import lineage
from lineage import catalog
from lineage.components import Model
from lineage.errors import ArchitectureError, UsageError
from lineage.rules import Dialect
from tests.published import DIALECTS, SIZES

Install = Callable[..., None]


class Entry:
    """An entry point of an installed package."""

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name, self.load = name, lambda: module


def a_spec(name: str, **values: Any) -> ModuleType:
    """A module of the form that specs have: GPT-2 with another context."""

    def function(*, layers: int = 2, context: int = 99) -> Model:
        return catalog.families()["gpt2"].function(layers=layers, context=context)

    module = ModuleType(name, "A family from elsewhere.\n\nAt length.")
    given = {name: function, "YEAR": 2031, "PAPER": "Someone 2031", "PARENT": "gpt2", "TINY": {"context": 8}}
    vars(module).update(given | {"PUBLISHED": {name: {}, f"{name}-deep": {"layers": 5}}} | values)
    return module


def a_converter(model_type: str, **changes: Any) -> ModuleType:
    module = ModuleType(model_type)
    module.HUGGINGFACE = replace(catalog.dialects()["gpt2"], model_types=(model_type,), **changes)
    return module


def forget() -> None:
    for cached in (catalog.families, catalog.dialects, catalog.published, catalog.named):
        cached.cache_clear()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Adds entry points of other packages, for one test."""

    def add(**modules: list[tuple[str, ModuleType]]) -> None:
        found = {f"lineage.{kind}": [Entry(*entry) for entry in entries] for kind, entries in modules.items()}
        monkeypatch.setattr(catalog, "offered", lambda group: found.get(group, []))
        forget()

    yield add
    monkeypatch.undo()
    forget()


def test_family_of_another_package_comes_in_by_the_same_door(install: Install) -> None:
    install(specs=[("ours", a_spec("ours"))], converters=[("frob", a_converter("frob", spec="ours"))])
    assert lineage.spec("ours-deep") == lineage.spec("gpt2", layers=5, context=99)
    assert catalog.families()["ours"].about == "A family from elsewhere."
    assert catalog.families()["ours"].tiny == {"context": 8}
    assert catalog.dialect("frob").spec == "ours"
    (summary,) = catalog.summary("ours")
    assert summary["sizes"] == ["ours", "ours-deep"]
    assert summary["model_types"] == ["frob"]
    assert catalog.summary()[-1] == summary
    assert {family["name"] for family in catalog.summary()} > {"gpt", "gpt2", "bert"}


@pytest.mark.parametrize(
    "modules",
    [
        {"specs": [("gpt2", a_spec("gpt2"))]},
        {"specs": [("ours", a_spec("ours", PUBLISHED={"gpt2-xl": {}}))]},
        {"specs": [("ours", a_spec("ours")), ("ours", a_spec("ours"))]},
        {"converters": [("frob", a_converter("gpt2"))]},
    ],
    ids=["family", "size", "twice", "model_type"],
)
def test_name_that_is_taken_is_refused(modules: dict[str, Any], install: Install) -> None:
    install(**modules)
    with pytest.raises(UsageError, match=r"two (specs|published sizes|converters) are named"):
        _ = (catalog.published(), catalog.dialects())


def test_dialect_that_two_modules_name_is_one(install: Install) -> None:
    module = a_converter("frob")
    install(converters=[("one", module), ("other", module)])
    assert catalog.dialect("frob") is module.HUGGINGFACE


def test_spec_changes_arguments_of_a_published_size() -> None:
    assert lineage.spec("gpt2-xl", layers=2) == catalog.families()["gpt2"].function(width=1600, heads=25, layers=2)
    assert lineage.spec("gpt2", tied=False).head.tied is False
    with pytest.raises(ArchitectureError, match="heads 5 does not divide width 768"):
        lineage.spec("gpt2", heads=5)
    with pytest.raises(UsageError, match=r"no argument 'layer'. Did you mean 'layers'\?"):
        lineage.spec("gpt2", layer=5)
    with pytest.raises(UsageError, match="no argument 'kv_head'"):  # one that a descendant passes on is known
        lineage.spec("mixtral", kv_head=4)
    assert lineage.spec("mixtral", bias=True).blocks[0].attention.body.bias
    with pytest.raises(UsageError, match=r"spec 'gpt2': .*str"):
        lineage.spec("gpt2", layers="2")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("gtp2", "'gpt2'"), ("bert-lage", "'bert-large'"), ("GPT2-XL", None), ("", None), ("x" * 5000, None)],
)
def test_unknown_name_gives_the_nearest(name: str, nearest: str | None) -> None:
    with pytest.raises(UsageError, match="no spec or model") as caught:
        lineage.spec(name)
    assert ("Did you mean" in caught.value.message) == (nearest is not None)
    assert (nearest or "") in caught.value.message
    assert len(caught.value.message) < 150


@pytest.mark.parametrize(
    ("model_type", "says"),
    [
        ("gtp2", "model_type 'gtp2' has no converter"),
        ("x" * 5000, "has no converter"),
        ("", "model_type '' has no converter"),
        (None, "no model_type"),
        (["gpt2"], "not a name"),
        (7, "not a name"),
    ],
)
def test_unknown_model_type_is_refused(model_type: object, says: str) -> None:
    with pytest.raises(ArchitectureError, match=says) as caught:
        catalog.dialect(model_type, ["SomeModel"])
    assert caught.value.exit_code == 6
    assert len(caught.value.message) < 150
    assert ("Did you mean 'gpt2'" in caught.value.message) == (model_type == "gtp2")


@pytest.mark.parametrize("name", sorted(catalog.families()))
def test_family_is_told_whole(name: str) -> None:
    family = catalog.families()[name]
    assert family.about.endswith(".")
    assert str(family.year) in family.about
    assert str(family.year) in family.paper
    assert isinstance(family.function(), Model)
    assert isinstance(family.function(**family.tiny), Model)
    assert all(
        p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in inspect.signature(family.function).parameters.values()
    )
    assert set(family.published) <= set(SIZES)


def test_every_dialect_is_of_a_known_spec() -> None:
    assert {catalog.dialects()[model_type].spec for model_type in DIALECTS} <= set(catalog.families())
    assert all(isinstance(catalog.dialect(model_type), Dialect) for model_type in DIALECTS)
