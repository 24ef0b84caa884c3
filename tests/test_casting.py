"""--dtype: numbers as torch rounds them, declared where they may change, refused where one would become infinite.

And what a conversion takes: little memory whatever the size, and neither torch nor transformers.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lineage
from lineage.checkpoint.casting import CASTS, cast, rounds
from lineage.parity.tiny import write_tiny
from tests import encodings, handmade
from tests.handmade import command, main, tree

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WIDTH = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16}
SIGNED = {64: np.int64, 32: np.int32, 16: np.int16}


def theirs(raw: np.ndarray, old: str, new: str) -> torch.Tensor:
    values = torch.from_numpy(raw.view(SIGNED[WIDTH[old]])).view(TORCH[old])
    return values.float().to(TORCH[new]) if old == "F64" else values.to(TORCH[new])


@pytest.mark.parametrize("new", sorted(CASTS.values()))
@pytest.mark.parametrize("old", sorted(TORCH))
@given(data=st.data())
def test_numbers_are_rounded_as_torch_does(old: str, new: str, data: st.DataObject) -> None:
    width = WIDTH[old]
    bits = data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=40))
    raw = np.array(bits, f"<u{width // 8}")
    wanted = theirs(raw, old, new)
    given_values = torch.from_numpy(raw.view(SIGNED[width])).view(TORCH[old])
    if (wanted.isinf() & given_values.isfinite()).any():
        with pytest.raises(ValueError, match="is beyond what"):
            cast(raw, old, new)
        return
    made = torch.from_numpy(cast(raw, old, new).view(SIGNED[WIDTH[new]])).view(TORCH[new])
    assert torch.equal(made.isnan(), wanted.isnan())
    same = made.view(torch.int32 if new == "F32" else torch.int16) == wanted.view(
        torch.int32 if new == "F32" else torch.int16
    )
    assert (same | wanted.isnan()).all()


def test_every_half_survives_the_way_up() -> None:
    every = np.arange(1 << 16, dtype="<u2")
    for old in ("F16", "BF16"):
        assert not rounds(old, "F32")
        numbers = every[~torch.from_numpy(every.view(np.int16)).view(TORCH[old]).isnan().numpy()]
        assert np.array_equal(cast(cast(numbers, old, "F32"), "F32", old), numbers)
    assert rounds("F32", "BF16")
    assert rounds("BF16", "F16")


def test_ties_go_to_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF808000], "<u4")
    assert cast(halfway, "F32", "BF16").tolist() == [0x3F80, 0x3F82, 0x3F81, 0xBF80]


@pytest.mark.parametrize("name", sorted(CASTS))
def test_a_conversion_casts_and_says_so(name: str, tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "source")
    done = lineage.convert(str(source), tmp_path / "out", verify=False, dtype=name, hashes=True)
    kinds = {entry["dtype"] for entry in done.manifest["tensors"].values()}
    assert kinds == {CASTS[name]}
    said = {"dtype": CASTS[name], "from": ["F32"], "exact": False}
    assert done.manifest.get("cast") == (None if name == "fp32" else said)
    ours, exact = (lineage.from_pretrained(place).state_dict() for place in (tmp_path / "out", source))
    for key, value in ours.items():
        assert torch.equal(value, exact[key].to(TORCH[CASTS[name]]))
    assert main("verify", tmp_path / "out", "--level", "bytes").code == 0
    report = lineage.verify(tmp_path / "out", source, only=("static", "bytes"))
    assert report.passed
    assert ("rounded" in report.levels[-1].summary) == (name != "fp32")


def test_verification_computes_with_the_cast_numbers(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "examples" / "addition" / "model"
    outcome = main("convert", source, "-o", tmp_path / "out", "--dtype", "bf16", "--json")
    assert outcome.code == 0, outcome.text
    levels = {level["name"]: level["verdict"] for level in outcome.json["report"]["levels"]}
    assert {levels[name] for name in ("against", "bytes", "fp64", "reference")} == {"passed"}


def test_another_rounding_is_seen(tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "source")
    lineage.convert(str(source), tmp_path / "out", verify=False, dtype="bf16", hashes=True)
    path = tmp_path / "out" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1  # the last bit of the last number
    path.write_bytes(raw)
    report = lineage.verify(tmp_path / "out", source, only=("bytes",))
    assert {level.name for level in report.levels if level.failed} == {"bytes", "against"}


def test_what_would_become_infinite_is_refused(tmp_path: Path) -> None:
    given_tensors = handmade.tensors()
    given_tensors["h.1.mlp.c_fc.weight"][3, 4] = 70000
    source = handmade.write(tmp_path / "source", given=given_tensors)
    outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none", "--dtype", "fp16")
    assert outcome.code == 9
    assert "h.1.mlp.c_fc.weight: 70000 is beyond what F16 holds" in outcome.err
    assert not (tmp_path / "out").exists()
    assert main("convert", source, "-o", tmp_path / "out", "--verify", "none", "--dtype", "bf16").code == 0


def test_what_is_decoded_is_cast_too(tmp_path: Path) -> None:
    source = encodings.fp8("llama", tmp_path / "fp8")
    kept = lineage.convert(str(source), tmp_path / "kept", verify=False)
    wide = lineage.convert(str(source), tmp_path / "wide", verify=False, dtype="fp32")
    assert wide.manifest["cast"]["dtype"] == "F32"
    ours = lineage.from_pretrained(wide.output).state_dict()
    for name, value in lineage.from_pretrained(kept.output).state_dict().items():
        assert torch.equal(ours[name], value.float())


@pytest.mark.parametrize("size", ["5", "5gb", "0GB", "-1GB", "1e9GB", "GB", "nan"])
def test_a_size_that_is_none_is_refused(size: str, tmp_path: Path) -> None:
    outcome = main("convert", tmp_path, "-o", tmp_path / "out", "--max-shard-size", size)
    assert outcome.code == 2


def test_files_of_a_size(tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "source")
    whole = lineage.convert(str(source), tmp_path / "whole", verify=False)
    parts = lineage.convert(str(source), tmp_path / "parts", verify=False, max_shard_size=2000)
    files = sorted((tmp_path / "parts").glob("model-*.safetensors"))
    assert len(files) > 3
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in files}
    assert index["weight_map"].keys() == whole.manifest["tensors"].keys()
    one, many = (lineage.from_pretrained(done.output).state_dict() for done in (whole, parts))
    assert all(torch.equal(value, many[name]) for name, value in one.items())


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "source")
    outcome = main("convert", source, "-o", tmp_path / "out", "--dry-run", "--json")
    assert outcome.code == 0, outcome.text
    assert sorted(tree(tmp_path)) == ["source", "source/config.json", "source/model.safetensors"]
    done = lineage.convert(str(source), tmp_path / "out", verify=False)
    assert outcome.json["manifest"] == done.manifest
    assert outcome.json["preview"]["writes"] > (tmp_path / "out" / "model.safetensors").stat().st_size
    assert main("convert", source, "-o", tmp_path / "out", "--dry-run").code == 2  # exists, as it would be told


MEASURED = """
import sys
from lineage import cli
try:
    cli.main()
