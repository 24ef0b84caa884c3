"""config.json <-> arguments: consumed or refused, and back."""

import json
import math
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage import catalog, config
from lineage import components as c
from lineage.config import (
    Choice,
    Entry,
    Flag,
    Index,
    Inert,
    Island,
    Key,
    Number,
    Only,
    Pattern,
    RotaryKeys,
    Size,
    Under,
    read,
    write,
)
from lineage.errors import ArchitectureError
from lineage.keys import MANY
from lineage.rotary_keys import LENGTH
from lineage.rules import Dialect
from tests.published import DIALECTS


def arguments_of(key: Key) -> st.SearchStrategy:
    """Every argument that a key can carry."""
    can = {
        Size: lambda: st.integers(1, key.most),
        Index: lambda: st.integers(0, MANY),
        Number: lambda: st.floats(0, exclude_min=key.positive, allow_nan=False, allow_infinity=False),
        Flag: st.booleans,
        Choice: lambda: st.sampled_from(sorted(set(key.names.values()))),
        Pattern: lambda: st.lists(st.sampled_from(sorted(key.names.values())), max_size=9).map(tuple),
    }[type(key)]()
    return st.none() | can if may_be_null(key) else can


def may_be_null(entry: Entry) -> bool:
    if isinstance(entry, Only):
        return entry.nullable
    return isinstance(entry, Key) and (entry.default is None or entry.nullable)


PLAIN = {Size, Index, Number, Flag, Choice, Pattern, Only, Inert, Island, RotaryKeys}
FURTHER = {  # kinds that few formats need -> the file that tries them, on checkpoints of those formats
    "test_llama_relatives.py": {"Toggle", "RotaryKinds", "Spare"},
    "test_gpt_line.py": {"Repeats"},
}


def plain(dialect: Dialect) -> list[Entry]:
    """The entries of the kinds that every format has."""
    return [entry for entry in dialect.config if type(entry) in PLAIN]


def keys(dialect: Dialect) -> list[Key]:
    return [entry for entry in plain(dialect) if isinstance(entry, Key)]


def wrong_for(entry: Entry) -> list[Any]:
    """Values that an entry must refuse; JSON knows them all, but for the infinite ones."""
    never: list[Any] = ["4", [], {}, [4], math.nan, math.inf, -math.inf]
    null = [] if may_be_null(entry) else [None]
    if isinstance(entry, Size):
        return [*never, *null, True, False, 4.0, 0, -1, entry.most + 1, 10**400]
    if isinstance(entry, Index):
        return [*never, *null, True, False, 4.0, -2 if entry.none == -1 else -1, MANY + 1, 10**400]
    if isinstance(entry, Number):
        return [*never, *null, True, False, -1, -1e-300, 10**400, *([0, 0.0, -0.0] if entry.positive else [])]
    if isinstance(entry, Flag):
        return [*never, *null, 0, 1, 1.0, "true"]
    if isinstance(entry, Choice):
        return [*never, *null, True, 0, "", "gelu ", "GELU"]
    if isinstance(entry, Pattern):
        return ["full_attention", {}, [4], ["window"], ["full_attention", None], [True], True, 4]
    assert isinstance(entry, Only)
    if isinstance(entry.value, list):
        return ["", {}, None, False, [0]]
    if isinstance(entry.value, int) and not isinstance(entry.value, bool):
        return [*never, None, True, False, float(entry.value), entry.value + 1]
    nearly = {False: [0, 0.0, *null, True], True: [1, 1.0, None, False], None: [False, 0, ""]}
    return [*never, *nearly.get(entry.value, [None, "relative_key"])]


def test_every_kind_of_key_is_tried() -> None:
    used = {type(entry) for dialect in catalog.dialects().values() for entry in dialect.config}
    assert used >= PLAIN
    folder = Path(__file__).parent
    assert all((folder / file).exists() for file in FURTHER)


POSITIVE = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)


def longrope(short: tuple[float, ...], long: tuple[float, ...]) -> c.LongRope:
    return c.LongRope(short=short, long=long, length=40, attention=1.5, long_attention=1.5)


