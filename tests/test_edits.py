"""The edit script: applied to one spec it gives the other, for every pair; and it is of that pair alone."""

import json
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given

import lineage
from lineage import catalog, edits
from lineage import components as c
from lineage.edits import Edit, applied, lay_open, script, stretched
from lineage.errors import ArchitectureError, LineageError, UsageError
from tests.parts import PARTS
from tests.published import SIZES

MODELS = PARTS[c.Model]
TINY = {name: family.function(**family.tiny) for name, family in catalog.families().items()}
PUBLISHED = {size: lineage.spec(size) for size in SIZES}


@pytest.mark.parametrize("before", sorted(TINY))
def test_script_gives_the_other_for_all_pairs_of_families(before: str) -> None:
    for name, after in TINY.items():
        assert applied(script(TINY[before], after), TINY[before]) == after, name


@pytest.mark.parametrize("step", [1, 7, 31])
def test_script_gives_the_other_for_published_sizes(step: int) -> None:
    """Every size with another one, as far away in the list as `step`."""
    for i, size in enumerate(SIZES):
        other = PUBLISHED[SIZES[(i + step) % len(SIZES)]]
        assert applied(script(PUBLISHED[size], other), PUBLISHED[size]) == other, size


@given(MODELS, MODELS)
def test_script_gives_the_other_whatever_they_are(before: c.Model, after: c.Model) -> None:
    """Also from its JSON: what `diff --format json` prints is enough to apply it."""
    whole = script(before, after)
    assert applied(whole, before) == after
    told = json.loads(json.dumps([asdict(edit) for edit in whole]))
    assert applied([Edit(**edit) for edit in told], before) == after
    assert script(before, before) == ()


@pytest.mark.parametrize("pair", [("gpt", "llama"), ("bert", "mixtral"), ("gemma2", "gpt2"), ("transformer", "bert")])
def test_no_edit_is_idle(pair: tuple[str, str]) -> None:
    before, after = (TINY[name] for name in pair)
    whole = script(before, after)
    assert len(whole) > 5
    for left_out in whole:
        try:
            assert applied([edit for edit in whole if edit is not left_out], before) != after
        except LineageError:  # or what is left leads nowhere
            continue


def test_script_is_of_its_model_alone() -> None:
    whole = script(TINY["gpt2"], TINY["llama"])
    for other in ("bert", "llama", "mixtral"):
        with pytest.raises(UsageError, match="the script is of another model"):
            applied(whole, TINY[other])
    windows = script(TINY["gemma"], TINY["gemma2"])
    short = replace(TINY["gemma"], blocks=TINY["gemma"].blocks[:1])
    with pytest.raises(UsageError, match="the script is of another model"):
        applied(windows, short)


def test_what_cannot_be_is_refused() -> None:
    heads = Edit("changed", ("blocks", "*", "attention", "body", "heads"), 12, 7, "size")
    keys = Edit("changed", ("blocks", "*", "attention", "body", "kv_heads"), "heads", 2, "changed")
    with pytest.raises(ArchitectureError, match="kv_heads 2 does not divide heads 7"):
        applied([heads, keys], lineage.spec("gpt2"))


def of(before: c.Model, after: c.Model) -> set[tuple[str, str]]:
    return {(edit.state, ".".join(edit.names)) for edit in script(before, after)}


def test_norm_that_moves_is_one_edit_of_each_branch() -> None:
    found = of(lineage.spec("gpt"), lineage.spec("gpt2"))
    assert {pair for pair in found if pair[0] != "size"} == {
        ("moved", "blocks.attention"),
        ("moved", "blocks.mlp"),
        ("added", "norm"),
    }


def test_sizes_are_no_choices() -> None:
    found = of(lineage.spec("gpt2"), lineage.spec("gpt2-xl"))
    assert {state for state, _ in found} == {"size"}
    assert "blocks.attention.body.kv_heads" not in {path for _, path in found}  # as many as heads, in both


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"kv_heads": 4}, "changed"),
        ({"kv_heads": 1}, "changed"),
        ({"window": 99}, "added"),
        ({"theta": 5.0}, "changed"),
        ({"mlp_width": 99}, "size"),
    ],
)
def test_what_is_a_choice(changes: dict[str, Any], state: str) -> None:
    assert [one for one, _ in of(lineage.spec("llama"), lineage.spec("llama", **changes))] == [state]


def test_one_key_for_all_heads_is_another_design_than_several() -> None:
    several, fewer, one = (lineage.spec("llama", kv_heads=n) for n in (8, 4, 1))
    assert [edit.state for edit in script(several, fewer)] == ["size"]
    assert [edit.state for edit in script(several, one)] == ["changed"]


def test_scale_that_is_the_usual_one_has_no_effect() -> None:
    plain, told = lineage.spec("gpt2", layers=1), lineage.spec("gpt2", layers=1)
    body = replace(told.blocks[0].attention.body, scale=64**-0.5)
    told = replace(told, blocks=(replace(told.blocks[0], attention=replace(told.blocks[0].attention, body=body)),))
    (edit,) = script(plain, told)
    assert (edit.state, edit.decided) == ("same", False)
    assert applied([edit], plain) == told != plain


@pytest.mark.parametrize(
    ("stack", "length", "result"),
    [
        ("a", 3, "aaa"),
        ("ab", 5, "ababa"),
        ("abcbcb", 8, "abcbcbcb"),
        ("abbb", 6, "abbbbb"),
        ("abcd", 2, "ab"),
        ("abc", 4, "abca"),
        ("aab", 5, "aabaa"),
    ],
)
def test_stack_goes_on_as_it_began(stack: str, length: int, result: str) -> None:
    assert "".join(stretched(list(stack), length)) == result


def test_layers_that_follow_a_pattern_are_one_edit() -> None:
    found = [edit for edit in script(lineage.spec("gemma"), lineage.spec("gemma2")) if edit.names[-1] == "window"]
    assert [edit.path[1] for edit in found] == [tuple(range(0, 26, 2))]
    deeper = lineage.spec("gemma2", layers=40)
    assert [edit.phase for edit in script(lineage.spec("gemma2"), deeper)] == ["length"]


def test_equal_layers_are_one_object() -> None:
    for one, other in combinations(lay_open(lineage.spec("gpt2"))["blocks"], 2):
        assert one is other
    assert edits.alike(lineage.spec("gemma2").blocks) == [0, 1] + [0, 1] * 12