finally:
    from pathlib import Path
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(peak.split()[1], *sorted({"torch", "transformers", "huggingface_hub"} & set(sys.modules)), file=sys.stderr)
"""


def test_what_only_moves_loads_no_numpy(tmp_path: Path) -> None:
    """To load it takes 0.1 s, of 0.4 for a small model."""
    source = write_tiny("llama", tmp_path / "source")
    code = "import sys; from lineage import cli\ntry: cli.main()\nfinally: "
    code += "print(int('numpy' in sys.modules), file=sys.stderr)"
    run = [sys.executable, "-c", code]
    outcome = command("convert", source, "-o", tmp_path / "out", "--verify", "none", command=run)
    assert (outcome.code, outcome.err) == (0, "0\n")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_a_large_model_takes_little_memory_and_no_torch(dtype: str, tmp_path: Path) -> None:
    """More than its own size would fit: 330 MB of GPT-2's shapes, some turned, the file full of holes."""
    sizes = {"n_layer": 6, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    shapes = {n: a.shape for n, a in handmade.tensors(6, 8, 11, 6).items()}
    real = {8: 768, 24: 2304, 32: 3072, 11: 50257, 6: 1024}
    header, end = {}, 0
    for name, shape in shapes.items():
        whole = [real[n] for n in shape]
        start, end = end, end + 4 * int(np.prod(whole))
        header[name] = {"dtype": "F32", "shape": whole, "data_offsets": [start, end]}
    with (source / "model.safetensors").open("wb") as file:
        file.write(handmade.framed(json.dumps(header).encode()))
        file.truncate(file.tell() + end)
    run = [sys.executable, "-c", MEASURED]
    outcome = command("convert", source, "-o", tmp_path / "out", "--verify", "none", "--dtype", dtype, command=run)
    assert outcome.code == 0, outcome.text
    assert outcome.err.count("\n") == 1, outcome.err
    peak, *loaded = outcome.err.split()
    assert loaded == []
    assert int(peak) < 80_000  # kB
