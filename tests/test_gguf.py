"""GGUF files: decoded as their own package and transformers do, fitted to a spec, verified."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from transformers.integrations.gguf import dequant

import lineage
from lineage import catalog, config
from lineage.checkpoint import gguf
from lineage.checkpoint.gguf import KINDS, read_gguf
from lineage.checkpoint.weights import open_weights
from lineage.parity.blocks import verify_blocks
from lineage.rules import Rule
from tests import encodings
from tests.workshop import CORE

SIZES = {"width": 64, "mlp_width": 96, "heads": 4, "kv_heads": 2, "head_size": 16}
WIDE = SIZES | {"width": 256, "mlp_width": 512, "head_size": 64}
QUANTISED = {kind: name for kind, (name, numbers, *_) in KINDS.items() if numbers > 1}


def test_types_have_the_sizes_of_the_format():
    sizes = {kind: tuple(GGML_QUANT_SIZES[GGMLQuantizationType(kind)]) for kind in KINDS}
    assert sizes == {kind: (numbers, width) for kind, (_, numbers, width, _) in KINDS.items()}
    assert all(GGMLQuantizationType(kind).name == name for kind, (name, *_) in KINDS.items())


def exactly(raw: np.ndarray, kind: int) -> torch.Tensor:
    """What blocks say, in double precision, by transformers' decoders; by hand where it has none."""
    blocks = torch.from_numpy(raw)
    if kind in dequant.GGML_BLOCK:
        return dequant.dequantize(blocks.reshape(-1), kind, torch.float64)
    blocks = blocks.reshape(-1, KINDS[kind][2])
    start = 4 if KINDS[kind][0] == "Q5_1" else 2  # Q5: scale (and least), a plane of 32 fifth bits, 32 low halves
    bits = blocks[:, start : start + 4].int() @ torch.tensor([1, 1 << 8, 1 << 16, 1 << 24], dtype=torch.int64).int()
    fifth = bits[:, None] >> torch.arange(32) & 1
    low = torch.cat([blocks[:, start + 4 :] & 15, blocks[:, start + 4 :] >> 4], 1).int()
    scale, least = (blocks[:, at : at + 2].contiguous().view(torch.float16).double() for at in (0, 2))
    codes = low + 16 * fifth
    return (scale * codes + least if start == 4 else scale * (codes - 16)).reshape(-1)


@pytest.mark.parametrize("kind", QUANTISED, ids=QUANTISED.values())
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1.0, 1e-6, 300.0]))
def test_every_type_is_decoded_with_one_rounding_at_most(kind, seed, size):
    """Those called exact with none: each number is what double precision makes of the same bits."""
    raw = encodings.noise(GGMLQuantizationType(kind), 4, 256, seed, size)
    said = exactly(raw, kind)
    made = torch.from_numpy(gguf._floats(kind, raw).reshape(-1))
    assert torch.equal(made, said.float())
    assert not KINDS[kind][3] or torch.equal(made.double(), said)


@pytest.mark.parametrize("kind", [kind for kind in QUANTISED if not KINDS[kind][3]])
def test_a_type_called_rounded_does_round(kind):
    raw = encodings.noise(GGMLQuantizationType(kind), 64, 256, 3)
    assert not torch.equal(torch.from_numpy(gguf._floats(kind, raw).reshape(-1)).double(), exactly(raw, kind))


def test_half_types_are_widened_bit_for_bit():
    every = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(1, -1)
    for kind, name in ((1, torch.float16), (30, torch.bfloat16)):
        want = torch.from_numpy(every.view(np.int16).copy()).view(name).float().view(torch.int32)
        made = torch.from_numpy(gguf._floats(kind, every).view(np.int32).copy())
        nan = torch.from_numpy(every.view(np.int16).copy()).view(name).isnan()
        assert torch.equal(made[~nan], want[~nan])


