"""Mixtures of experts given equal routes: a near tie is listed and fails nothing; another rule or weight does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lineage
from lineage.modules.attention import Product
from lineage.modules.experts import Experts, Router
from lineage.parity import blocks, session
from lineage.parity.blocks import verify_blocks
from lineage.parity.probes import Probe
from lineage.parity.routes import Route, elsewhere, flips, routed
from lineage.parity.tiny import write_tiny
from tests.parity import bugs

OPEN = Router._open
KINDS = ["mixtral", "qwen3_moe"]


def flipped(report, name):
    return [line for line in report.level(name).details if "elsewhere" in line]


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """tied(kind, apart): a converted model, of whose experts two have router rows that are so far apart, relatively."""
    root = tmp_path_factory.mktemp("tied")

    def made(kind: str, apart: float) -> Path:
        name = f"{kind} {apart}"
        if not (root / name).exists():
            file = write_tiny(kind, root / f"{name} source") / "model.safetensors"
            tensors = load_file(file)
            for weight in (w for n, w in tensors.items() if n.endswith("gate.weight") and w.dim() == 2):
                if len(weight) == 4:  # experts: a router, and not an expert's own gate
                    weight[2] = weight[1] * (1 + apart)
            save_file(tensors, file, metadata={"format": "pt"})
            lineage.convert(str(file.parent), root / name, verify=False)
        return root / name

    return made


class InDouble(Product):
    """The right product, rounded once at its end."""

    def forward(self, q_BTx, k_BSx, v_BSx, context, *more):
        return super().forward(q_BTx.double(), k_BSx.double(), v_BSx.double(), context, *more).to(q_BTx.dtype)


def rounded_otherwise(directory):
    """The right model, whose attention is rounded otherwise than the reference's."""
    model = lineage.from_pretrained(directory)
    for block in model.blocks:
        block.attention.body.product.__class__ = InDouble
    return model


# Honest


@pytest.mark.parametrize("kind", KINDS)
def test_routers_are_judged_first(tiny, kind):
    report = lineage.verify(tiny(kind), only=["fp64", "fp32", "bf16"])
    assert report.passed
    for level in report.levels:
        outputs = [row["output"] for row in level.figures]
        assert outputs == ["routers", "logits"] * 4
        assert not flipped(report, level.name)
    assert report.level("fp32").details[0].startswith("short    routers")
    dense = lineage.verify(tiny("llama"), only=["fp32"])
    assert {row["output"] for row in dense.level("fp32").figures} == {"logits"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "apart"), [("fp32", 1e-7), ("bf16", 1e-2)])
def test_a_near_tie_is_listed_and_fails_nothing(tied, kind, name, apart, monkeypatch):
    model = rounded_otherwise(tied(kind, apart))
    report = lineage.verify(model, only=[name])
    assert report.passed, report.lines()
    lines = flipped(report, name)
    assert lines
    for line in lines:
        margin, noise = (float(line.split(f"{word} ")[1].split(",")[0]) for word in ("margin", "noise"))
        assert 0 <= margin <= 2 * noise
    if name == "fp32":  # left to their own ways, both are right and far apart
        monkeypatch.setattr(session, "routed", lambda routers, given: routed(routers, None))
        apart_by = lineage.verify(model, only=[name]).level(name).figures
        assert max(row["max_abs"] for row in apart_by) > 1e3 * max(row["max_abs"] for row in report.level(name).figures)


def test_blocks_take_equal_routes_too(tied, monkeypatch):
    directory = tied("mixtral", 1e-7)
    report = verify_blocks(directory)
    assert report.passed, report.lines()
    assert flipped(report, "replay")
    monkeypatch.setattr(Router, "_open", SecondBest._open)
    report = verify_blocks(directory)
    assert report.level("replay").failed
    assert all(line.endswith("by another rule") for line in flipped(report, "replay"))
    monkeypatch.undo()
    monkeypatch.setattr(blocks, "routed", lambda routers, given: routed(routers, None))
    assert verify_blocks(directory).level("replay").failed


# Planted


class WeightsTurned(Router):
    """The weights in another order than their experts."""

    def forward(self, x_ND):
        logits_NE, weights_NK, chosen_NK = super().forward(x_ND)
        return logits_NE, weights_NK.flip(-1), chosen_NK


class SecondBest(Router):
    """The best left out, as if a mask had been one off."""

    def _open(self, scores_NE):
        open_NE = OPEN(self, scores_NE)
        return open_NE.scatter(-1, open_NE.argmax(-1, keepdim=True), -torch.inf)


def permuted(mlp):
    return bugs.both(*(bugs.altered(f"{mlp}.{x}", lambda w: w.roll(1, 0)) for x in ("gate", "up", "down")))