LENGTHS = st.integers(1, MANY)
SCALINGS: dict[str, st.SearchStrategy[c.Scaling]] = {
    "linear": st.builds(c.Linear, factor=POSITIVE),
    "dynamic": st.builds(c.Dynamic, factor=POSITIVE, length=LENGTHS),
    "llama3": st.builds(c.Banded, factor=POSITIVE, low=POSITIVE, high=POSITIVE, length=LENGTHS),
    "yarn": st.builds(
        c.Yarn, factor=POSITIVE, length=LENGTHS, fast=POSITIVE, slow=POSITIVE, whole=st.booleans(),
        attention=st.none() | POSITIVE,
    ),
    "longrope": st.builds(longrope, st.tuples(POSITIVE, POSITIVE), st.tuples(POSITIVE, POSITIVE)),
}  # fmt: skip


def rotary(dialect: Dialect) -> list[RotaryKeys]:
    return [entry for entry in dialect.config if type(entry) is RotaryKeys]


def turns(entry: RotaryKeys) -> st.SearchStrategy[dict[str, Any]]:
    """Every set of arguments that rotary keys can carry."""
    share = {} if entry.share is None else {"share": st.floats(0, 1, exclude_min=True)}
    scalings = st.one_of(st.none(), *(SCALINGS[kind] for kind in entry.kinds))
    return st.fixed_dictionaries({"theta": POSITIVE, "scaling": scalings, **share})


@pytest.mark.parametrize("model_type", DIALECTS)
@given(data=st.data())
def test_what_is_written_is_read_back(model_type: str, data: st.DataObject) -> None:
    entries = catalog.dialects()[model_type].config
    carried, turned = keys(catalog.dialects()[model_type]), rotary(catalog.dialects()[model_type])
    arguments = read(entries, {}).arguments
    rest = set(write([entry for entry in entries if type(entry) not in PLAIN], arguments))
    drawn = {key.argument: data.draw(arguments_of(key), key.key) for key in carried}
    for entry in turned:
        drawn |= data.draw(turns(entry), entry.key)
    arguments |= drawn
    written = write(entries, arguments)
    arguments |= {key.argument: False for key in entries if isinstance(key, Under) and written[key.of] is False}
    silent = {key.key for key in carried if isinstance(key, Pattern) and arguments[key.argument] is None}
    silent |= {key.key for key in carried if key.quiet and arguments[key.argument] == key.default}
    told = {"max_position_embeddings"} if isinstance(arguments.get("scaling"), c.Dynamic) else set()
    told |= {LENGTH} if any(entry.length for entry in turned) and arguments["scaling"] is not None else set()
    assert set(written) == {entry.key for entry in [*carried, *turned]} - silent | told | rest
    reading = read(entries, json.loads(json.dumps(written)), strict=True)
    back = {name: reading.arguments[name] for name in drawn}  # what other kinds say may hang on these
    assert back == drawn
    assert {name: type(value) for name, value in back.items()} == {name: type(value) for name, value in drawn.items()}


@pytest.mark.parametrize("model_type", DIALECTS)
def test_every_spelling_is_read_alike(model_type: str) -> None:
    entries = catalog.dialects()[model_type].config
    for key in keys(catalog.dialects()[model_type]):
        usual = write(entries, read(entries, {}).arguments)
        values = key.names if isinstance(key, Choice) else [usual.get(key.key, key.default if key.quiet else None)]
        for value in values:
            read_as = [read(entries, {spelling: value}).arguments for spelling in key.spellings()]
            assert all(arguments == read_as[0] for arguments in read_as)


@pytest.mark.parametrize("model_type", DIALECTS)
def test_every_argument_of_the_spec_is_decided_once(model_type: str) -> None:
    dialect = catalog.dialects()[model_type]
    decided = [name for entry in dialect.config for name in entry.consume({})[0]]
    decided += [*dialect.fixed] + [find.argument for find in dialect.finds]
    spellings = [spelling for entry in dialect.config for spelling in entry.spellings()]
    assert len(set(decided)) == len(decided)
    assert len(set(spellings)) == len(spellings)
    usual = {**read(dialect.config, {}).arguments, **dialect.fixed}
    if model_type == "glm4_moe":
        usual["head_size"] = 128  # its class's own defaults are no model: half of 42 channels turn
    assert config.build(dialect.config, catalog.families()[dialect.spec].function, usual).blocks


