"""Counts from specs alone: the literature's figures, each of them; and formulas, which give the numbers beside them."""

import json
import math
import re
import unicodedata
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner, Result
from lineage.cli import cli

import lineage
from lineage import components as c
from lineage import count, graph
from lineage.errors import UsageError
from lineage.modules.model import make
from lineage.render import counting
from tests.published import SIZES

LM = {"vocab": 50_000, "context": 2048, "width": 1024, "layers": 24, "heads": 16}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def classic(tied: bool) -> c.Model:
    """24 blocks of width 1024 after GPT-2, with a bias of the head."""
    model = lineage.spec("gpt2", **LM, tied=tied)
    return replace(model, head=replace(model.head, bias=True))


def modern() -> c.Model:
    """The same with RMSNorm, rotary positions, no biases and SwiGLU of 8/3 of the width; its head is tied."""
    return lineage.spec("llama", vocab=50_000, width=1024, layers=24, heads=16, mlp_width=2816, tied=True)


def block(model: c.Model) -> tuple[int, str]:
    (one,) = [share for share in count.shares(model, "layer")[0] if share.name.startswith("blocks")]
    return one.parameters // len(model.blocks) if "each" not in one.name else one.parameters, one.formula


def test_blocks() -> None:
    assert block(classic(tied=True)) == (12_596_224, "12d² + 13d")
    assert block(modern()) == (12_847_104, "4d² + 3df + 2d")


def test_language_models() -> None:
    assert graph.parameters(classic(tied=False)) == 406_858_576
    assert graph.parameters(classic(tied=True)) == 355_658_576
    assert graph.parameters(modern()) == 359_531_520


def test_shares_of_the_classic_one() -> None:
    model = classic(tied=False)
    found = {share.name: share.parameters for share in count.shares(model)[0]}
    assert found == {
        "tokens": 51_200_000,
        "positions": 2_097_152,
        "attention": 100_761_600,
        "norms": 100_352,
        "mlp": 201_449_472,
        "head": 51_250_000,
    }
    whole = graph.parameters(model)
    assert [f"{found[name] / whole:.1%}" for name in ("mlp", "attention")] == ["49.5%", "24.8%"]
    assert found["norms"] == 49 * 2 * 1024