PLANTED = {  # each of a mixture's path; all but the first, which bf16 is too coarse for, are seen in either precision
    "router's weight nudged": lambda mlp: bugs.nudged(f"{mlp}.router.weight"),
    "router's weight far off": lambda mlp: bugs.altered(f"{mlp}.router.weight", lambda w: w * 1.5),
    "rows of the router permuted": lambda mlp: bugs.altered(f"{mlp}.router.weight", lambda w: w.roll(1, 0)),
    "weights in another order": lambda mlp: bugs.turn(f"{mlp}.router", WeightsTurned),
    "chosen by another rule": lambda mlp: bugs.turn(f"{mlp}.router", SecondBest),
    "one expert fewer": lambda mlp: bugs.respec(f"{mlp}.router", top_k=lambda k: k - 1),
    "normalised or not": lambda mlp: bugs.respec(f"{mlp}.router", normalise=lambda n: "none" if n == "sum" else "sum"),
    "experts permuted": permuted,
}


def mixtures(model):
    return [path for path, module in model.named_modules() if isinstance(module, Experts)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_is_caught_by_each_low_precision_alone(tiny, kind, bug):
    model = lineage.from_pretrained(tiny(kind))
    PLANTED[bug](mixtures(model)[0])(model)
    names = ("fp32", "bf16")[: 1 if bug == "router's weight nudged" else 2]
    report = lineage.verify(model, only=names)
    assert [level.name for level in report.levels if level.failed] == list(names), report.lines()


def test_numbers_that_are_none_fail_and_break_nothing(tiny):
    model = lineage.from_pretrained(tiny("deepseek_v3"))
    bugs.altered(f"{mixtures(model)[0]}.router.weight", lambda w: w / 0)(model)
    report = lineage.verify(model, only=["fp32", "bf16"])
    assert all(level.failed for level in report.levels)


@pytest.mark.parametrize("kind", KINDS)
def test_another_rule_is_told_from_rounding(tiny, kind):
    """On equal logits: the routers' line passes, the flips say why the level does not."""
    model = lineage.from_pretrained(tiny(kind))
    path = f"{mixtures(model)[-1]}.router"
    bugs.turn(path, SecondBest)(model)
    level = lineage.verify(model, only=["fp32"]).level("fp32")
    assert level.failed
    assert all(row["passed"] for row in level.figures)  # the reference's ways were taken: everything else is right
    lines = [line for line in level.details if "elsewhere" in line]
    assert all(line.endswith("by another rule") and f" {path} " in line for line in lines)
    assert any(line.startswith("… and") for line in level.details)


def test_a_lost_correction_is_another_rule(tiny):
    model = lineage.from_pretrained(tiny("deepseek_v3"))
    model.get_submodule(mixtures(model)[0]).router.correction.data.zero_()
    level = lineage.verify(model, only=["fp32"]).level("fp32")
    assert level.failed
    assert "by another rule" in " ".join(level.details)


# By numbers


def route(*rows, top_k=2):
    logits = torch.tensor(rows)
    weights, chosen = logits.topk(top_k)
    return Route(logits, weights, chosen)


def test_margin_and_noise_by_hand():
    ours = route([3.0, 2.0, 1.9, 0.0], [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    theirs = route([3.0, 1.9, 2.1, 0.0], [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0])
    probe = Probe("one", torch.zeros(1, 3, dtype=torch.long))
    plain = torch.nn.Identity()
    (flip,) = flips({"r": plain}, {"one": {"r": ours}}, {"one": {"r": theirs}}, [probe])
    assert (flip.place, flip.wrong) == ((0, 0), False)
    assert flip.margin == pytest.approx(0.1, rel=1e-5)
    assert flip.noise == pytest.approx(0.2, rel=1e-5)
    unlike = replace(theirs, chosen=torch.tensor([[3, 0], [3, 2], [0, 1]]))  # what its own scores do not say
    (flip,) = flips({"r": plain}, {"one": {"r": ours}}, {"one": {"r": unlike}}, [probe])
    assert flip.wrong
    padded = replace(probe, keep_BT=torch.tensor([[False, True, True]]))
    assert flips({"r": plain}, {"one": {"r": ours}}, {"one": {"r": unlike}}, [padded]) == []


def test_order_is_no_flip_and_numbers_of_experts_are():
    one = route([3.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    turned = Route(one.logits, one.weights.flip(-1), one.chosen.flip(-1))
    assert not elsewhere(one, turned).any()
    assert elsewhere(one, route([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], top_k=1)).all()
    assert not elsewhere(one, Route(one.logits)).any()  # it does not tell


def test_only_what_goes_elsewhere_is_sent(tiny):
    model = lineage.from_pretrained(tiny("mixtral"))
    router = model.blocks[1].mlp.body.router
    x_ND = torch.randn(5, model.spec.embed.width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = Route(*router(x_ND))
        given = Route(own.logits, own.weights + 1, own.chosen.clone())
        given.chosen[2, 1] = next(e for e in range(4) if e not in own.chosen[2])
        with routed({"r": router}, {"r": given}) as seen:
            _, weights, chosen = router(x_ND)
    assert torch.equal(seen["r"].chosen, own.chosen)
    assert torch.equal(chosen[2], given.chosen[2])
    assert torch.equal(weights[2], given.weights[2])
    others = [0, 1, 3, 4]
    assert torch.equal(weights[others], own.weights[others])
    assert torch.equal(chosen[others], own.chosen[others])
