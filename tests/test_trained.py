"""The trained models of the 2017 and the BERT line solve their tasks after conversion, and every level holds."""

import random
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

import lineage
from lineage.modules.beams import beam_search
from lineage.modules.generation import generate
from tests.handmade import main

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT = 2_000_000  # bytes of a model that a repository carries
NAMES = ("reversal", "brackets")
LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each example's model, converted; the comparison is a test of its own."""
    root = tmp_path_factory.mktemp("trained")
    for name in NAMES:
        lineage.convert(str(EXAMPLES / name / "model"), root / name, verify=False, hashes=True)
    return {name: root / name for name in NAMES}


def task_of(name: str) -> Any:
    """The example's own task.py."""
    found = spec_from_file_location(f"task_of_{name}", EXAMPLES / name / "task.py")
    assert found is not None
    assert found.loader is not None
    module: ModuleType = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_every_level_holds(name: str, converted: dict[str, Path]) -> None:
    report = lineage.verify(converted[name])
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} == LEVELS


@pytest.mark.parametrize("name", NAMES)
def test_still_solves_its_task(name: str, converted: dict[str, Path]) -> None:
    command = [sys.executable, EXAMPLES / name / "check.py", converted[name]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shares = [(int(right), int(count)) for right, count in re.findall(r"(\d+) of (\d+) ", done.stdout)]
    assert shares
    assert all(right >= 0.98 * count for right, count in shares)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_model_does_not(name: str, converted: dict[str, Path]) -> None:
    """The task notices a conversion that goes wrong: keys for values in one layer."""
    task, tokenizer = task_of(name), AutoTokenizer.from_pretrained(EXAMPLES / name / "model")
    model = lineage.from_pretrained(converted[name])
    body = model.blocks[-1].attention.body
    body.k, body.v = body.v, body.k
    asked = task.draw(random.Random(3), 40, held_out=True)
    if name == "reversal":
        ids, mask = task.sources(tokenizer, asked)
        given = {"tokens": 14, "stop": [tokenizer.eos_token_id], "start": torch.full((len(asked), 1), 27)}
        right = task.count_right(asked, task.decoded(tokenizer, generate(model, ids, mask, **given)))
        assert right < 0.9 * len(asked)
    else:
        gaps = task.gaps(asked)
        right = task.count_right(gaps, task.filled(model, tokenizer, [text for text, _ in gaps]))
        assert right < 0.9 * len(gaps)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_carried_is_small_and_what_training_held_out_is_held_out(name: str) -> None:
    files = list((EXAMPLES / name / "model").iterdir())
    assert sum(path.stat().st_size for path in files) <= LIMIT
    task = task_of(name)
    kept, out = (set(task.draw(random.Random(1), 3000, held_out=held)) for held in (False, True))
    assert kept
    assert not kept & out


def test_brackets_are_balanced_by_one_bracket_alone() -> None:
    task = task_of("brackets")
    for text, bracket in task.gaps(task.draw(random.Random(5), 200, held_out=True)):
        assert [one for one in task.BRACKETS if task.balanced(text.replace(task.MASK, one))] == [bracket]


@pytest.mark.parametrize("beams", [1, 4])
def test_words_are_the_references_token_for_token(beams: int, converted: dict[str, Path]) -> None:
    task, folder = task_of("reversal"), EXAMPLES / "reversal" / "model"
    theirs = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer, ours = (
        AutoTokenizer.from_pretrained(folder),
        lineage.from_pretrained(converted["reversal"], dtype="fp32"),
    )
    words = task.draw(random.Random(7), 50, held_out=True)
    ids, mask = task.sources(tokenizer, words)
    stop, begin = tokenizer.eos_token_id, theirs.config.decoder_start_token_id
    theirs.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=14, num_beams=beams, eos_token_id=stop, decoder_start_token_id=begin,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    want = theirs.generate(ids, attention_mask=mask)
    given = {"tokens": 14, "stop": [stop], "start": torch.full((50, 1), begin), "fill": tokenizer.pad_token_id}
    found = generate(ours, ids, mask, **given) if beams == 1 else beam_search(ours, ids, mask, beams=beams, **given)
    assert torch.equal(found, want)
    assert task.count_right(words, task.decoded(tokenizer, found)) == 50


@pytest.mark.parametrize("more", [(), ("--beams", "4")])
def test_command_reverses_a_word_without_a_network(
    more: tuple[str, ...], converted: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    outcome = main("generate", converted["reversal"], "attention", "--json", *more)
    assert outcome.code == 0, outcome.err
    assert outcome.json["text"] == "noitnetta"
    assert main("generate", EXAMPLES / "reversal" / "model", "lineage", *more).out.strip() == "egaenil"


def test_a_character_that_the_tokenizer_does_not_know_is_told_from_no_tokenizer(converted: dict[str, Path]) -> None:
    outcome = main("generate", converted["reversal"], "Attention")
    assert (outcome.code, outcome.out) == (2, "")
    assert "does not take this text" in outcome.err
    assert "no tokenizer" not in outcome.err
