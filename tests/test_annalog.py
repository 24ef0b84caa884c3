"""A dialect whose reference is another package's: annalog's trained Transformer, judged by annalog's own code.

The package is fetched once into the cache of tests/real.py and imported from there, never copied. Without a registry
the tests that need it are skipped, and only they.
"""

import importlib
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import lineage
from lineage import catalog
from lineage.errors import ArchitectureError, TensorMismatch
from lineage.modules.beams import beam_search
from lineage.modules.cache import Cache
from lineage.modules.generation import generate
from lineage.parity.tiny import write_tiny
from tests import real
from tests.handmade import main
from tests.real import ANNALOG, Unreachable
from tests.test_catalog import Entry, forget
from tests.workshop import check_same_tensors, restored

LEVELS = {"static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16"}
CHEMISTRY = ("rdkit", "partialsmiles")  # what the package imports to check its texts, and its model does not need
TEXTS = ["CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "c1ccc2c(c1)cccn2", "CC(C)Cc1ccc(cc1)C(C)C(=O)O"]


@pytest.fixture(scope="session")
def home() -> Path:
    """The unpacked wheel."""
    try:
        return real.fetched(ANNALOG)
    except Unreachable as error:
        pytest.skip(str(error))


@pytest.fixture
def package(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as if it were installed, without the chemistry that it checks its texts with."""
    monkeypatch.syspath_prepend(str(home))
    for name in CHEMISTRY:
        module: Any = ModuleType(name)
        module.Chem = None
        monkeypatch.setitem(sys.modules, name, module)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "annalog"]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def source(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint in a folder, with a config that says what it is and which tokens begin and end a text."""
    folder = tmp_path_factory.mktemp("annalog")
    shutil.copy(home / "annalog/ckpt_and_vocab/Lev_extended.pt", folder / "pytorch_model.bin")
    said = {"model_type": "annalog", "decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


@pytest.fixture(scope="session")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("out") / "annalog-lineage"
    lineage.convert(str(source), output, verify=False, hashes=True, allow_pickle=True)
    return output


def ids_of(home: Path, text: str) -> list[int]:
    """A text as the package reads it, by its own tokenizer and its own numbers."""
    numbers = pickle.loads((home / "annalog/ckpt_and_vocab/stereo_experiment_vocab_ttf.pkl").read_bytes())["stoi"]
    tokenizer = importlib.import_module("annalog.model_files.vocabulary").SMILESTokenizer()
    return [numbers["<sos>"], *(numbers[token] for token in tokenizer.tokenize(text)), numbers["<eos>"]]


def theirs(home: Path) -> Any:
    """The model as the package's own handler makes it."""
    handler = importlib.import_module("annalog").SMILESModelHandler
    files = home / "annalog/ckpt_and_vocab"
    words = str(files / "stereo_experiment_vocab_ttf.pkl")
    return handler(words, words, str(files / "Lev_extended.pt"), device="cpu")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_trained_model_passes_every_level(converted: Path) -> None:
    report = lineage.verify(converted)
    assert report.passed, "\n".join(report.lines())
    assert {level.name for level in report.levels if level.verdict == "passed"} == LEVELS
    assert report.against == "annalog 1.0.6 (Seq2Seq)"
    assert max(figure["rel"] for figure in report.level("fp64").figures) <= 1e-12
    assert {figure["probe"] for figure in report.level("fp64").figures} >= {"short", "full", "padded"}


@pytest.mark.real
@pytest.mark.usefixtures("package")
def test_checkpoint_itself_is_verified_from_its_file(source: Path) -> None:
    report = lineage.verify(source, only=["reference", "fp64"], allow_pickle=True)
    assert report.passed, "\n".join(report.lines())


@pytest.mark.real
@pytest.mark.usefixtures("package")
def test_agrees_without_our_comparison(home: Path, converted: Path) -> None:
    """As the package's handler loads and calls it: masks from padding tokens, two texts of unequal length."""
    handler, ours = theirs(home), lineage.from_pretrained(converted, dtype="fp32")
    rows = [torch.tensor(ids_of(home, text)) for text in TEXTS]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    keep = (ids != 1).long()
    assert not keep.all()
    with torch.no_grad():
        want, _ = handler.model(ids, ids[:, :-1])
        found = ours(ids, keep, decoder_input_ids=ids[:, :-1], decoder_attention_mask=keep[:, :-1]).logits
    real_tokens = keep[:, :-1].bool()
    gap = (found - want)[real_tokens].abs().max()
    assert gap <= 2e-5 * max(1.0, want[real_tokens].std().item()) * 4
    assert torch.equal(found.argmax(-1)[real_tokens], want.argmax(-1)[real_tokens])


@pytest.mark.real
@pytest.mark.usefixtures("package")
def test_mapping_undone_gives_the_file(home: Path, converted: Path) -> None:
    file = home / "annalog/ckpt_and_vocab/Lev_extended.pt"
    check_same_tensors(restored(converted), torch.load(file, weights_only=True, map_location="cpu"))


@pytest.mark.real
@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("beams", [1, 4])
def test_generates_what_the_package_generates(beams: int, home: Path, converted: Path) -> None:
    """Token for token. Its search ranks by summed log probabilities and ends with as many texts as beams: penalty 0."""
    handler, ours = theirs(home), lineage.from_pretrained(converted, dtype="fp32")
    search = importlib.import_module("annalog.model_files.multi_gen_final").beam_search_decode
    for text in TEXTS:
        ids = torch.tensor([ids_of(home, text)])
        mask = handler.model.make_src_mask(ids)
        known = {"use_masking": True, "trg_field": handler.TRG, "device": torch.device("cpu"), "max_len": 102}
        best, *_ = search(model=handler.model, src_tensor=ids, src_mask=mask, beam_width=beams, **known)
        given = {"tokens": 101, "stop": [3], "start": torch.tensor([[2]])}
        own = generate(ours, ids, **given) if beams == 1 else beam_search(ours, ids, beams=beams, penalty=0.0, **given)
        assert own[0].tolist() == best[0]
        assert own.shape[1] > 5


@pytest.mark.real
def test_command_goes_on_and_keeps_what_it_saw(converted: Path) -> None:
    outcome = main("generate", converted, "[2, 5, 5, 9, 3]", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["tokens"][-1] == 3
    model = lineage.from_pretrained(converted, dtype="fp64")
    source, ids = torch.arange(4, 20)[None], torch.randint(4, 59, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want, cache = model(source, decoder_input_ids=ids).logits, Cache(model.spec, 20)
        pieces = [model(source, decoder_input_ids=piece, cache=cache).logits for piece in ids.split([4, 1, 1, 6], 1)]
    assert (torch.cat(pieces, 1) - want).abs().max() <= 1e-11 * want.abs().max()


@pytest.mark.real
@pytest.mark.usefixtures("package")
def test_streamed_and_tiny(converted: Path, tmp_path: Path) -> None:
    outcome = main("verify", converted, "--blocks")
    assert outcome.code == 0, outcome.text
    report = lineage.verify(write_tiny("annalog", tmp_path / "tiny"), only=["replay", "fp64", "behaviour", "training"])
    assert report.passed, "\n".join(report.lines())


BUGS = {
    "decoder keys for values": (lambda m: vars(m.blocks[1].cross.body)["_modules"].update(k=m.blocks[1].cross.body.v),
                                "blocks.1.cross.body.k"),
    "another activation": (lambda m: setattr(m.blocks[0].mlp.body.act, "function", torch.nn.functional.gelu),
                           "blocks.0.mlp.body.act"),
    "unscaled tokens": (lambda m: vars(m.embed.spec).update(scale=None), "embed"),
    "heads": (lambda m: vars(m.encoder.blocks[0].attention.body.product.spec).update(scale=0.1),
              "encoder.blocks.0.attention.body.product"),
}  # fmt: skip


@pytest.mark.real
@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_named(bug: str, tmp_path: Path) -> None:
    plant, path = BUGS[bug]
    lineage.convert(str(write_tiny("annalog", tmp_path / "tiny")), tmp_path / "out", verify=False)
    model = lineage.from_pretrained(tmp_path / "out")
    plant(model)
    report = lineage.verify(model, only=["replay"])
    assert not report.passed
    assert path in {guilty["ours"] for guilty in report.guilty}


def test_a_reference_that_is_not_there_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "annalog", None)  # as if it were not installed
    source = write_tiny("annalog", tmp_path / "tiny")
    outcome = main("convert", source, "-o", tmp_path / "out")
    assert outcome.code == 2, outcome.text
    assert "annalog" in outcome.err
    assert "--verify none" in outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"tiny"}
    assert main("convert", source, "-o", tmp_path / "out", "--verify", "none").code == 0
    assert main("verify", tmp_path / "out", "--level", "static", "--level", "bytes").code == 0


@pytest.mark.parametrize(
    ("keys", "part"),
    [({"enc_heads": 7}, "heads"), ({"hid_dim": "wide"}, "hid_dim"), ({"is_encoder_decoder": False}, "is_enc")],
)
def test_a_config_that_is_not_understood(keys: dict[str, Any], part: str, tmp_path: Path) -> None:
    source = write_tiny("annalog", tmp_path / "tiny")
    said = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(said | keys))
    with pytest.raises(ArchitectureError, match=part):
        lineage.convert(str(source), tmp_path / "out", verify=False)


def test_sizes_that_are_not_the_files(tmp_path: Path) -> None:
    source = write_tiny("annalog", tmp_path / "tiny")
    (source / "config.json").write_text('{"model_type": "annalog"}')  # the package's own sizes
    with pytest.raises(TensorMismatch, match="does not fill"):
        lineage.convert(str(source), tmp_path / "out", verify=False)


REFERENCE = """
from transformers import LlamaConfig, LlamaForCausalLM

def load(said):
    return LlamaForCausalLM(LlamaConfig.from_dict(said))
"""
CONVERTER = """
from dataclasses import replace
from lineage.catalog import dialects
from lineage.rules import Reference

def built(module, said):
    return module.load(said)

OWN = Reference("Homegrown", ("head",), {"logits": "logits"}, module="homegrown", build=built)
DIALECT = replace(dialects()["llama"], model_types=("homegrown",), references=(OWN,))
"""


def test_a_users_own_package_enters_by_the_same_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialect by an entry point, its reference in a module of the user's: found, asked, and named in the report."""
    (tmp_path / "homegrown.py").write_text(REFERENCE)
    (tmp_path / "homegrown_converter.py").write_text(CONVERTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    converter = importlib.import_module("homegrown_converter")
    found = {"lineage.converters": [Entry("homegrown", converter)]}
    monkeypatch.setattr(catalog, "offered", lambda group: found.get(group, []))
    forget()
    try:
        write_tiny("homegrown", tmp_path / "tiny", tied=False)
        report = lineage.convert(str(tmp_path / "tiny"), tmp_path / "out").report
        assert report.passed, "\n".join(report.lines())
        assert report.against == "homegrown of no version (Homegrown)"
        model = lineage.from_pretrained(tmp_path / "out")
        model.blocks[1].mlp.body.act.function = torch.nn.functional.gelu
        assert "blocks.1.mlp.body.act" in {one["ours"] for one in lineage.verify(model, only=["replay"]).guilty}
    finally:
        monkeypatch.undo()
        forget()
        for name in ("homegrown", "homegrown_converter"):
            sys.modules.pop(name, None)
