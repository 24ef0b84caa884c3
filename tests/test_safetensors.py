"""Our reader of safetensors headers against the library: the same of what is sound, and never more of what is not."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from safetensors.numpy import load_file

from lineage.checkpoint import weights
from lineage.checkpoint.safetensors import BITS, JSON_LIMIT, read_header
from lineage.checkpoint.weights import open_weights
from lineage.errors import FileDamaged
from tests import handmade
from tests.handmade import framed

each_with_its_own_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
WHOLE = sorted(dtype for dtype, bits in BITS.items() if bits >= 8)
Found = dict[str, tuple[str, tuple[int, ...], bytes]]


@some.composite
def files(draw: some.DrawFn) -> bytes:
    """A sound file: any types, shapes, names and order, with or without metadata and padding."""
    names = draw(some.lists(some.text(max_size=8).filter(lambda name: name != "__metadata__"), max_size=5, unique=True))
    entries, data = {}, b""
    for name in names:
        dtype = draw(some.sampled_from(WHOLE))
        shape = draw(some.lists(some.integers(0, 4), max_size=4))
        size = math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += draw(some.binary(min_size=size, max_size=size))
    if draw(some.booleans()):
        entries["__metadata__"] = draw(some.dictionaries(some.text(max_size=4), some.text(max_size=4), max_size=2))
    shuffled = dict(draw(some.permutations(list(entries.items()))))
    return framed(json.dumps(shuffled).encode() + b" " * draw(some.integers(0, 9)), data)


def ours(path: Path) -> Found:
    held = weights.Weights(read_header(path), (path,))
    return {name: (held[name].dtype, held[name].shape, b"".join(held.chunks(name))) for name in held}


def theirs(raw: bytes) -> Found:
    held = dict(safetensors.deserialize(raw))
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in held.items()}


@each_with_its_own_file
@given(raw=files(), chunk=some.integers(1, 9))
def test_a_sound_file(raw: bytes, chunk: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "CHUNK", chunk)
        assert ours(tmp_path / "x") == theirs(raw)


@some.composite
def damaged(draw: some.DrawFn) -> bytes:
    """A sound file with some of its bytes changed, lost, or doubled; the header's length may be set right again."""
    raw = bytearray(draw(files()))
    for _ in range(draw(some.integers(1, 3))):
        at = draw(some.integers(0, max(len(raw) - 1, 0)))
        end = at + draw(some.integers(0, 4))
        raw[at:end] = draw(some.one_of(some.binary(max_size=4), some.just(bytes(raw[at:end]) * 2)))
    mend = draw(some.booleans()) and b"}" in raw
    return framed(bytes(raw[8 : raw.rindex(b"}") + 1]), bytes(raw[raw.rindex(b"}") + 1 :])) if mend else bytes(raw)


@each_with_its_own_file
@given(raw=damaged())
def test_a_damaged_file(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw)
    try:
        found = ours(tmp_path / "x")
    except FileDamaged:
        return
    assert found == theirs(raw)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DATA = bytes(range(8))


def header(**changes: Any) -> bytes:
    return framed(json.dumps({"a": ENTRY | changes}).encode(), DATA)


