"""Encoded storage: decoded as torch and transformers do, a slice at a time, or refused by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import lineage
from lineage.checkpoint import encoded
from lineage.checkpoint.weights import Weights, open_weights
from lineage.errors import ArchitectureError, FileDamaged, TensorMismatch
from lineage.parity.blocks import verify_blocks
from tests import encodings
from tests.encodings import configured
from tests.workshop import CORE, bits

MXFP4 = {"quant_method": "mxfp4"}


def held(directory: Path, storage: dict, **tensors: torch.Tensor) -> Weights:
    """A file of these tensors, opened and decoded."""
    directory.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return open_weights(directory).decoded(storage)


def every_pair(scales: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Every byte under every one of the scales: [1, scales, 16, 16] and [1, scales, 16]."""
    count = len(scales)
    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(1, count, 16, 16)
    return blocks, torch.tensor(scales, dtype=torch.uint8).reshape(1, count, 1).expand(1, count, 16)


def test_mxfp4_is_decoded_as_the_reference_does(tmp_path):
    blocks, scales = every_pair(range(253))
    weights = held(tmp_path, MXFP4, x_blocks=blocks, x_scales=scales)
    assert list(weights) == ["x"]
    assert (weights["x"].dtype, weights["x"].shape) == ("BF16", (1, 512, 253))
    assert np.array_equal(weights.array("x"), bits(convert_moe_packed_tensors(blocks, scales)).view(np.uint16))


def test_mxfp4_loses_nothing(tmp_path):
    """In double precision, every number is what its four bits and its scale say."""
    blocks, scales = every_pair(range(253))
    made = held(tmp_path, MXFP4, x_blocks=blocks, x_scales=scales).array("x")
    values = torch.from_numpy(made.view(np.int16)).view(torch.bfloat16).double()
    nibbles = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    said = encodings.LEVELS.double()[nibbles & 7] * (1 - 2 * (nibbles >> 3)) * (scales.double()[..., None] - 127).exp2()
    assert torch.equal(values, said.flatten(-2).transpose(1, 2))


@pytest.mark.parametrize("scale", [253, 254, 255])
def test_mxfp4_beyond_bfloat16_is_refused(tmp_path, scale):
    blocks, scales = every_pair(range(scale, scale + 1))
    weights = held(tmp_path, MXFP4, x_blocks=blocks, x_scales=scales)
    with pytest.raises(FileDamaged, match=rf"model.safetensors: x: .*2\^{scale - 127}"):
        weights.array("x")


def test_mxfp4_is_read_an_expert_at_a_time(tmp_path):
    blocks, scales = encodings.mxfp4(torch.randn(5, 64, 7))
    weights = held(tmp_path, MXFP4, x_blocks=blocks, x_scales=scales)
    pieces = list(weights.chunks("x"))
    assert [len(piece) for piece in pieces] == [64 * 7 * 2] * 5
    assert b"".join(pieces) == weights.array("x").tobytes()


