"""config.json <-> arguments: consumed or refused, and back."""

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage import catalog, config
from lineage.config import MANY, Choice, Entry, Flag, Index, Inert, Key, Number, Only, Size, read, write
from lineage.errors import ArchitectureError
from lineage.rules import Dialect
from tests.published import DIALECTS, keys


def arguments_of(key: Key) -> st.SearchStrategy:
    """Every argument that a key can carry."""
    can = {
        Size: lambda: st.integers(1, key.most),
        Index: lambda: st.integers(0, MANY),
        Number: lambda: st.floats(0, allow_nan=False, allow_infinity=False),
        Flag: st.booleans,
        Choice: lambda: st.sampled_from(sorted(set(key.names.values()))),
    }[type(key)]()
    return st.none() | can if may_be_null(key) else can


def may_be_null(entry: Entry) -> bool:
    return isinstance(entry, Key) and (entry.default is None or (isinstance(entry, Index) and entry.optional))


def wrong_for(entry: Entry) -> list[Any]:
    """Values that an entry must refuse; JSON knows them all, but for the infinite ones."""
    never: list[Any] = ["4", [], {}, [4], math.nan, math.inf, -math.inf]
    null = [] if may_be_null(entry) else [None]
    if isinstance(entry, Size):
        return [*never, *null, True, False, 4.0, 0, -1, entry.most + 1, 10**400]
    if isinstance(entry, Index):
        return [*never, *null, True, False, 4.0, -1, MANY + 1, 10**400]
    if isinstance(entry, Number):
        return [*never, *null, True, False, -1, -1e-300, 10**400]
    if isinstance(entry, Flag):
        return [*never, *null, 0, 1, 1.0, "true"]
    if isinstance(entry, Choice):
        return [*never, *null, True, 0, "", "gelu ", "GELU"]
    assert isinstance(entry, Only)
    nearly = {False: [0, 0.0, None, True], True: [1, 1.0, None, False], None: [False, 0, ""]}
    return [*never, *nearly.get(entry.value, [None, "relative_key"])]


def test_every_kind_of_key_has_a_strategy() -> None:
    assert set(Key.__subclasses__()) == {Size, Index, Number, Flag, Choice}
    assert set(Entry.__subclasses__()) == {Key, Only, Inert}


@pytest.mark.parametrize("model_type", DIALECTS)
@given(data=st.data())
def test_what_is_written_is_read_back(model_type: str, data: st.DataObject) -> None:
    entries = catalog.dialects()[model_type].config
    carried = keys(catalog.dialects()[model_type])
    arguments = {key.argument: data.draw(arguments_of(key), key.key) for key in carried}
    written = write(entries, arguments)
    assert set(written) == {key.key for key in carried}
    reading = read(entries, json.loads(json.dumps(written)), strict=True)
    assert reading.arguments == arguments
    assert {name: type(value) for name, value in reading.arguments.items()} == {
        n: type(v) for n, v in arguments.items()
    }


@pytest.mark.parametrize("model_type", DIALECTS)
def test_every_spelling_is_read_alike(model_type: str) -> None:
    entries = catalog.dialects()[model_type].config
    for key in keys(catalog.dialects()[model_type]):
        values = key.names if isinstance(key, Choice) else [write(entries, read(entries, {}).arguments)[key.key]]
        for value in values:
            read_as = [read(entries, {spelling: value}).arguments for spelling in key.spellings()]
            assert all(arguments == read_as[0] for arguments in read_as)


@pytest.mark.parametrize("model_type", DIALECTS)
def test_every_argument_of_the_spec_is_decided_once(model_type: str) -> None:
    dialect = catalog.dialects()[model_type]
    decided = [key.argument for key in keys(dialect)] + [*dialect.fixed] + [find.argument for find in dialect.finds]
    spellings = [spelling for entry in dialect.config for spelling in entry.spellings()]
    assert len(set(decided)) == len(decided)
    assert len(set(spellings)) == len(spellings)
    model = config.build(
        dialect.config, catalog.families()[dialect.spec].function, dict(read(dialect.config, {}).arguments)
    )
    assert model.blocks


@pytest.mark.parametrize("model_type", DIALECTS)
def test_wrong_value_is_refused(model_type: str) -> None:
    entries = [entry for entry in catalog.dialects()[model_type].config if not isinstance(entry, Inert)]
    for spelling, entry in ((spelling, one) for one in entries for spelling in one.spellings()):
        for value in wrong_for(entry):
            with pytest.raises(ArchitectureError) as caught:
                read(entries, {spelling: value})
            assert caught.value.message.startswith(f"config.json: {spelling} is ")
            assert "understood: " in caught.value.message
            assert len(caught.value.message) < 300