FORBIDDEN: Mapping[str, tuple[bytes, str]] = {
    "no object": (framed(b"[]"), "object"),
    "a mark before it": (framed(b"\xef\xbb\xbf" + json.dumps({"a": ENTRY}).encode(), DATA), "object"),
    "not UTF-8": (framed(b'{"\xff": 1}'), "JSON"),
    "a name twice": (framed(b'{"a": 1, "\\u0061": 1}'), '"a" stands twice'),
    "a field twice": (
        framed(b'{"a": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}', DATA),
        "twice",
    ),
    "a number that JSON lacks": (framed(b'{"a": NaN}'), "NaN"),
    "nested deep": (framed(b'{"a":' + b"[" * 10**5), "nested"),
    "metadata of numbers": (framed(b'{"__metadata__": {"format": 1}}'), "__metadata__"),
    "metadata that is a list": (framed(b'{"__metadata__": ["format"]}'), "__metadata__"),
    "an entry of another form": (framed(b'{"a": ["F32", [2], [0, 8]]}', DATA), "dtype, shape and data_offsets"),
    "a field too many": (header(scale=1), "dtype, shape and data_offsets"),
    "an unknown type": (header(dtype="F33"), "F33"),
    "no type": (header(dtype=None), "null"),
    "a negative size": (header(shape=[-2]), "shape"),
    "a size that is a float": (header(shape=[2.0]), "shape"),
    "a size that is true": (header(shape=[True, 2]), "shape"),
    "an endless rank": (header(shape=[2, *[1] * 40]), "dimensions"),
    "offsets that are text": (header(data_offsets=["0", "8"]), "data_offsets"),
    "offsets backwards": (header(data_offsets=[8, 0]), "span"),
    "three offsets": (header(data_offsets=[0, 8, 8]), "data_offsets"),
    "a span too short": (header(data_offsets=[0, 4]), "span"),
    "half a byte": (header(dtype="F4", shape=[3], data_offsets=[0, 1]), "span"),
    "a product beyond 64 bits": (header(shape=[2**40, 2**40]), "span"),
    "a hole": (header(shape=[1], data_offsets=[4, 8]), "unused"),
    "an overlap": (framed(json.dumps({"a": ENTRY, "b": ENTRY}).encode(), DATA), "overlaps"),
    "bytes after it": (framed(json.dumps({"a": ENTRY}).encode(), DATA + b"?"), "1 bytes after"),
    "cut short": (framed(json.dumps({"a": ENTRY}).encode(), DATA[:-1]), "cut short"),
    "cut in the header": (framed(json.dumps({"a": ENTRY}).encode())[:30], "cut short"),
    "cut in the length": (b"\x10\0\0", "cut short"),
    "a length beyond all": (b"\xff" * 8, "not a safetensors file"),
    "no header": (framed(b""), "not a safetensors file"),
    "more JSON than any model needs": (framed(b'{"a": "' + b"b" * JSON_LIMIT + b'"}'), "over 25,000,000"),
}


@pytest.mark.parametrize("fault", FORBIDDEN)
def test_forbidden(fault: str, tmp_path: Path) -> None:
    raw, word = FORBIDDEN[fault]
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(FileDamaged) as caught:
        read_header(tmp_path / "x.safetensors")
    assert "x.safetensors" in caught.value.message
    assert word in " ".join([caught.value.message, *caught.value.facts])


def test_the_undamaged_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(header())
    assert ours(tmp_path / "x") == {"a": ("F32", (2,), DATA)}


def test_a_header_may_be_padded_at_any_length(tmp_path: Path) -> None:
    raw = framed(json.dumps({"a": ENTRY}).encode() + b" " * (JSON_LIMIT + 1), DATA)
    (tmp_path / "x").write_bytes(raw)
    assert ours(tmp_path / "x") == {"a": ("F32", (2,), DATA)}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_are_one_checkpoint(count: int, tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "source")
    if count > 1:
        handmade.shard(source, count)
    found = open_weights(source)
    expected = handmade.tensors()
    assert found.keys() == expected.keys()
    assert len(found.files) == count
    for name, array in expected.items():
        assert np.array_equal(found.array(name).view("<f4"), array)


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_written_the_library_reads(count: int, tmp_path: Path) -> None:
    source, out = handmade.write(tmp_path / "source"), tmp_path / "out"
    if count > 1:
        handmade.shard(source, count)
    assert handmade.main("convert", source, "-o", out, "--verify", "none").code == 0
    found = {name: array for path in out.glob("*.safetensors") for name, array in load_file(path).items()}
    assert len(list(out.glob("*.safetensors"))) == count
    given = handmade.tensors()
    for i in range(2):
        q, k, v = (found.pop(f"blocks.{i}.attention.body.{x}.weight") for x in "qkv")
        assert np.array_equal(np.concatenate([q, k, v]), given.pop(f"h.{i}.attn.c_attn.weight").T)
        up = found.pop(f"blocks.{i}.mlp.body.up.weight")
        assert np.array_equal(up, given.pop(f"h.{i}.mlp.c_fc.weight").T)
    assert np.array_equal(found.pop("embed.tokens.weight"), given.pop("wte.weight"))
    numbers = [np.sort(np.concatenate([array.ravel() for array in half.values()])) for half in (found, given)]
    assert np.array_equal(*numbers)
