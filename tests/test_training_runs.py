"""Training: a run follows the reference's, block by block recomputed or not, in single and in mixed precision."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import lineage
from lineage.modules.losses import causal_loss
from lineage.modules.model import Model
from tests.tiny import quiet

STEPS, NEAR = 100, 1e-4
OFF = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "attention_dropout": 0.0}
SIZES = {
    "gpt2": {"vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 3, "n_head": 4},
    "llama": {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "pad_token_id": None,
    },
    "mixtral": {
        "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_local_experts": 4, "pad_token_id": None,
    },
}  # fmt: skip


def random_weights(kind: str, place: Path) -> nn.Module:
    """The reference as its own initialisation leaves it, and saved."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(11)
    with quiet():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES[kind], **OFF))
        model.save_pretrained(place)
    return model


def batches(steps: int) -> list[Tensor]:
    """Texts that count upwards by a step of their own: something can be learnt."""
    draw = torch.Generator().manual_seed(12)
    found = []
    for _ in range(steps):
        begin, by = (torch.randint(low, 61, (8, 1), generator=draw) for low in (0, 1))
        found.append((begin + by % 5 * torch.arange(16)) % 61)
    return found


def ours_loss(model: nn.Module, ids: Tensor) -> Tensor:
    return causal_loss(model(ids).logits, ids)


def theirs_loss(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids).loss


def run(model: nn.Module, loss, steps: int = STEPS, mixed: bool = False) -> list[float]:
    model.train().requires_grad_()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for ids in batches(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            value = loss(model, ids)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


@pytest.mark.parametrize("kind", SIZES)
def test_a_run_follows_the_references(kind: str, tmp_path: Path) -> None:
    theirs = random_weights(kind, tmp_path)
    ours = lineage.from_pretrained(tmp_path)
    want, found = run(theirs, theirs_loss), run(ours, ours_loss)
    assert max(abs(a - b) for a, b in zip(want, found, strict=True)) < NEAR
    assert found[-1] < 0.9 * found[0], "something was learnt"


@pytest.mark.parametrize("kind", SIZES)
def test_blocks_computed_again_change_nothing(kind: str, tmp_path: Path) -> None:
    random_weights(kind, tmp_path)
    kept: dict[bool, int] = {}
    found = {}
    for again in (False, True):
        model = lineage.from_pretrained(tmp_path)
        model.checkpointing, kept[again] = again, 0

        def count(tensor: Tensor, again: bool = again) -> Tensor:
            kept[again] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            value = ours_loss(model.train(), batches(1)[0])
        value.backward()
        found[again] = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert kept[True] < kept[False] / 2
    for name, gradient in found[False].items():
        assert torch.allclose(gradient, found[True][name], rtol=0, atol=1e-7), name


@pytest.mark.parametrize("kind", SIZES)
def test_mixed_precision_learns_as_well(kind: str, tmp_path: Path) -> None:
    random_weights(kind, tmp_path)
    models: list[Model] = [lineage.from_pretrained(tmp_path) for _ in range(2)]
    full, mixed = run(models[0], ours_loss, 25), run(models[1], ours_loss, 25, mixed=True)
    assert max(abs(a - b) for a, b in zip(full, mixed, strict=True)) < 0.05
    assert full != mixed, "nothing was rounded"
    assert all(parameter.dtype == torch.float32 for parameter in models[1].parameters())


def test_the_example_of_norm_placement_runs_and_draws(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "examples" / "norm_placement" / "train.py"
    said = []
    for name in ("a.svg", "b.svg"):
        command = [sys.executable, script, "--steps", "3", "--layers", "2", "--output", tmp_path / name]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[:2])
    assert said[0] == said[1]
    lines = ElementTree.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3]
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
