"""A model in another family's words: written if it is the same function, and never else."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import transformers
from safetensors.torch import load_file

import lineage
from lineage import catalog, config
from lineage import components as c
from lineage.components import Component
from lineage.edits import script
from lineage.errors import ArchitectureError, UsageError
from lineage.modules.model import build
from lineage.parity.reference import quiet
from lineage.parity.tiny import tiny, write_tiny
from lineage.respelled import void
from tests import encodings, real
from tests.handmade import main, tree
from tests.judge import calls, spread_model
from tests.mutants import places
from tests.specimens import SPECIMENS

TYPES = sorted(catalog.dialects())


@pytest.mark.parametrize("model_type", TYPES)
def test_what_a_config_says_is_written_and_read_back(model_type: str) -> None:
    """For the tiny model, and for each published size that its words reach."""
    _, dialect, chosen = tiny(model_type)
    sizes = catalog.families()[dialect.spec].published.values()
    usual = config.read(dialect.config, {}).arguments
    for arguments in (chosen, usual, *({**chosen, **size} for size in sizes)):
        try:
            written = config.write(dialect.config, arguments)
            once = config.read(dialect.config, written)
        except ArchitectureError:  # a size that is spelled by another type of this spec
            assert arguments not in (chosen, usual)
            continue
        assert once.unknown == ()
        assert config.read(dialect.config, json.loads(json.dumps(written))).arguments == once.arguments
        again = config.write(dialect.config, {**arguments, **once.arguments})
        assert again == written
        if arguments in (chosen, usual):
            assert once.arguments == {name: arguments[name] for name in once.arguments}


PAIRS: list[tuple[str, str, dict[str, Any]]] = [
    ("mistral", "llama", {"window": None}),
    ("qwen2", "llama", {}),
    ("phi3", "llama", {}),
    ("internlm3", "llama", {"bias": True}),
    ("llama", "mistral", {}),
    ("llama", "qwen2", {}),
    ("llama", "phi3", {"tied": True}),
    ("llama", "qwen2", {"tied": True, "scaling": c.Banded(factor=8.0, low=1.0, high=4.0, length=40)}),
    ("mt5", "t5", {}),
]


def converted(source: Path, root: Path) -> Path:
    return lineage.convert(str(source), root / "made", verify=False).output


def loaded(directory: Path) -> torch.nn.Module:
    """What transformers makes of a directory; with no tensor missing, unread or made up."""
    kind = getattr(transformers, json.loads((directory / "config.json").read_text())["architectures"][0])
    options = {"dtype": torch.float64, "attn_implementation": "eager", "output_loading_info": True}
    with quiet():  # some model types have only another's class
        settings = kind.config_class.from_pretrained(directory)
        model, report = kind.from_pretrained(directory, config=settings, **options)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def logits(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.randint(5, 90, (2, 17), generator=torch.Generator().manual_seed(3))
    more = {"decoder_input_ids": ids[:, :9]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(ids, **more)[0]


@pytest.mark.parametrize(("before", "after", "arguments"), PAIRS)
def test_it_computes_the_same_in_transformers(tmp_path, before, after, arguments):
    source = write_tiny(before, tmp_path / "source", **arguments)
    encodings.configured(source, max_position_embeddings=777, auto_map={"a": "b"})
    (source / "tokenizer.json").write_text("{}")
    made = converted(source, tmp_path)
    done = lineage.export(made, tmp_path / "back", family=after)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["model_type"] == after
    assert "auto_map" not in written
    assert after in ("mt5", "t5") or written["max_position_embeddings"] == 777
    assert (tmp_path / "back" / "tokenizer.json").read_text() == "{}"
    assert not done.same
    one, other = logits(loaded(source)), logits(loaded(tmp_path / "back"))
    assert one.std() > 0.01
    assert (one - other).abs().max() <= 1e-12 * one.abs().max()
    again = lineage.convert(str(tmp_path / "back"), tmp_path / "again", verify=False).output  # and back
    told = lineage.verify(again, only=("static", "bytes", "reference", "replay", "fp64"))
    assert told.passed, "\n".join(told.lines())


ENCODERS = [("roberta", "xlm-roberta"), ("xlm-roberta", "roberta"), ("roberta", "camembert")]


@pytest.mark.parametrize(("before", "after"), ENCODERS)
@pytest.mark.parametrize("parts", [{}, {"head": False, "pooler": True}, {"head": False}])
def test_encoders_too(tmp_path, before, after, parts):
    source = write_tiny(before, tmp_path / "source", pad=1, **parts)
    made = converted(source, tmp_path)
    lineage.export(made, tmp_path / "back", family=after)
    found = json.loads((tmp_path / "back" / "config.json").read_text())["architectures"][0]
    assert found.endswith("Model" if parts else "ForMaskedLM")
    one, other = (load_file(place / "model.safetensors") for place in (source, tmp_path / "back"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert lineage.from_pretrained(tmp_path / "back").spec == lineage.from_pretrained(made).spec
    report = lineage.verify(tmp_path / "back", only=("reference", "fp64"))
    assert report.passed, "\n".join(report.lines())


def test_several_shards_and_a_gguf_file(tmp_path):
    made = converted(encodings.gguf(tmp_path / "source", "F32"), tmp_path)
    done = lineage.export(made, tmp_path / "back", family="llama")
    assert "no config.json" in done.notes[0]
    assert lineage.from_pretrained(tmp_path / "back").spec == lineage.from_pretrained(made).spec


@pytest.mark.real
def test_a_published_gguf_file_becomes_a_llama(tmp_path):
    try:
        (file,) = real.fetched(real.SMOLLM2).rglob("*.gguf")
    except real.Unreachable as error:
        pytest.skip(str(error))
    made = converted(file, tmp_path)
    lineage.export(made, tmp_path / "back", family="llama")
    ours, theirs = lineage.from_pretrained(made), transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    ids = torch.randint(10, 40000, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        one, other = ours(ids).logits, theirs(ids).logits
    assert (one - other).abs().max() <= 1e-4 * one.abs().max()


REFUSED = [
    ("mistral", "llama", {"window": 16}, "mask"),
    ("gpt2", "llama", {}, "positions"),
    ("qwen3", "llama", {}, "query and key norms"),
    ("gemma", "llama", {}, "embedding scale"),
    ("granite", "llama", {}, "score scale"),
    ("bert", "roberta", {}, "positions"),
    ("t5", "mt5", {}, "head"),
    ("smollm3", "llama", {}, "positions"),
    ("olmo", "llama", {}, "clip"),
    ("glm", "llama", {}, "interleaved"),
    ("distilbert", "bert", {}, "segments"),
    ("qwen2", "mistral", {}, "biases"),
]


@pytest.mark.parametrize(("before", "after", "arguments", "told"), REFUSED, ids=[f"{a}-{b}" for a, b, *_ in REFUSED])
def test_what_is_not_the_same_is_refused_with_the_difference(tmp_path, before, after, arguments, told):
    made = converted(write_tiny(before, tmp_path / "source", **arguments), tmp_path)
    whole = tree(tmp_path)
    outcome = main("export", made, "--to", "hf", "--as", after, "-o", tmp_path / "back")
    assert outcome.code == 6
    assert told in outcome.err
    assert "→" in outcome.err
    assert tree(tmp_path) == whole


def test_wrong_use(tmp_path):
    made = converted(write_tiny("mistral", tmp_path / "source", window=None), tmp_path)
    for family, told in (("lama", "Did you mean"), ("bert", None), ("opt", None)):
        outcome = main("export", made, "--to", "hf", "--as", family, "-o", tmp_path / "back")
        assert outcome.code == (2 if told else 6)
        assert told is None or told in outcome.err
    with pytest.raises(UsageError, match="check"):
        lineage.export(made, family="llama", check=True)
    assert main("export", made, "--to", "hf", "--as", "llama", "--check").code == 2


def biased() -> dict[tuple[str, str], tuple[Any, Any]]:
    """For each flag of a bias in the vocabulary: a model without it, and the same with it."""
    found: dict[tuple[str, str], tuple[Any, Any]] = {}
    for spec in (*map(model_of, TYPES), *SPECIMENS.values()):
        for path, part, rebuild in places(spec):
            for f in (f for f in fields(part) if f.name.endswith("bias") and getattr(part, f.name) is False):
                key = type(part).__name__, f.name
                try:
                    other = None if key in found or not path else rebuild(replace(part, **{f.name: True}))
                except ArchitectureError:  # of one that has no weight to go with it
                    continue
                if other is not None:
                    found[key] = spec, other
    return found


def model_of(model_type: str) -> Any:
    _, dialect, chosen = tiny(model_type)
    return catalog.families()[dialect.spec].function(**chosen)


def test_a_bias_of_zeros_moves_no_result_wherever_it_stands() -> None:
    """What `void` lets pass, for every flag of the vocabulary."""
    pairs = biased()
    kinds = Component.kinds.values()
    hints = {(kind.__name__, f.name): get_type_hints(kind)[f.name] for kind in kinds for f in fields(kind)}
    assert {key for key, hint in hints.items() if hint is bool and key[1].endswith("bias")} == pairs.keys()
    for key, (spec, other) in pairs.items():
        edits = script(spec, other)
        assert edits, key
        assert all(map(void, edits)), key
        assert not any(map(void, script(other, spec))), key  # the way back would lose what it says
        model, more = spread_model(spec, torch.float64), build(other)
        new = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in more.state_dict().items()}
        more.load_state_dict({**new, **model.state_dict()}, assign=True)
        for probe in calls(spec)[:3]:
            with torch.no_grad():
                one, two = model(**probe.arguments()), more.eval()(**probe.arguments())
            for output in ("logits", "hidden"):
                if getattr(one, output, None) is not None:
                    gap = (getattr(one, output) - getattr(two, output)).abs().max()
                    assert gap <= 1e-13 * getattr(one, output).abs().max(), (key, output)