@pytest.mark.parametrize("model_type", DIALECTS)
def test_wrong_value_is_refused(model_type: str) -> None:
    entries = [e for e in plain(catalog.dialects()[model_type]) if not isinstance(e, Inert | RotaryKeys)]
    for spelling, entry in ((spelling, one) for one in entries for spelling in one.spellings()):
        for value in wrong_for(entry):
            with pytest.raises(ArchitectureError) as caught:
                read(entries, {spelling: value})
            assert caught.value.message.startswith(f"config.json: {spelling} is ")
            assert "understood: " in caught.value.message
            assert len(caught.value.message) < 300


NESTED: list[Any] = [
    [[]], [{}], [None], {"": []}, [["full_attention"]], [[["global", []], 1]], [[[[], "local"], 1]],
    {"rope_type": []}, {"rope_type": "yarn", "factor": [[]]}, {"full_attention": {"rope_theta": {}}},
]  # fmt: skip


@pytest.mark.parametrize("model_type", DIALECTS)
def test_no_value_is_stumbled_over(model_type: str) -> None:
    """Whatever stands deeper than anyone looks: read or refused, by every kind of key there is."""
    for entry in catalog.dialects()[model_type].config:
        for spelling, value in ((spelling, value) for spelling in entry.spellings() for value in NESTED):
            with suppress(ArchitectureError):
                read((entry,), {spelling: value})


@pytest.mark.parametrize("model_type", DIALECTS)
def test_key_without_an_argument_changes_none(model_type: str) -> None:
    entries = catalog.dialects()[model_type].config
    nothing = read(entries, {})
    for entry in (entry for entry in plain(catalog.dialects()[model_type]) if isinstance(entry, Only | Inert)):
        for value in [entry.value] if isinstance(entry, Only) else [None, *INERT[entry.form]]:
            found = read(entries, {entry.key: value}, strict=True)
            assert replace(found, named=()) == nothing
        assert entry.write({}) == {}
        assert not isinstance(entry, Inert) or len(entry.why) > 10


