"""What a specialist would say of two architectures: the rows of a diff, and how they are printed.

Another golden pair is one more line in PAIRS and `pytest --update-golden`; its text is read in review.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
from click.testing import CliRunner, Result
from lineage.cli import cli

import lineage
from lineage import catalog
from lineage import components as c
from lineage.aspects import aspects
from lineage.design import aspect, compare
from lineage.render import comparison
from lineage.words import facts, layers_text, words
from tests.published import SIZES

Golden = Callable[[str, str], None]
PAIRS = [
    ("transformer", "gpt"), ("transformer", "bert"), ("gpt", "gpt2"), ("gpt2", "bert"), ("gpt2", "llama-3-8b"),
    ("gpt2", "llama-7b"), ("llama", "mixtral"), ("mistral", "llama"), ("bert", "distilbert"), ("llama", "qwen3"),
    ("gemma", "gemma2"), ("llama", "gemma"), ("gpt2", "gpt_neox"), ("qwen3", "qwen3_moe"), ("gpt2", "gpt2-xl"),
    ("llama", "deepseek_v2"), ("gemma2", "gemma3"), ("transformer", "gpt2"), ("bert", "modernbert"),
    ("llama", "deepseek_v3"), ("t5", "mt5"), ("transformer", "t5"), ("llama", "llama4"), ("mixtral", "gpt_oss"),
    ("transformer", "llama"), ("bert", "deberta-v3-base"), ("bert", "electra-base"),
]  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize(("before", "after"), PAIRS, ids="-".join)
def test_diff_is_as_reviewed(before: str, after: str, golden: Golden) -> None:
    printed = run("diff", before, after)
    assert printed.exit_code == 0
    assert [line for line in printed.output.splitlines() if len(line) > 80] == []
    golden(f"diff/{before}--{after}.txt", printed.output)


def told(before: str, after: str) -> dict[str, tuple[str, str, str]]:
    return {row.aspect: (row.state, row.before, row.after) for row in lineage.diff(before, after).design}


SIX = {
    "norm": ("changed", "LayerNorm, eps 1e-05", "RMSNorm, eps 1e-05"),
    "positions": ("changed", "learned, 1,024", "rotary, θ 500,000"),
    "mlp": ("changed", "GELU (tanh)", "SwiGLU"),
    "heads": ("changed", "multi-head, 12", "grouped, 32 queries on 8 keys"),
    "biases": ("removed", "everywhere", "none"),
    "head": ("changed", "tied to the tokens", "untied"),
}


HISTORY = {  # what the literature tells of each step from 2017, in its order
    "bert": (("encoder", "encoder alone"), ("mask", "bidirectional"), ("segments", "2 segments"),
             ("positions", "learned, 512"), ("mlp", "GELU"), ("head", "tied to the tokens, bias, dense GELU")),
    "gpt2": (("encoder", "decoder alone"), ("norm placement", "before each branch"), ("final norm", "yes"),
             ("positions", "learned, 1,024"), ("mlp", "GELU (tanh)")),
    "llama": (("encoder", "decoder alone"), ("norm placement", "before each branch"), ("final norm", "yes"),
              ("norm", "RMSNorm, eps 1e-06"), ("positions", "rotary, θ 10,000"), ("mlp", "SwiGLU"),
              ("biases", "none"), ("head", "untied")),
}  # fmt: skip
BESIDE = {  # what it tells of 2017 (tokens × √width) and of code alone
    "bert": {"embedding scale", "embedding norm", "padding token", "norm"}, "gpt2": {"embedding scale", "norm"},
    "llama": {"embedding scale"},
}  # fmt: skip


@pytest.mark.parametrize("after", HISTORY)
def test_what_changed_since_2017_is_what_the_literature_tells_in_its_order(after: str) -> None:
    rows = [(row.aspect, row.after) for row in lineage.diff("transformer", after).design if row.state != "same"]
    assert [row for row in rows if row[0] not in BESIDE[after]] == list(HISTORY[after])
    assert {aspect for aspect, _ in rows} - {aspect for aspect, _ in HISTORY[after]} == BESIDE[after]


def test_six_changes_made_today_of_yesterday() -> None:
    assert told("gpt2", "llama-3-8b") == SIX
    assert set(told("gpt2", "llama-7b")) == set(SIX) - {"heads"}


def test_norm_placement_is_one_moved_row() -> None:
    assert told("gpt", "gpt2") == {
        "norm placement": ("moved", "after each sum", "before each branch"),
        "final norm": ("added", "none", "yes"),
    }
    assert told("gpt2", "bert")["norm placement"] == ("moved", "before each branch", "after each sum")


def test_mixture_and_window_are_one_row_each() -> None:
    assert told("llama", "mixtral")["mlp"] == ("changed", "SwiGLU", "8 experts, 2 a token, SwiGLU")
    assert told("mistral", "llama")["mask"] == ("changed", "causal, window 4,096", "causal")
    assert set(told("mistral", "llama")) == {"mask", "heads"}


def test_half_of_the_first_transformer_stands_alone() -> None:
    assert told("transformer", "gpt")["encoder"][2] == "decoder alone"
    assert told("transformer", "bert")["encoder"][2] == "encoder alone"
    assert told("gpt", "transformer")["encoder"][:2] == ("added", "decoder alone")


SIZED = [
    ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"),
    ("bert", "bert-large"),
    ("bert-encoder", "bert-large-encoder"),
    ("llama-7b", "llama-13b"),
    ("gemma2", "gemma2-9b"),
    ("pythia-70m", "pythia-1.4b"),
    ("mixtral", "mixtral-8x22b"),
    ("t5-small", "t5", "t5-large"),
    ("opt", "opt-1.3b", "opt-66b"),
    ("albert-base", "albert-xxlarge"),
    ("bloom-560m", "bloom"),
]


@pytest.mark.parametrize("sizes", SIZED, ids="-".join)
def test_sizes_of_a_family_differ_in_no_design(sizes: tuple[str, ...]) -> None:
    for one, other in combinations(sizes, 2):
        diff = lineage.diff(one, other)
        assert [row.aspect for row in diff.design] == []
        assert diff.sizes


DEEPER = [
    name
    for name, family in sorted(catalog.families().items())
    if not any(isinstance(value, tuple) for value in family.tiny.values())  # a pattern that is told layer by layer
]


@pytest.mark.parametrize("name", DEEPER)
def test_deeper_model_is_the_same_design(name: str) -> None:
    """But for aspects that hang on the layer's place, as windows and experts do."""
    family = catalog.families()[name]
    deeper = family.function(**{**family.tiny, "layers": 2 * family.tiny.get("layers", 3)})
    found = {row.aspect for row in compare(family.function(**family.tiny), deeper).design}
    assert found <= {"mask", "mlp", "positions", "norm placement"}