PUBLISHED = {
    "gpt": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-encoder": 109_482_240,
    "bert-large-encoder": 335_141_888,
    "bert": 109_514_298,
    "bert-large": 335_174_458,
    "gpt3": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "smollm2-135m": 134_515_008,
    "mixtral": 46_702_792_704,
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_models(size: str) -> None:
    assert count.figures(lineage.spec(size))["parameters"] == PUBLISHED[size]


def test_models_that_are_no_size_of_ours() -> None:
    mistral = lineage.spec("llama", kv_heads=8, mlp_width=14_336)
    assert count.figures(mistral)["parameters"] == 7_241_732_096


def test_marian_with_the_tables_that_files_of_it_hold() -> None:
    """The figure counts both stacks' sinusoids as parameters, and not the logits' bias, which is a buffer there."""
    figures = count.figures(lineage.spec("opus-mt"))
    assert figures["parameters"] - 58_101 + 2 * 1024 * 512 == 74_934_784


def test_width_of_a_gated_network() -> None:
    """Two thirds of four widths, rounded up to a multiple of 256."""
    wide = {width: -(-(8 * width // 3) // 256) * 256 for width in (4096, 1024)}
    assert wide == {4096: 11_008, 1024: 2_816}
    assert lineage.spec("llama-7b").blocks[0].mlp.body.width == wide[4096]


def test_norms_of_three_and_four() -> None:
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    for kind, result in ((c.LayerNorm(eps=0.0), [-1.0, 1.0]), (c.RMSNorm(eps=0.0), [0.85, 1.13])):
        module = make(kind, 2).double()
        torch.nn.init.ones_(module.weight)
        if isinstance(kind, c.LayerNorm):
            torch.nn.init.zeros_(module.bias)
        assert [round(value, 2) for value in module(x).tolist()] == result


def test_experts_that_are_chosen() -> None:
    """Attention, two of eight experts, router, norms, head, and the whole table of embeddings."""
    figures = count.figures(lineage.spec("mixtral"))
    assert (figures["parameters"], figures["active"]) == (46_702_792_704, 12_879_925_248)
    shares = {share.name: share for share in count.shares(lineage.spec("mixtral"))[0]}
    assert shares["mlp"].active * 4 == shares["mlp"].parameters == 45_097_156_608
    assert shares["tokens"].active == shares["tokens"].parameters


def test_cache() -> None:
    size = {"heads": 32, "layers": 32, "width": 4096}
    assert count.kept(lineage.spec("llama", **size), 32_768) == 17_179_869_184
    assert count.kept(lineage.spec("llama", **size, kv_heads=8), 32_768) == 4_294_967_296
    grouped = lineage.spec("llama", **size, kv_heads=8)
    assert count.kept(grouped, 32_768, whole=True) == 17_179_869_184
    assert count.kept(grouped, 32_768, batch=3, kind="fp8") == 4_294_967_296 * 3 // 2
    assert count.kept(lineage.spec("bert"), 512) == 0
    windowed = lineage.spec("llama", window=100)
    assert count.kept(windowed, 101) == count.kept(windowed, 100) == 100 * count.kept(windowed, 1)
    every_other = lineage.spec("gemma2")
    kept = [count.kept(every_other, n) for n in (4096, 8192)]
    assert kept[1] * 2 == kept[0] * 3
    assert count.kept(lineage.spec("deepseek_v2"), 1) == 60 * (512 + 64) * 2


def test_training_compute() -> None:
    told = counting.report("it", classic(tied=False), "component", 1, 1, "fp16", 20e9)
    assert f"{told['training']['flops']:.2e}" == "4.88e+19"


def test_work_of_a_token() -> None:
    """Two operations for each weight of a matrix, the head's table too; lookups and norms are none."""
    model = classic(tied=False)
    matrices = 24 * 12 * 1024**2 + 50_000 * 1024
    assert count.flops(model) == 2 * matrices
    assert count.flops(classic(tied=True)) == 2 * matrices
    assert count.flops(model, 1000) - count.flops(model) == 24 * 4 * 1024 * 1000
    assert count.flops(lineage.spec("llama", window=64), 1000) == count.flops(lineage.spec("llama", window=64), 64)
    mixed, one = lineage.spec("mixtral"), lineage.spec("mixtral", top_k=1)
    assert count.flops(mixed) - count.flops(one) == 2 * 32 * 3 * 4096 * 14_336
    both = lineage.spec("transformer")
    cross = 2 * 4 * 512**2 * 6
    assert count.flops(both) == 2 * count.flops(both.encoder) + cross + 2 * 37_000 * 512


def test_blocks_that_run_again_are_stored_once() -> None:
    model = lineage.spec("gpt2", layers=1)
    again = replace(model, order=(0,) * 12)
    assert count.figures(again)["parameters"] == graph.parameters(model)
    assert count.kept(again, 7) == 12 * count.kept(model, 7)
    head = 2 * 50_257 * 768
    assert count.flops(again) - head == 12 * (count.flops(model) - head)


@pytest.mark.parametrize("size", SIZES)
def test_parts_make_the_whole(size: str) -> None:
    model = lineage.spec(size)
    whole = graph.parameters(model)
    figures = count.figures(model)
    assert figures["parameters"] == whole
    for by in ("component", "layer"):
        shares, letters = count.shares(model, by)
        if by == "component":
            assert sum(share.parameters for share in shares) == whole
            assert sum(share.active for share in shares) == figures["active"]
        for share in shares:
            assert value(share.formula, letters) == share.parameters, share


def value(formula: str, letters: dict[str, int]) -> int:
    """What a formula comes to."""
    total = 0
    for part in re.split(r" \+ (?![^(]*\))", formula):
        times, terms = re.fullmatch(r"(?:(\d+) × )?\(?(.*?)\)?", part).groups()
        for term in terms.split(" + "):
            factor, powers = re.fullmatch(r"([\d,]*)(.*)", term).groups()
            raised = re.findall(r"([A-Za-z]′*)([⁰¹²³⁴⁵⁶⁷⁸⁹]*)", powers)
            assert "".join(map("".join, raised)) == powers
            sizes = [letters[name] ** int(unicodedata.normalize("NFKC", power) or 1) for name, power in raised]
            total += int(times or 1) * int(factor.replace(",", "") or 1) * math.prod(sizes)
    return total


def test_every_attention_says_what_it_keeps_and_does() -> None:
    kinds = {kind for kind in c.Component.kinds.values() if "mask" in kind.__annotations__}
    assert kinds == set(count.SCORED)


def test_tables_are_what_looks_up() -> None:
    """A component without a matrix product of its own: what parity spreads as tables is counted as such."""
    tables = {kind for kind in c.Component.kinds.values() if kind.__name__ in ("Embed", "LearnedPositions", "Segments")}
    assert tables <= set(count.TABLES)


def test_params_are_told() -> None:
    told = run("params", "mixtral", "--seq", "32768", "--tokens", "1e12")
    assert told.exit_code == 0
    assert "46,702,792,704 parameters, 12,879,925,248 of them for one token (27.6%)" in told.output
    assert "32 × 3Edf" in told.output
    assert "4,294,967,296 bytes (4.3 GB; ungrouped 17.2 GB) in fp16, for 32,768 tokens" in " ".join(told.output.split())
    assert "all of it must be loaded" in " ".join(told.output.split())
    assert f"training  {6 * 12_879_925_248 * 1e12:.3g} operations (6 · N · D) for 1e+12 tokens" in told.output
    layers = run("params", "gpt2", "--by", "layer").output
    assert "blocks 0…11, each             7,087,872    5.7%   12d² + 13d" in layers
    assert "none: every token attends to all" in run("params", "bert").output


def test_params_in_json() -> None:
    data = json.loads(run("params", "gpt2", "--json", "--seq", "10", "--batch", "2", "--kv-dtype", "fp32").output)
    assert data == json.loads(
        run("params", "gpt2", "--format", "json", "--seq", "10", "--batch", "2", "--kv-dtype", "fp32").output
    )
    assert (data["schema"], data["parameters"], data["active"]) == ("lineage.params/1", 124_439_808, 124_439_808)
    assert data["kept"]["bytes"] == 12 * 2 * 768 * 4 * 10 * 2
    assert sum(part["parameters"] for part in data["parts"]) == 124_439_808
    assert data["tables"] == 38_597_376
    assert math.isclose(data["weights"]["int4"], 124_439_808 / 2)


@pytest.mark.parametrize("wrong", [["--seq", "0"], ["--kv-dtype", "fp17"], ["--tokens", "-1"], ["--by", "head"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    told = run("params", "gpt2", *wrong)
    assert told.exit_code == 2 or isinstance(told.exception, UsageError)
