"""Each rung of the ladder: callable alone, failing on what it claims, and just to a reference that is at fault."""

import time

import pytest
import torch

import lineage
from lineage.errors import ParityError, ResourceError, TensorMismatch, UsageError
from lineage.parity import reference, session
from lineage.parity.probes import tokens
from lineage.parity.verification import LEVELS
from tests.parity import bugs, wrong
from tests.parity.bugs import ATTENTION, PRODUCT


def padding_row(model):
    """A row that looking up does not train: no result shows it."""
    batch = tokens(model.spec, 2, 16, torch.Generator().manual_seed(9))
    model.embed.tokens.padding_idx = batch[0, 0].item()


BREAKS = {  # what each rung that runs the models must catch alone
    "replay": bugs.bias_lost(f"{ATTENTION}.k"),
    "fp64": bugs.nudged(f"{ATTENTION}.v.weight"),
    "fp32": bugs.bias_lost(f"{ATTENTION}.v"),
    "behaviour": bugs.turn(PRODUCT, wrong.SeesOneAhead),
    "training": padding_row,
    "bf16": bugs.bias_lost(f"{ATTENTION}.v"),
}


@pytest.fixture
def model(tiny):
    return lineage.from_pretrained(tiny("gpt2", tied=False))


def failing(report):
    return [level.name for level in report.levels if level.failed]


@pytest.mark.parametrize("name", LEVELS)
def test_a_level_alone(tiny, name):
    report = lineage.verify(tiny("bert"), only=[name])
    assert [(level.name, level.verdict) for level in report.levels] == [(name, "passed")]
    assert report.passed
    assert report.exit_code == 0


def test_every_level_in_order(tiny):
    report = lineage.verify(tiny("gpt2"))
    assert [level.name for level in report.levels] == list(LEVELS)
    assert {level.verdict for level in report.levels} == {"passed"}
    assert report.guilty == report.faults == ()
    assert report.first_divergence is None


def test_unknown_level_is_refused(tiny):
    with pytest.raises(UsageError, match="no level fp16"):
        lineage.verify(tiny("gpt2"), only=["fp16"])


@pytest.mark.parametrize("name", BREAKS)
def test_a_level_alone_catches_what_it_claims(model, name):
    BREAKS[name](model)
    report = lineage.verify(model, only=[name])
    assert failing(report) == [name]
    assert report.exit_code == ParityError.exit_code == 3


def test_what_only_training_sees(model):
    BREAKS["training"](model)
    assert failing(lineage.verify(model)) == ["training"]


def test_a_lost_component_fails_and_stops_nothing(tiny):
    for kind, path in (("gpt2", "norm"), ("bert", "head.transform")):
        model = lineage.from_pretrained(tiny(kind))
        bugs.gone(path)(model)
        report = lineage.verify(model)
        assert {"replay", "fp64", "fp32", "training"} <= set(failing(report))
        assert [node["ours"] for node in report.guilty] == [path]


def test_whole_verification_is_quick(addition):
    before = time.process_time()
    assert lineage.verify(addition).passed
    assert time.process_time() - before < 15


# Against another checkpoint, and with probes of one's own


def test_against_the_source_and_against_another(tiny):
    own, other = tiny("gpt2"), tiny("gpt2", seed=1)
    same = lineage.verify(own, against=own.with_name("gpt2 source"), only=["static"])
    assert same.level("against").verdict == "passed"
    report = lineage.verify(own, against=other.with_name("gpt2 seed=1 source"), only=["fp64"])
    assert failing(report) == ["against", "fp64"]
    with pytest.raises(TensorMismatch, match="do not have the same tensors"):
        lineage.verify(own, against=tiny("gpt2", layers=2).with_name("gpt2 layers=2 source"), only=["static"])


