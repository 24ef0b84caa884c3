"""GGUF files that are another model, damaged or hostile: refused by name, with the right code, and nothing written."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

import lineage
from lineage.checkpoint import gguf
from lineage.checkpoint.gguf import read_gguf
from lineage.errors import ArchitectureError, FileDamaged, LineageError, TensorMismatch, UsageError
from tests import encodings, handmade

SIZES = {"width": 32, "mlp_width": 32, "heads": 4, "kv_heads": 2, "head_size": 8, "layers": 1, "vocab": 40}
ONES = torch.ones(32)

KEYS = {
    "experts": ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "llama.expert_count is 8"),
    "linear scaling": ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, "rope.scaling.type"),
    "its factor alone": ({"llama.rope.scaling.factor": 4.0}, "llama.rope.scaling.factor"),
    "older scaling": ({"llama.rope.scale_linear": 4.0}, "llama.rope.scale_linear is 4.0"),
    "window": ({"llama.attention.sliding_window": 128}, "llama.attention.sliding_window is 128"),
    "not causal": ({"llama.attention.causal": False}, "llama.attention.causal is false"),
    "something new": ({"llama.logit_scale": 0.5}, "llama.logit_scale"),
    "heads by layer": ({"llama.attention.head_count": [4, 2]}, "llama.attention.head_count is"),
    "heads do not divide": ({"llama.attention.head_count_kv": 3}, "tiny.gguf"),
    "heads of two widths": ({"llama.attention.value_length": 4}, "two spellings"),
    "epsilon that is no number": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon"),
    "a part of several": ({"split.count": 2}, "split.count is 2"),
    "an adapter": ({"general.type": "adapter"}, "adapter"),
    "another architecture": ({"general.architecture": "qwen2"}, "'qwen2' has no converter from gguf"),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_of_another_model_are_refused_by_name(tmp_path, case):
    keys, part = KEYS[case]
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES, keys=keys)
    with pytest.raises(ArchitectureError) as caught:
        lineage.convert(str(path), tmp_path / "out")
    assert caught.value.exit_code == 6
    assert part in "\n".join([caught.value.message, *caught.value.facts])
    assert "config.json" not in caught.value.message
    assert not (tmp_path / "out").exists()


def test_a_file_that_does_not_say_what_it_is(tmp_path):
    (tmp_path / "bare.gguf").write_bytes(file(tensors=(tensor("a", [8]),), data=32))
    with pytest.raises(ArchitectureError, match=r"bare\.gguf: .*general\.architecture None"):
        lineage.from_pretrained(tmp_path / "bare.gguf")


def test_keys_of_other_tools_are_listed(tmp_path):
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES, keys={"quantize.imatrix.file": "x.dat"})
    done = lineage.convert(str(path), tmp_path / "out", verify=False)
    assert any("tiny.gguf" in note and "quantize.imatrix.file" in note for note in done.checkpoint.notes)
    with pytest.raises(ArchitectureError, match=r"quantize\.imatrix\.file"):
        lineage.convert(str(path), tmp_path / "strict", strict=True)


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.1.attn_norm.weight", "blk.0.ffn_gate_exps.weight"]
)
def test_tensors_that_nobody_explains_are_refused_by_name(tmp_path, monkeypatch, name):
    given = encodings.llama
    monkeypatch.setattr(encodings, "llama", lambda *a, **s: (given(*a, **s)[0], given(*a, **s)[1] | {name: ONES}))
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES)
    with pytest.raises(TensorMismatch, match="does not fill") as caught:
        lineage.convert(str(path), tmp_path / "out")
    assert f"unexpected  {name}" in "\n".join(caught.value.facts)


def test_types_that_are_not_decoded_are_refused_by_name(tmp_path, monkeypatch):
    raw = lambda given, kind, seed: np.zeros((given.shape[0], 66), np.uint8)  # noqa: E731
    monkeypatch.setattr(encodings, "packed", raw)
    path = encodings.gguf(tmp_path / "model", "IQ2_XXS", **SIZES | {"width": 256, "mlp_width": 256, "head_size": 64})
    with pytest.raises(ArchitectureError, match="not decoded") as caught:
        lineage.convert(str(path), tmp_path / "out")
    assert f"token_embd.weight is of ggml's type {int(GGMLQuantizationType.IQ2_XXS)}" in caught.value.facts


def test_without_the_package_its_name_is_told(tmp_path, monkeypatch):
    plain = encodings.gguf(tmp_path / "plain", "F32", "F16", "BF16", **SIZES)
    packed = encodings.gguf(tmp_path / "packed", "Q8_0", **SIZES)
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    assert lineage.from_pretrained(plain)
    with pytest.raises(UsageError, match="gguf package") as caught:
        lineage.from_pretrained(packed)
    assert "lineage-models[gguf]" in caught.value.hint


def test_a_folder_with_one_file_is_that_file(tmp_path):
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES)
    assert lineage.from_pretrained(path.parent).provenance["model_type"] == "llama"
    path.with_name("other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(UsageError, match=r"other\.gguf, tiny\.gguf"):
        lineage.from_pretrained(path.parent)
    for file in (path.parent / "plain").iterdir():
        file.rename(path.parent / file.name)
    assert lineage.from_pretrained(path.parent).provenance["origin"] == str(path.parent)  # safetensors speak first


def test_usual_weights_are_not_passed_over_for_it(tmp_path):
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES)
    (path.parent / "pytorch_model.bin").write_bytes(b"")
    (path.parent / "plain" / "config.json").rename(path.parent / "config.json")
    with pytest.raises(UsageError, match="pickle"):
        lineage.from_pretrained(path.parent)


# what a header may say


def text(said: str | bytes) -> bytes:
    raw = said.encode() if isinstance(said, str) else said
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def file(
    *keys: bytes,
    tensors: tuple[bytes, ...] = (),
    data: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(keys)))) + b"".join([*keys, *tensors])
    return head + bytes(-len(head) % 32) + bytes(data) if tensors else head


ARCHITECTURE = key("general.architecture", 8, text("llama"))
HUGE = 2**64 - 1
HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cut short"),
    "another format": (b"GGML" + bytes(40), "not a GGUF file"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "version 1": (file(version=1), "version 1"),
    "big-endian": (file(version=3 << 24), "little-endian"),
    "more keys than bytes": (file(counts=(0, 1000)), "cut short"),
    "keys without end": (file(counts=(0, HUGE)), "keys"),
    "tensors without end": (file(counts=(HUGE, 0)), "tensors"),
    "a name without end": (file(struct.pack("<Q", HUGE), counts=(0, 1)), "cut short"),
    "a name that is no text": (file(key("x", 4, bytes(4)).replace(b"x", b"\xff")), "UTF-8"),
    "text without end": (file(key("x", 8, struct.pack("<Q", 2**62))), "cut short"),
    "numbers without end": (file(key("x", 9, struct.pack("<IQ", 10, HUGE))), "cut short"),
    "texts without end": (file(key("x", 9, struct.pack("<IQ", 8, HUGE))), "cut short"),
    "truths without end": (file(key("x", 9, struct.pack("<IQ", 7, HUGE))), "cut short"),
    "an array of arrays": (file(key("x", 9, struct.pack("<IQ", 9, 1))), "type 9"),
    "a value of no type": (file(key("x", 13, b"")), "type 13"),
    "a truth of two": (file(key("x", 7, b"\x02")), "truth value of 2"),
    "a key twice": (file(ARCHITECTURE, ARCHITECTURE), "stands twice"),
    "alignment zero": (file(key("general.alignment", 4, bytes(4))), "general.alignment is 0"),
    "alignment of three": (file(key("general.alignment", 4, b"\x03\0\0\0")), "general.alignment is 3"),
    "alignment as text": (file(key("general.alignment", 8, text("32"))), "general.alignment is '32'"),
    "a tensor twice": (file(tensors=(tensor("a", [1]), tensor("a", [1]))), "stands twice"),
    "no dimensions": (file(tensors=(tensor("a", []),)), "0 dimensions"),
    "five dimensions": (file(tensors=(tensor("a", [1] * 5),)), "5 dimensions"),
    "dimensions without end": (file(text("a") + struct.pack("<I", 2**32 - 1), counts=(1, 0)), "dimensions"),
    "nothing in it": (file(tensors=(tensor("a", [0, 4]),)), "'a'"),
    "half a block": (file(tensors=(tensor("a", [16], 8),), data=64), "whole blocks"),
    "out of step": (file(tensors=(tensor("a", [1], offset=4),), data=64), "whole blocks"),
    "beyond the end": (file(tensors=(tensor("a", [64]),), data=64), "cut short"),
    "numbers beyond all memory": (file(tensors=(tensor("a", [2**63, 2**63, 2**63, 2**63]),), data=64), "cut short"),
    "one over another": (file(tensors=(tensor("a", [16]), tensor("b", [8], offset=32)), data=64), "overlaps"),
    "a hole": (file(tensors=(tensor("a", [8], offset=64),), data=96), "unused"),
    "more at the end": (file(tensors=(tensor("a", [8]),), data=96), "after the last"),
    "no tensors": (file(ARCHITECTURE), "no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_malformed_headers_are_refused(tmp_path, case):
    raw, part = HEADERS[case]
    (tmp_path / "bad.gguf").write_bytes(raw)
    outcome = handmade.main("convert", tmp_path / "bad.gguf", "-o", tmp_path / "out")
    assert outcome.code == 7, outcome.text
    assert "bad.gguf" in outcome.err
    assert part in outcome.err
    assert os.listdir(tmp_path) == ["bad.gguf"]


def test_a_header_of_gigabytes_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.gguf"
    path.write_bytes(file(key("x", 9, struct.pack("<IQ", 0, 2**33))))
    os.truncate(path, 2**34)  # holes: no disk is used
    with pytest.raises(FileDamaged, match="a header over"):
        read_gguf(path)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(FileDamaged, match="not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return encodings.gguf(tmp_path_factory.mktemp("whole") / "model", "Q8_0", "F32", **SIZES).read_bytes()


def survives(tmp_path: Path, raw: bytes, use: Callable[[Path], object]) -> bool:
    """Whether the file is used, or refused in our words."""
    path = tmp_path / "changed.gguf"
    path.write_bytes(raw)
    try:
        use(path)
    except LineageError as error:
        return error.exit_code in (6, 7, 9)
    return True


def test_a_file_cut_anywhere_is_damaged(tmp_path, whole):
    path = tmp_path / "cut.gguf"
    for length in range(0, len(whole) - 32, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(FileDamaged):
            read_gguf(path)


@given(data=st.data())
def test_no_flipped_byte_brings_anything_but_a_refusal(whole, tmp_path_factory, data):
    place = data.draw(st.integers(0, 3000) | st.integers(0, len(whole) - 1))  # the header takes 2,400 bytes
    raw = bytearray(whole)
    raw[place] ^= data.draw(st.integers(1, 255))
    assert survives(tmp_path_factory.mktemp("flipped"), bytes(raw), lineage.from_pretrained)


@given(raw=st.binary(max_size=200))
def test_any_header_is_read_or_refused(raw, tmp_path_factory):
    assert survives(tmp_path_factory.mktemp("any"), b"GGUF\3\0\0\0" + raw, read_gguf)