INERT: dict[str, list[Any]] = {
    "anything": [1, "x", [1], {"a": 1}, math.nan],
    "a list of names": [[], ["BertModel"]],
    "the name of a loss": ["regression", "single_label_classification", "multi_label_classification"],
    "full attention in every layer": [[], ["full_attention"], ["full_attention"] * 3],
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


@pytest.mark.parametrize("value", [1, "full_attention", ["sliding_attention"], [["full_attention"]], [{}]])
def test_layers_that_must_all_be_full(value: Any) -> None:
    """What cannot be hashed was found by fuzzing."""
    held = [d for d in catalog.dialects().values() if any(getattr(e, "form", "").startswith("full") for e in d.config)]
    assert held
    for dialect in held:
        with pytest.raises(ArchitectureError, match=r"layer_types is .* full attention in every layer"):
            read(dialect.config, {"layer_types": value})


@pytest.mark.parametrize("model_type", DIALECTS)
def test_all_problems_are_named_at_once(model_type: str) -> None:
    dialect = catalog.dialects()[model_type]
    wrong = {key.key: "wrong" for key in keys(dialect)} | {"frob_rank": 4}
    with pytest.raises(ArchitectureError, match=r"\d+ keys are not understood") as caught:
        read(dialect.config, wrong, strict=True)
    problems = caught.value.context["problems"]
    assert list(caught.value.facts) == problems
    assert len(problems) >= len(wrong)  # more where a key must say what a wrong one says
    assert all(any(problem.strip('"').startswith(key) for problem in problems) for key in wrong)


WRONG_TURNS: list[tuple[Any, str]] = [  # the value of rope_parameters; what the refusal must name
    *((value, "rope_parameters is") for value in ("linear", 4, [4], True)),
    *(({"rope_theta": value}, " is ") for value in (0, -1, "1e4", None, True, math.inf, math.nan, [1e4])),
    ({"rope_type": "spiral"}, "spiral"),
    ({"rope_type": None}, "null"),
    ({"rope_type": ["linear"]}, "linear"),
    ({"full_attention": {"rope_type": "default"}}, "full_attention"),
    *(({"type": "linear", "factor": value}, "factor") for value in (0, -2, "8", None, True, math.inf)),
    ({"rope_type": "linear", "factor": 2.0, "twist": 3}, "twist"),
    ({"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 40}, "not understood with dynamic"),
    ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
    ({"rope_type": "yarn", "factor": 4.0, "truncate": 0}, "truncate"),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40.5}, "original_max_position"),
    ({"rope_type": "yarn", "factor": 4.0, "mscale": "1", "mscale_all_dim": 1.0}, "mscale"),
]
TURNED = [name for name in DIALECTS if any("linear" in entry.kinds for entry in rotary(catalog.dialects()[name]))]


@pytest.mark.parametrize(("value", "part"), WRONG_TURNS)
@pytest.mark.parametrize("model_type", TURNED)
def test_wrong_rotary_positions_are_refused(model_type: str, value: Any, part: str) -> None:
    entries = catalog.dialects()[model_type].config
    for spelling in ("rope_parameters", "rope_scaling"):
        with pytest.raises(ArchitectureError, match="understood") as caught:
            read(entries, {spelling: value, "max_position_embeddings": 777})
        assert part in " ".join(caught.value.context["problems"])
        assert all(len(problem) < 200 for problem in caught.value.context["problems"])


@pytest.mark.parametrize("kind", ["dynamic", "yarn"])
@pytest.mark.parametrize("length", [None, 2.5, "40", 0, True])
def test_length_that_a_scaling_needs_is_asked_for(kind: str, length: Any) -> None:
    entries = [e for e in catalog.dialects()["llama"].config if e.key != "max_position_embeddings"]
    with pytest.raises(ArchitectureError, match=r"max_position_embeddings is .* understood: a whole number"):
        read(entries, {"rope_parameters": {"rope_type": kind, "factor": 2.0}, "max_position_embeddings": length})


@pytest.mark.parametrize("model_type", TURNED)
def test_rotary_positions_are_read_alike_in_old_keys_and_new(model_type: str) -> None:
    """As the class does: what rope_scaling says outweighs rope_parameters, and within them stands before beside."""
    entries = catalog.dialects()[model_type].config
    (entry,) = rotary(catalog.dialects()[model_type])
    older, half = entry.older, {} if entry.share is None else {"partial_rotary_factor": 0.5}
    beside = {older[0]: 500.0} | ({older[1]: 0.5} if half else {})
    turned = read(entries, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0} | half})
    assert turned.arguments["theta"] == 500.0
    assert turned.arguments["scaling"] == c.Linear(factor=4.0)
    for said in (
        beside | {"rope_scaling": {"type": "linear", "factor": 4.0}},
        beside | {"rope_scaling": {"type": "linear", "factor": 4}, "rope_parameters": {"rope_theta": 7.0}},
        {older[0]: 3.0, "rope_parameters": {"type": "linear", "factor": 4.0, "rope_theta": 500.0} | half},
    ):
        assert read(entries, said).arguments == turned.arguments | (
            {} if half == {} or older[1] in said or "partial" in str(said) else {"share": entry.share}
        )


def respelled(dialect: Dialect) -> list[Key]:
    return [key for key in keys(dialect) if key.also]


@pytest.mark.parametrize("model_type", [name for name in DIALECTS if respelled(catalog.dialects()[name])])
def test_two_spellings_must_agree(model_type: str) -> None:
    dialect = catalog.dialects()[model_type]
    for key in respelled(dialect):
        one, other = (True, False) if isinstance(key, Flag) else (24, 48)
        agreed = read(dialect.config, {key.key: one, key.also[0]: one})
        assert agreed == read(dialect.config, {key.key: one})
        with pytest.raises(ArchitectureError, match=f"{key.key} and {key.also[0]} are two spellings of one thing"):
            read(dialect.config, {key.key: one, key.also[0]: other})


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
