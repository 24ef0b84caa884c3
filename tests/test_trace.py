"""A part of a tensor is led back to bytes of the source: those bytes hold its numbers and no others."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import lineage
from lineage import catalog, tracing
from lineage.errors import UsageError
from lineage.parity.tiny import write_tiny
from lineage.tracing import traced
from tests import encodings, handmade
from tests.handmade import main
from tests.test_export import sharded

TYPES = sorted(catalog.dialects())
ROOTS: dict[str, Path] = {}


@pytest.fixture(scope="module", autouse=True)
def root(tmp_path_factory):
    ROOTS["here"] = tmp_path_factory.mktemp("traced")


@cache
def pair(model_type: str) -> tuple[Path, Path]:
    """A source of two files, and what it was converted to."""
    source = sharded(write_tiny(model_type, ROOTS["here"] / model_type), 2)
    made = lineage.convert(str(source), ROOTS["here"] / f"{model_type}-lineage", verify=False).output
    return source, made


def numbers(folder: Path, places: Any) -> np.ndarray:
    """What the named bytes hold, as whole numbers in order of size."""
    parts = []
    for place in places:
        raw = (folder / place.file).read_bytes()
        parts += [np.frombuffer(raw[first:end], np.uint32) for first, end in place.ranges.tolist()]
    return np.sort(np.concatenate([np.zeros(0, np.uint32), *parts]))


def held(made: Path, name: str) -> np.ndarray:
    return next(t[name] for t in map(load_file, made.glob("*.safetensors")) if name in t)


def check(model_type: str, name: str, part: str) -> None:
    source, made = pair(model_type)
    found, whole = traced(made, name + part), held(made, name)
    wanted = eval(f"whole{part}", {"whole": whole})  # the notation is numpy's own
    assert found.shape == wanted.shape
    elements = np.sort(np.ascontiguousarray(wanted).view(np.uint32), axis=None)
    assert np.array_equal(numbers(made, [found.ours]), elements)
    assert np.array_equal(numbers(source, found.sources), elements)
    for place in (found.ours, *found.sources):  # in order, apart, and none empty
        assert (np.diff(place.ranges, axis=1) > 0).all()
        assert (place.ranges[1:, 0] > place.ranges[:-1, 1]).all()


@pytest.mark.parametrize("model_type", TYPES)
def test_every_family(model_type: str) -> None:
    """One tensor of each way to be made, whole and in parts."""
    _, made = pair(model_type)
    steps = json.loads((made / "lineage.json").read_text())["plan"]["steps"]
    kinds = {tuple(step.get("operations", ())): step["to"][-1] for step in steps}
    for name in kinds.values():
        rank = held(made, name).ndim
        for part in ("", "[1]", "[-2:]", "[::2]", *(("[1:3, 2:5]", "[..., 3]") if rank > 1 else ())):
            check(model_type, name, part)


def parts(shape: tuple[int, ...]) -> st.SearchStrategy[str]:
    def axis(size: int) -> st.SearchStrategy[str]:
        bound = st.none() | st.integers(-size - 2, size + 2)
        span = st.tuples(bound, bound, st.none() | st.sampled_from([1, 2, 3, -1, -2]))
        return st.integers(-size, size - 1).map(str) | span.map(
            lambda t: ":".join("" if n is None else str(n) for n in t)
        )

    full = st.tuples(*map(axis, shape)).map(list)
    count = st.integers(1, len(shape))
    ends = st.tuples(full, count).map(lambda t: t[0][: t[1]])
    dots = st.tuples(full, count).map(lambda t: ["...", *t[0][-t[1] :]] if t[1] < len(shape) else t[0])
    return (ends | dots).map(lambda items: f"[{', '.join(items)}]")


HARD = [
    ("gpt2", "blocks.1.attention.body.k.weight"), ("gpt2", "blocks.0.mlp.body.up.weight"),
    ("gpt_neox", "blocks.1.attention.body.v.weight"), ("falcon", "blocks.1.attention.body.q.weight"),
    ("mixtral", "blocks.0.mlp.body.gate"), ("dbrx", "blocks.0.mlp.body.down"), ("gpt_oss", "blocks.1.mlp.body.up"),
    ("phi3", "blocks.0.mlp.body.up.weight"), ("llama", "norm.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "name"), HARD)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part(model_type: str, name: str, data: st.DataObject) -> None:
    check(model_type, name, data.draw(parts(held(pair(model_type)[1], name).shape)))


@pytest.mark.parametrize(("model_type", "name"), HARD[:4])
def test_tiles_and_runs_agree(model_type: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rearranged goes through in pieces, however small."""
    monkeypatch.setattr(tracing, "TILE", 50)
    for part in ("", "[3:7]", "[:, 5]", "[::3, ::2]"):
        check(model_type, name, part)