@pytest.mark.parametrize("size", SIZES)
def test_every_choice_is_told_once(size: str) -> None:
    """Each decided edit in one row, no row without one, and none that says the same of both sides."""
    for other in ("gpt2", "bert", "mixtral"):
        diff = compare(lineage.spec(other), lineage.spec(size))
        decided = [edit for edit in diff.script if edit.decided]
        told = [edit for row in diff.design for edit in row.edits if edit.decided]
        assert sorted(map(repr, decided)) == sorted(map(repr, told))
        assert all(any(edit.decided for edit in row.edits) and row.before != row.after for row in diff.design)
        assert {aspect(edit) for edit in decided} == {row.aspect for row in diff.design}
        assert not {row.aspect for row in diff.same} & {row.aspect for row in diff.design}
        assert diff.apply(diff.before) == diff.after


def test_aspects_are_words_for_all_that_there_is() -> None:
    found = aspects(lineage.spec("gemma2"))
    assert found["mask"] == "causal, window 4,096 in layers 0, 2, 4 …; causal in layers 1, 3, 5 …"
    assert found["embedding scale"] == "√width"
    assert found["head"] == "tied to the tokens, softcap 30"
    assert aspects(lineage.spec("qwen3"))["query and key norms"] == "yes"
    assert aspects(lineage.spec("pythia-70m"))["positions"] == "rotary, θ 10,000, 1/4 of each head"
    assert aspects(lineage.spec("llama", bias=True, output_bias=False))["biases"] == "q, k, v"
    both = aspects(lineage.spec("transformer"))
    assert both["mask"] == "encoder: bidirectional; decoder: causal"
    assert "(structure)" not in {name for size in SIZES for name in aspects(lineage.spec(size))}


def test_what_words_leave_out_is_told_by_its_fields() -> None:
    model = lineage.spec("llama")
    turned = replace(model.blocks[0].attention.body.rotary, rounded="result")
    body = replace(model.blocks[0].attention.body, rotary=turned)
    block = replace(model.blocks[0], attention=replace(model.blocks[0].attention, body=body))
    (row,) = compare(model, replace(model, blocks=(block,) * 32)).design
    assert (row.aspect, row.before, row.after) == ("positions", "rotary rounded table", "rotary rounded result")