@pytest.mark.parametrize("model_type", DIALECTS)
def test_key_without_an_argument_changes_none(model_type: str) -> None:
    entries = catalog.dialects()[model_type].config
    nothing = read(entries, {})
    for entry in (entry for entry in entries if not isinstance(entry, Key)):
        for value in [entry.value] if isinstance(entry, Only) else [None, *INERT[entry.form]]:
            assert read(entries, {entry.key: value}, strict=True) == nothing
        assert entry.write({}) == {}
        assert not isinstance(entry, Inert) or len(entry.why) > 10


INERT: dict[str, list[Any]] = {
    "anything": [1, "x", [1], {"a": 1}, math.nan],
    "a list of names": [[], ["BertModel"]],
    "the name of a floating-point type": ["float32", "torch.bfloat16", "auto"],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", "BertModel"),
        ("architectures", [1]),
        ("dtype", "int8"),
        ("torch_dtype", 32),
        ("dtype", ["float32"]),
    ],
)
def test_inert_key_must_keep_its_form(key: str, value: Any) -> None:
    for model_type in DIALECTS:
        with pytest.raises(ArchitectureError, match=f"{key} is "):
            read(catalog.dialects()[model_type].config, {key: value})


@pytest.mark.parametrize("model_type", DIALECTS)
def test_all_problems_are_named_at_once(model_type: str) -> None:
    dialect = catalog.dialects()[model_type]
    wrong = {key.key: "wrong" for key in keys(dialect)} | {"frob_rank": 4}
    with pytest.raises(ArchitectureError, match=f"{len(wrong)} keys are not understood") as caught:
        read(dialect.config, wrong, strict=True)
    problems = caught.value.context["problems"]
    assert list(caught.value.facts) == problems
    assert len(problems) == len(wrong)
    assert all(any(problem.strip('"').startswith(key) for problem in problems) for key in wrong)


def respelled(dialect: Dialect) -> list[Key]:
    return [key for key in keys(dialect) if key.also]


@pytest.mark.parametrize("model_type", [name for name in DIALECTS if respelled(catalog.dialects()[name])])
def test_two_spellings_must_agree(model_type: str) -> None:
    dialect = catalog.dialects()[model_type]
    for key in respelled(dialect):
        agreed = read(dialect.config, {key.key: 24, key.also[0]: 24})
        assert agreed == read(dialect.config, {key.key: 24})
        with pytest.raises(ArchitectureError, match=f"{key.key} and {key.also[0]} are two spellings of one thing"):
            read(dialect.config, {key.key: 24, key.also[0]: 48})


def test_unknown_keys_are_listed_or_refused() -> None:
    entries = catalog.dialects()["gpt2"].config
    odd = {"zeta": 1, "frob_rank": {"a": [1]}, "\x1b[31m" + "k" * 500: None}
    reading = read(entries, {"model_type": "gpt2", "n_layer": 3, **odd})
    assert reading.unknown == tuple(sorted(odd))
    assert reading.arguments == read(entries, {"n_layer": 3}).arguments
    with pytest.raises(ArchitectureError, match="3 keys are not understood") as caught:
        read(entries, odd, strict=True)
    assert all(fact.isprintable() and len(fact) < 150 for fact in caught.value.facts)


def test_contradiction_is_told_in_the_config_own_keys() -> None:
    dialect = catalog.dialects()["distilbert"]
    arguments = read(dialect.config, {"dim": 768, "n_heads": 5}).arguments
    with pytest.raises(ArchitectureError, match="does not divide") as caught:
        config.build(dialect.config, catalog.families()["bert"].function, arguments | dict(dialect.fixed))
    assert caught.value.facts == ("heads is n_heads = 5", "width is dim = 768")


def test_argument_without_a_name_is_refused() -> None:
    entries = catalog.dialects()["openai-gpt"].config
    arguments = read(entries, {}).arguments
    with pytest.raises(ArchitectureError, match="afn has no name for 'gelu'"):
        write(entries, arguments | {"activation": "gelu"})


@pytest.mark.parametrize("given", [0, 1, 0.0, 5e-324, sys.float_info.max, int(sys.float_info.max)])
def test_number_is_read_as_a_float(given: float) -> None:
    eps = read(catalog.dialects()["gpt2"].config, {"layer_norm_epsilon": given}).arguments["eps"]
    assert type(eps) is float
    assert eps == given