def test_every_code_of_e4m3_is_torch_own():
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    ours = encoded._e4m3()
    assert np.array_equal(np.isnan(codes), np.isnan(ours))
    kept = ~np.isnan(codes)
    assert np.array_equal(codes[kept].view(np.uint32), ours[kept].view(np.uint32))


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([1.0, 1e-38, 1e36]),
    st.integers(0, 2**32),
)
def test_fp8_is_torch_product_rounded_once(tmp_path_factory, shape, block, kind, size, seed):
    """Every code, NaN too, and scales that lead out of bfloat16 at either end."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    grid = [-(-n // b) for n, b in zip(shape, block, strict=True)]
    scales = (torch.randn(grid, generator=generator) * size).to(kind)
    storage = encodings.FP8 | {"weight_block_size": list(block)}
    weights = held(tmp_path_factory.mktemp("fp8"), storage, w=codes, w_scale_inv=scales)
    repeated = scales.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    want = (codes.float() * repeated[: shape[0], : shape[1]]).bfloat16()
    made = torch.from_numpy(weights.array("w").view(np.int16)).view(torch.bfloat16)
    assert torch.equal(made.isnan(), want.isnan())
    assert torch.equal(made[~want.isnan()].view(torch.int16), want[~want.isnan()].view(torch.int16))
    assert all(len(piece) <= 2 * block[0] * shape[1] for piece in weights.chunks("w"))


BYTES = torch.zeros(2, 3, 4, 16, dtype=torch.uint8)
CODES = torch.zeros(16, 24).to(torch.float8_e4m3fn)
MISFITS = {
    "scales of another shape": (MXFP4, {"x_blocks": BYTES, "x_scales": BYTES[:, :, :3, 0]}, "x_scales"),
    "blocks of 8 bytes": (MXFP4, {"x_blocks": BYTES[..., :8], "x_scales": BYTES[..., 0]}, "x_blocks"),
    "no experts": (MXFP4, {"x_blocks": BYTES[0], "x_scales": BYTES[0, ..., 0]}, "x_blocks"),
    "scales as floats": (MXFP4, {"x_blocks": BYTES, "x_scales": BYTES[..., 0].float()}, "x_scales F32"),
    "told twice": (MXFP4, {"x_blocks": BYTES, "x_scales": BYTES[..., 0], "x": torch.ones(3)}, "x is there"),
    "a scale for each tensor": (encodings.FP8, {"w": CODES, "w_scale_inv": torch.ones(1)}, "w_scale_inv"),
    "another block": (encodings.FP8, {"w": CODES, "w_scale_inv": torch.ones(2, 3)}, "128 x 128"),
    "experts in one": (encodings.FP8, {"w": CODES[None], "w_scale_inv": torch.ones(1, 1, 1)}, "w F8_E4M3 [1, 16, 24]"),
    "scales as bytes": (encodings.FP8, {"w": CODES, "w_scale_inv": BYTES[:1, :1, 0, 0]}, "F32 or BF16"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_parts_that_do_not_fit_are_named(tmp_path, case):
    storage, tensors, part = MISFITS[case]
    with pytest.raises(TensorMismatch, match="do not fit each other") as caught:
        held(tmp_path, storage, **tensors)
    assert part in "\n".join(caught.value.facts)


@pytest.mark.parametrize("lost", ["_scale_inv", ""])
def test_half_of_an_encoded_tensor_is_refused(tmp_path, lost):
    source = encodings.fp8("llama", tmp_path / "fp8")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(source / "model.safetensors")
    del tensors[name + lost]
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(TensorMismatch, match="does not fill") as caught:
        lineage.convert(str(source), tmp_path / "out")
    assert name in "\n".join(caught.value.facts)
    assert not (tmp_path / "out").exists()


QUANTISED = {
    "awq": {"quant_method": "awq", "bits": 4},
    "gptq": {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "quant_method": "gptq"},
    "bitsandbytes": {"load_in_4bit": True, "quant_method": "bitsandbytes"},
    "null": {"load_in_8bit": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "activation_scheme": encodings.FP8 | {"activation_scheme": "static"},
    "weight_block_size": encodings.FP8 | {"weight_block_size": None},
    "e5m2": encodings.FP8 | {"fmt": "e5m2"},
    "expert_dtype": encodings.FP8 | {"expert_dtype": "fp4"},
    "modules_to_convert": encodings.FP8 | {"modules_to_convert": ["model.embed_tokens"]},
    "group_size": MXFP4 | {"group_size": 32},
    "modules_to_not_convert": MXFP4 | {"modules_to_not_convert": "lm_head"},
}


@pytest.mark.parametrize("part", QUANTISED)
def test_other_methods_and_options_are_refused_by_name(tmp_path, part):
    source = configured(encodings.fp8("llama", tmp_path / "fp8"), quantization_config=QUANTISED[part])
    with pytest.raises(ArchitectureError, match="quantization_config") as caught:
        lineage.convert(str(source), tmp_path / "out")
    assert caught.value.exit_code == 6
    assert part in caught.value.message
    assert not (tmp_path / "out").exists()


FORMS = {
    "llama": lambda place: encodings.fp8("llama", place),
    "experts, short scales": lambda place: encodings.fp8("qwen3_moe", place, (8, 8), torch.bfloat16, expert_width=24),
    "latent attention": lambda place: encodings.fp8("deepseek_v3", place, heads=4, query_latent=24, expert_width=24),
    "blocks cut short": lambda place: encodings.fp8("llama", place, (16, 16)),
    "blocks cut short, unseen by the reference": lambda place: encodings.fp8("llama", place, (24, 40)),
    "mxfp4": encodings.gpt_oss,
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_passes_every_level(tmp_path, form):
    source = FORMS[form](tmp_path / "encoded")
    done = lineage.convert(str(source), tmp_path / "out")
    assert done.report.passed, "\n".join(done.report.lines())
    assert {level.verdict for level in done.report.levels} == {"passed"}
    assert any("not decode" in note for note in done.report.notes) == form.startswith("blocks cut short")
    assert any(("exactly" if form == "mxfp4" else "rounded") in note for note in done.checkpoint.notes)
    direct, loaded = lineage.from_pretrained(source), lineage.from_pretrained(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(direct.parameters(), loaded.parameters(), strict=True))
    shutil.rmtree(source)
    assert lineage.verify(tmp_path / "out", only=CORE).passed


@pytest.mark.parametrize("form", ["llama", "mxfp4", "blocks cut short"])
def test_passes_block_by_block(tmp_path, form):
    source = FORMS[form](tmp_path / "encoded")
    lineage.convert(str(source), tmp_path / "out", verify=False)
    assert verify_blocks(source).passed
    shutil.rmtree(source)
    assert verify_blocks(tmp_path / "out").passed


def test_the_record_says_what_was_decoded_from_what(tmp_path):
    source = encodings.fp8("llama", tmp_path / "fp8")
    manifest = lineage.convert(str(source), tmp_path / "out", verify=False).manifest
    assert (
        json.loads((tmp_path / "out" / "lineage.json").read_text())["source"]["encoded"]
        == manifest["source"]["encoded"]
    )
    names = {name for name in load_file(source / "model.safetensors") if name.endswith("_scale_inv")}
    found = manifest["source"]["encoded"]
    assert {f"{name}_scale_inv" for name in found} == names
    for name, entry in found.items():
        assert (entry["encoding"], entry["exact"]) == ("fp8 8x8", False)
        assert set(entry["from"]) == {name, f"{name}_scale_inv"}
        assert manifest["source"]["tensors"][name]["dtype"] == "BF16"


def turned(right):
    """Scales of blocks in the reverse order."""
    return lambda dtype, high, wide: lambda codes, scales: right(dtype, high, wide)(codes, scales[:, ::-1])


def larger(right):
    """Every number a sixteenth too large."""
    return lambda: right() * np.float32(1.0625)


@pytest.mark.parametrize(("what", "wrong"), [("_e4m3", larger), ("_scaled", turned)])
def test_a_wrong_decoder_is_caught(tmp_path, monkeypatch, what, wrong):
    source = encodings.fp8("llama", tmp_path / "fp8")
    monkeypatch.setattr(encoded, what, wrong(getattr(encoded, what)))
    report = lineage.convert(str(source), tmp_path / "out").report
    assert report.level("reference").failed