@pytest.mark.parametrize(
    ("found", "count", "text"),
    [
        ([3], 9, "layer 3"),
        ([0, 1, 2], 9, "layers 0…2"),
        ([0, 2, 4, 6, 8], 9, "layers 0, 2, 4 …"),
        ([1, 3, 5], 9, "layers 1, 3, 5"),
        ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], 12, "all but layers 5, 11"),
        ([0, 1, 3, 4, 6, 7, 8, 9], 10, "all but layers 2, 5"),
        ([0, 3, 4, 7, 9, 12, 15], 40, "layers 0, 3, 4, 7, 9, 12 and 1 more"),
    ],
)
def test_layers_are_told_in_few_words(found: list[int], count: int, text: str) -> None:
    assert layers_text(found, count) == text


class FrobNorm(c.Component):
    """A component of another package."""

    rank: int = c.size()
    mixed: bool = c.choice(default=False)


def test_component_from_elsewhere_has_words_too() -> None:
    assert words(FrobNorm(rank=3, mixed=True)) == "FrobNorm, rank 3, mixed"
    assert facts(FrobNorm(rank=3), "rank") == []


def test_formats_say_the_same() -> None:
    diff = lineage.diff("gpt2", "llama-3-8b")
    data = json.loads(run("diff", "gpt2", "llama-3-8b", "--format", "json").output)
    assert data == json.loads(run("diff", "gpt2", "llama-3-8b", "--json").output)
    assert (data["schema"], data["names"], data["identical"]) == ("lineage.diff/1", ["gpt2", "llama-3-8b"], False)
    assert {row["aspect"]: (row["state"], row["before"], row["after"]) for row in data["design"]} == SIX
    assert data["figures"]["parameters"] == [124_439_808, 8_030_261_248]
    assert data["sizes"]["layers"] == [12, 32]
    markdown = run("diff", "gpt2", "llama-3-8b", "--format", "md").output
    chart = run("diff", "gpt2", "llama-3-8b", "--format", "mermaid").output
    for row in diff.design:
        assert f"| {comparison.SIGNS[row.state]} | {row.aspect} | {row.before} | {row.after} |" in markdown
        assert f'"{comparison.SIGNS[row.state]} {row.aspect}"' in chart
    assert diff._repr_mimebundle_()["text/markdown"] + "\n" == markdown


def test_hostile_names_stay_names() -> None:
    model = lineage.spec("gpt2")
    diff = compare(model, replace(model, norm=None), ("a|b", '<script>"\n'))
    told = "\n".join(comparison.markdown(diff))
    assert "a\\|b" in told
    assert "<script>" not in told + "\n".join(comparison.mermaid(diff))
    assert {line.count(" | ") for line in comparison.markdown(diff) if line.startswith(("| −", "| =", "|  |"))} == {3}


def test_only_what_is_asked_for_is_told() -> None:
    design = run("diff", "gpt2", "llama", "--only", "design").output
    sizes = run("diff", "gpt2", "llama", "--only", "sizes").output
    assert "≠ norm" in design
    assert "sizes  " not in design
    assert "mlp width 3,072 → 11,008" in " ".join(sizes.split())
    assert "≠" not in sizes
    assert "parameters" not in design + sizes


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["gpt2", "gpt2"], 0),
        (["gpt2", "distilgpt2"], 3),
        (["gpt2", "distilgpt2", "--only", "design"], 0),
        (["gpt2", "distilgpt2", "--only", "sizes"], 3),
        (["gpt2", "gpt", "--only", "design", "--json"], 3),
    ],
)
def test_exit_code_says_whether_they_differ(arguments: list[str], code: int) -> None:
    assert run("diff", *arguments).exit_code == 0
    assert run("diff", *arguments, "--exit-code").exit_code == code


def test_diff_takes_models_and_names() -> None:
    diff = lineage.diff(lineage.spec("gpt2"), "gpt")
    assert diff.names == ("before", "gpt")
    assert diff.after == lineage.spec("gpt")
    same = lineage.diff("gpt2", "gpt2")
    assert (same.script, same.design, same.sizes) == ((), (), {})
    assert comparison.table(same)[0].endswith("0 design changes, 0 sizes, 10 the same")
