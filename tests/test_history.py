"""The story as the page tells it: its figures that `test_count` has not, its order, and the errors that it corrects."""

import json
import math
from itertools import pairwise

import pytest
import torch
from click.testing import CliRunner
from lineage.cli import cli

import lineage
from lineage import catalog, graph, lines
from lineage import components as c
from lineage.design import compare
from lineage.modules.losses import masked_loss
from lineage.modules.model import build
from lineage.modules.rotary import table, turn

SWITCHES = ["norm placement", "norm", "positions", "mlp", "heads", "biases"]
"""Of the block, 2017 to today."""


def told(*arguments: str) -> str:
    """What a command prints, on one line."""
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_masked_models_learn_from_few_tokens() -> None:
    assert "learns from 1 token in 6.7" in told("params", "bert", "--tokens", "1e9")
    for name in ("gpt2", "t5"):
        assert "learns from" not in told("params", name, "--tokens", "1e9")
    labels = torch.full((1, 100), -100)
    labels[0, :15] = 3
    logits = torch.randn(1, 100, 7, requires_grad=True)
    masked_loss(logits, labels).backward()
    taught = (logits.grad.abs().sum(-1) > 0).sum().item()
    assert f"{100 / taught:.1f}" == "6.7"


def test_first_block_to_todays_is_six_switches_in_their_order() -> None:
    steps = lines.path(lineage.diff("transformer", "llama-3-8b"))
    aspects = [step.change.partition(":")[0] for step in steps[1:]]
    assert [aspect for aspect in aspects if aspect in SWITCHES] == SWITCHES
    assert set(aspects) - set(SWITCHES) == {"encoder", "sizes", "embedding scale", "final norm", "head"}
    assert aspects[0] == "encoder"
    for one, other in pairwise(steps):
        rows = [row.aspect for row in compare(one.model, other.model).design]
        assert rows in ([], [other.change.partition(":")[0]])
        held = sum(parameter.numel() for parameter in build(other.model).parameters())
        assert held == graph.parameters(other.model)


def test_every_step_of_that_way_runs() -> None:
    families = catalog.families()
    first, last = (families[name].function(**families[name].tiny) for name in ("transformer", "llama"))
    steps = lines.path(compare(first, last))
    assert len(steps) > len(SWITCHES)
    ids = torch.randint(5, 60, (2, 9))
    for step in steps:
        model = build(step.model, "cpu")
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        result = model(ids, decoder_input_ids=ids) if step.model.encoder else model(ids)
        assert torch.isfinite(result.logits).all(), step.change


def test_cache_of_thirty_two_heads_is_no_4_2_gb() -> None:
    assert "4.3 GB; ungrouped 17.2 GB" in told("params", "mixtral", "--seq", "32768")
    whole = told("params", "llama-7b", "--seq", "32768")
    assert "17,179,869,184 bytes (17.2 GB) in fp16" in whole


def test_every_expert_is_loaded() -> None:
    said = told("params", "mixtral")
    assert "12,879,925,248 of them for one token (27.6%)" in said
    assert "fp16 93.4 GB" in said
    assert "all of it must be loaded" in said


def test_gpt3_fits_on_five_cards() -> None:
    weights = json.loads(CliRunner().invoke(cli, ["params", "gpt3", "--json"]).output)["weights"]["fp16"]
    assert f"{weights / 1e9:.0f} GB" == "349 GB"
    assert math.ceil(weights / 80e9) == 5
    assert "fp16 349.2 GB" in told("params", "gpt3")


def test_rotary_pairings_are_two_and_half_a_table_turns_no_whole_head() -> None:
    x = torch.randn(1, 2, 5, 8)
    results = []
    for pairing in ("halves", "neighbours"):
        spec = c.Rotary(theta=1e4, width=8, pairing=pairing)
        cos, sin = table(spec, torch.arange(5)[None], torch.float32, 5)
        assert cos.shape == (1, 5, 4)
        results.append(turn(x, (cos, sin), spec))
        with pytest.raises(RuntimeError):
            _ = x * cos[:, None]  # as the snippets have it
    assert not torch.allclose(*results)
    assert torch.allclose(*(one.norm(dim=-1) for one in results))


def test_popular_checkpoints_are_of_the_families_that_the_page_names() -> None:
    carried = {
        "transformer": {"fsmt", "marian"},
        "gpt": {"openai-gpt"},
        "bert": {"bert", "roberta", "distilbert"},
        "gpt2": {"gpt2"},
        "mixtral": {"mixtral"},
    }
    for family, types in carried.items():
        assert types <= {kind for kind, dialect in catalog.dialects().items() if dialect.spec == family}
    years = [catalog.families()[name].year for name in ("transformer", "gpt", "bert", "gpt2", "llama", "mixtral")]
    assert years == sorted(years)
    assert years[:4] == [2017, 2018, 2018, 2019]