def test_own_prompts_and_tolerance(tiny):
    def verify(**options):
        return lineage.verify(tiny("gpt2"), only=["fp32"], **options)

    rows = verify(prompts=[[1, 2, 3], [4] * 9]).level("fp32").figures
    assert {"prompt 0": 3, "prompt 1": 9}.items() <= {row["probe"]: row["positions"] for row in rows}.items()
    assert failing(verify(rtol=1e-12)) == ["fp32"]
    assert verify(rtol=1e-2).passed


# A reference at fault, simulated


@pytest.fixture
def spoil(monkeypatch):
    """spoil(change, attention): every reference that is loaded so is changed."""
    load = reference.load

    def spoiled(change, attention):
        def changed(chosen, material, dtype, kind, *more):
            model = load(chosen, material, dtype, kind, *more)
            if attention in (None, kind):
                change(model)
            return model

        monkeypatch.setattr(reference, "load", changed)

    return spoiled


def one_number_off(model):
    with torch.no_grad():
        next(parameter for name, parameter in model.named_parameters() if "1." in name)[0] += 1e-5


def leaks(model):
    """Each token's logits know the last token."""

    def hook(module, args, output):
        output.logits = output.logits + output.logits[:, -1:]

    model.register_forward_hook(hook)


def blind_to_later(model):
    """Logits that hang on nothing but the token itself."""

    def hook(module, args, kwargs, output):
        output.logits = module.get_input_embeddings()(kwargs["input_ids"])

    model.register_forward_hook(hook, with_kwargs=True)


def test_reference_that_lost_bytes(tiny, spoil):
    spoil(one_number_off, None)
    report = lineage.verify(tiny("bert"))
    assert failing(report) == ["reference"]
    assert {"replay", "fp64", "fp32"}.isdisjoint({level.name for level in report.levels})  # nothing to compare with
    assert "not the file's numbers in memory" in report.level("reference").details[0]
    assert report.exit_code == TensorMismatch.exit_code == 9


def test_paths_that_disagree_are_reported_and_are_no_noise(tiny, spoil):
    spoil(one_number_off, "sdpa")
    honest = lineage.verify(tiny("gpt2"), only=["fp32"])
    assert honest.passed
    assert honest.faults == ()  # 1e-5 in one row is noise

    def halves(model):
        with torch.no_grad():
            next(parameter for name, parameter in model.named_parameters() if "1.attn" in name).mul_(0.5)

    spoil(halves, "sdpa")
    report = lineage.verify(tiny("gpt2"), only=["fp32"])
    assert report.passed  # we are right: eager is the reference
    assert len(report.faults) == 4
    assert all("eager and sdpa attention differ" in fault for fault in report.faults)
    model = lineage.from_pretrained(tiny("gpt2"))
    bugs.bias_lost(f"{ATTENTION}.v")(model)
    assert failing(lineage.verify(model, only=["fp32"])) == ["fp32"]


def test_reference_that_sees_ahead(tiny, spoil):
    spoil(leaks, None)
    report = lineage.verify(tiny("gpt2"), only=["behaviour"])
    assert report.faults == ("its forward is not causal",)
    assert "the reference: no token sees later ones" in " ".join(report.level("behaviour").details)


def test_encoder_that_does_not_see_ahead(tiny, spoil):
    spoil(blind_to_later, None)
    report = lineage.verify(tiny("bert"), only=["behaviour"])
    assert report.faults == ("its forward is causal",)


def test_little_memory(tiny, monkeypatch):
    parameters = sum(p.numel() for p in lineage.from_pretrained(tiny("gpt2")).parameters())
    monkeypatch.setattr(session, "available_memory", lambda: parameters * 12.0)
    report = lineage.verify(tiny("gpt2"))
    skipped = {level.name for level in report.levels if level.verdict == "skipped"}
    assert skipped == {"replay", "fp64", "behaviour", "training", "bf16"}
    assert report.passed
    monkeypatch.setattr(session, "available_memory", lambda: parameters * 4.0)
    with pytest.raises(ResourceError, match="verification needs"):
        lineage.verify(tiny("gpt2"))
