"""More files than may be open, tensors of more than their file, and what is kept of an index."""

import json
import resource
from pathlib import Path

import pytest

from tests import handmade
from tests.handmade import main, shard, tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return handmade.write(tmp_path / "source")


def test_a_tensor_of_more_than_its_file(source: Path, tmp_path: Path) -> None:
    """Of one number, repeated without end: what a pickle can say in a hundred bytes."""
    import torch

    (source / "model.safetensors").unlink()
    vocab = 2**31 - 1
    given = {name: torch.from_numpy(array) for name, array in handmade.tensors().items()}
    given["wte.weight"] = torch.zeros(1).expand(vocab, 8)
    torch.save(given, source / "pytorch_model.bin")
    (source / "config.json").write_text(json.dumps(handmade.config(vocab=vocab)))
    before = tree(tmp_path)
    outcome = main("convert", source, "-o", tmp_path / "out", "--verify", "none", "--allow-pickle")
    assert outcome.code == 7, outcome.text
    assert "wte.weight" in outcome.err
    assert "pytorch_model.bin" in outcome.err
    assert tree(tmp_path) == before


def test_more_files_than_may_be_open(source: Path, tmp_path: Path) -> None:
    shard(source, len(handmade.tensors()))
    most = 20
    process = handmade.start(
        "convert", source, "-o", tmp_path / "out", "--verify", "none",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
    )  # fmt: skip
    outcome = handmade.finish(process)
    assert outcome.code == 0, outcome.text
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > most


def test_an_index_that_is_kept_is_nobodys_index(source: Path, tmp_path: Path) -> None:
    shard(source)
    assert main("convert", source, "-o", tmp_path / "out", "--verify", "none").code == 0
    assert [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.index.json")] == [
        "model.safetensors.index.json"
    ]
    assert main("export", tmp_path / "out", "--to", "hf", "-o", tmp_path / "back").code == 0
    assert tree(tmp_path / "back") == tree(source)