def test_slices_make_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "SLICE", 1000)  # numbers, of which a row has 64
    path = encodings.gguf(tmp_path / "model", "Q4_1", **SIZES)
    weights = open_weights(path.parent, file=path)
    for tensor in GGUFReader(path).tensors:
        want = dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(weights.array(tensor.name).view("<f4"), want)
        assert weights[tensor.name].shape == want.shape
        assert all(len(piece) <= 4000 for piece in weights.chunks(tensor.name))


def test_plain_numbers_come_back_bit_for_bit(tmp_path):
    """The turned rows of q and k, undone, are those of the checkpoint that was written."""
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES, tied=False)
    ours, plain = lineage.from_pretrained(path), lineage.from_pretrained(path.parent / "plain")
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), plain.parameters(), strict=True))
    assert not torch.equal(
        torch.from_numpy(open_weights(path.parent, file=path).array("blk.0.attn_q.weight").view("<f4")),
        plain.state_dict()["blocks.0.attention.body.q.weight"],
    )


FORMS = {
    "plain": (("F32",), SIZES, True),
    "old types": (("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"), SIZES, False),
    "halves": (("F16", "BF16"), SIZES, True),
    "K types": (("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0"), WIDE, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_converts_and_passes_every_level(tmp_path, form):
    types, sizes, tied = FORMS[form]
    keys = {} if form == "plain" else {"tokenizer.ggml.padding_token_id": 3}
    path = encodings.gguf(tmp_path / "model", *types, **sizes, tied=tied, keys=keys)
    shutil.rmtree(path.parent / "plain")
    done = lineage.convert(str(path.parent), tmp_path / "out")
    assert done.report.passed, "\n".join(done.report.lines())
    assert {level.verdict for level in done.report.levels} == {"passed"}
    assert done.checkpoint.plan.model.head.tied == tied
    assert done.checkpoint.plan.model.embed.padding == (3 if keys else None)
    assert verify_blocks(path).passed
    path.unlink()
    assert lineage.verify(tmp_path / "out", only=(*CORE, "training")).passed
    assert verify_blocks(tmp_path / "out").passed


def test_the_record_and_the_keys_are_kept(tmp_path):
    path = encodings.gguf(tmp_path / "model", "Q8_0", "Q4_1", "F32", **SIZES, keys={"general.license": "mit"})
    manifest = lineage.convert(str(path), tmp_path / "out", verify=False).manifest
    encoded = manifest["source"]["encoded"]
    assert {entry["encoding"]: entry["exact"] for entry in encoded.values()} == {"gguf Q8_0": True, "gguf Q4_1": False}
    assert all(set(entry["from"]) == {name} for name, entry in encoded.items())
    assert manifest["source"]["origin"] == path.name
    kept, whole = read_gguf(tmp_path / "out" / "source" / path.name), read_gguf(path)
    assert (kept.metadata, kept.tensors) == (whole.metadata, {})
    assert kept.metadata["general.license"] == "mit"
    assert {tensor["dtype"] for tensor in manifest["tensors"].values()} == {"F32"}


def test_wrong_pairs_are_caught(tmp_path, monkeypatch):
    path = encodings.gguf(tmp_path / "model", "F32", **SIZES)
    dialect = catalog.dialects("gguf")["llama"]
    still = tuple(Rule(rule.sources, rule.targets) for rule in dialect.tensors)
    monkeypatch.setattr(catalog, "dialects", lambda form="": {"llama": replace(dialect, tensors=still)})
    assert lineage.convert(str(path), tmp_path / "out").report.level("reference").failed


def test_its_tables_decide_every_argument_once():
    """And, where nothing is said, as the reference's class does."""
    dialect = catalog.dialects("gguf")["llama"]
    usual = config.read(dialect.config, {}).arguments
    decided = [*usual, *(find.argument for find in dialect.finds)]
    assert len(set(decided)) == len(decided) == len(config.read(dialect.config, {}).arguments) + 1
    assert set(decided) <= set(catalog.defaults(catalog.families()["llama"]))
    plain = config.read(catalog.dialects()["llama"].config, {}).arguments
    assert {name: plain[name] for name in usual} == usual
    assert {target for rule in dialect.tensors for target in rule.targets} >= {
        target for rule in dialect.memory for target in rule.targets
    }