@pytest.fixture
def made(tmp_path):
    return lineage.convert(str(handmade.write(tmp_path / "source")), tmp_path / "made", verify=False).output


def test_what_is_printed(made):
    outcome = main("trace", made, "blocks.1.attention.body.k.weight[0]")
    assert outcome.code == 0
    assert "8 ranges of 4 bytes, 96 apart, the first at" in outcome.out  # a column of a matrix of [8, 24]
    assert "h.1.attn.c_attn.weight   in model.safetensors" in outcome.out
    assert "by       Transpose, Split, from source" in outcome.out
    whole = main("trace", made, "embed.tokens.weight", "--json").json
    assert whole["operations"] == []
    assert whole["shape"] == [11, 8]
    (place,) = whole["sources"]
    assert (place["tensor"], place["file"], place["bytes"], place["range_count"]) == (
        "wte.weight", "model.safetensors", 11 * 8 * 4, 1,
    )  # fmt: skip


def test_an_empty_part(made):
    outcome = main("trace", made, "embed.tokens.weight[3:3]")
    assert outcome.code == 0
    assert "the part is empty" in outcome.out


NOT_PARTS = [
    "[11]", "[-12]", "[1, 2, 3]", "[", "[]", "[a]", "[1.0]", "[1:2:3:4]", "[::0]", "[1 2]", "[..., ...]", "[[1]]",
    "[1]x", "[None]", "[-]", "[:-]", "[99999999999999999999]", "[1,]", "[...,1,2,3]", "[True]", "[()]", "[0][0]",
    "[--1]", "[１]",
]  # fmt: skip


@pytest.mark.parametrize("part", NOT_PARTS)
def test_what_is_no_part_is_refused(made, part):
    outcome = main("trace", made, f"embed.tokens.weight{part}")
    assert outcome.code == 2, outcome.out
    assert "the tensor is [11, 8]" in outcome.err


@pytest.mark.parametrize(
    ("name", "told"),
    [("embed.token.weight", "embed.tokens.weight"), ("wte.weight", "it became embed.tokens.weight"), ("", "no tensor")],
)
def test_what_is_no_tensor_is_refused(made, name, told):
    outcome = main("trace", made, name)
    assert outcome.code == 2
    assert told in outcome.err


def test_where_it_is_no_directory_of_ours(tmp_path):
    assert main("trace", tmp_path, "x").code == 4


def test_without_a_header_ranges_are_of_the_tensor(made):
    (made / "source" / "model.safetensors.header").unlink()
    found = traced(made, "blocks.0.attention.body.q.bias[1:3]")
    assert [(place.file, place.ranges.tolist()) for place in found.sources] == [(None, [[4, 12]])]
    assert "no header was kept" in main("trace", made, "norm.weight").out


def test_what_was_decoded_is_said(tmp_path):
    made = lineage.convert(str(encodings.fp8("llama", tmp_path / "s")), tmp_path / "m", verify=False).output
    outcome = main("trace", made, "blocks.0.attention.body.q.weight[0]")
    assert "is decoded (fp8 8x8) from" in outcome.out


def test_too_many_pieces_are_refused(made, monkeypatch):
    monkeypatch.setattr(tracing, "MOST", 3)
    with pytest.raises(UsageError, match="pieces"):
        traced(made, "embed.tokens.weight[:, 1]")
    with pytest.raises(UsageError, match="pieces"):
        traced(made, "blocks.0.attention.body.q.weight[2]")
