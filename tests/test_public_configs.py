"""Configs of public models as they lie on the hub: each is read, counted, and counts what the reference counts.

Written down from what is published, with every key; a file that is added to tests/configs is tested by that alone.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from lineage import catalog, count
from lineage.checkpoint.source import Access
from lineage.describe import describe
from tests.handmade import command

CONFIGS = {path.stem: path for path in sorted((Path(__file__).parent / "configs").glob("*.json"))}
PUBLISHED = {
    "bert-large-uncased": 335_174_458,
    "bloom-560m": 559_214_592,
    "c4ai-command-r-v01": 34_980_831_232,
    "dbrx-base": 131_596_523_520,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "flan-t5-xl": 2_849_757_184,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b-it": 999_885_952,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2-xl": 1_557_611_200,
    "granite-3.0-2b-base": 2_533_531_648,
    "llama-2-70b-hf": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b-v0.3": 7_248_023_552,
    "mpt-7b": 6_649_286_656,
    "olmoe-1b-7b-0924": 6_919_161_856,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi-3-mini-4k-instruct": 3_821_079_552,
    "pythia-1.4b": 1_414_647_808,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "smollm3-3b": 3_075_098_624,
    "stablelm-2-1_6b": 1_644_515_328,
    "starcoder2-7b": 7_173_923_840,
    "t5-base": 222_903_552,
}
"""The numbers of parameters that their pages state."""
UNTIED = {"flan-t5-xl"}  # the class ties what the file, and its config, hold apart


def folder(name: str, tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_bytes(CONFIGS[name].read_bytes())
    return tmp_path


def theirs(name: str) -> int:
    """What the reference trains and keeps; sinusoids, which it makes, are neither."""
    said: dict[str, Any] = json.loads(CONFIGS[name].read_text())
    said.pop("quantization_config", None)  # of storage
    dialect = catalog.dialects()[said.pop("model_type")]
    known = [one for one in dialect.references if one.name in said["architectures"]] or [dialect.references[0]]
    with torch.device("meta"):
        model = getattr(transformers, known[0].name)(CONFIG_MAPPING[dialect.model_types[0]](**said))
    trained = (one for one in model.parameters() if one.requires_grad)
    saved = (one for name, one in model.named_buffers() if name in model.state_dict())
    return sum(one.numel() for one in (*trained, *saved))


def test_there_are_enough() -> None:
    assert len(CONFIGS) >= 30
    assert set(PUBLISHED) <= set(CONFIGS)
    types = {json.loads(path.read_text())["model_type"] for path in CONFIGS.values()}
    assert len(types) > 30


@pytest.mark.parametrize("name", CONFIGS)
def test_public_config_is_read_and_counted(name: str, tmp_path: Path) -> None:
    described = describe(str(folder(name, tmp_path)), Access())
    figures = count.figures(described.model)
    head = described.model.embed.vocab * described.model.embed.width if name in UNTIED else 0
    assert figures["parameters"] == theirs(name) + head
    assert figures["parameters"] == PUBLISHED.get(name, figures["parameters"])
    assert figures["active"] <= figures["parameters"]


def test_active_parameters_are_those_that_are_published(tmp_path: Path) -> None:
    """In billions, as the models' pages round them."""
    for name, active in (("qwen3-30b-a3b", 3.3), ("deepseek-v3", 37), ("dbrx-base", 36), ("olmoe-1b-7b-0924", 1.3)):
        figures = count.figures(describe(str(folder(name, tmp_path)), Access()).model)
        assert abs(figures["active"] / 1e9 - active) < max(0.1, active / 50), (name, figures["active"])


def test_public_config_is_an_argument_of_every_command(tmp_path: Path) -> None:
    where = str(folder("llama-3.1-8b", tmp_path))
    assert command("diff", "llama-3-8b", where, "--only", "sizes", "--exit-code").code == 0
    assert "8,030,261,248" in command("params", f"{where}/config.json").out
    assert "stretched by frequency × 8" in " ".join(command("show", where).out.split())
    assert command("tree", "--of", where).out.splitlines()[3].startswith("llama-3-8b")
    assert command("path", where, "gpt2").code == 0
