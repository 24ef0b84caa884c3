"""Every published size as transformers builds it, on the meta device: its parameters are ours, and its names fit."""

import inspect
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from lineage import catalog, config, graph
from lineage.plan import make_plan, resolve
from lineage.rules import Reference, Transpose, fill
from tests.published import JUDGED, REFERENCES, SIZES, Case, complete, parts

NAMES = [f"{case}-{reference.name}-{'+'.join(reference.parts) or 'body'}" for case, reference in REFERENCES]


def built(case: Case, reference: Reference, **changes: Any) -> nn.Module:
    """The reference's class without weights, with or without its pooler."""
    kind = getattr(transformers, reference.name)
    options = {"add_pooling_layer": "pooler" in reference.parts} if reference.name.endswith("Model") else {}
    taken = {name: value for name, value in options.items() if name in inspect.signature(kind).parameters}
    with torch.device("meta"):
        return kind(CONFIG_MAPPING[case.model_type](**said(case, {**reference.settings, **changes})), **taken)


def said(case: Case, changes: dict[str, Any]) -> dict[str, Any]:
    """The config of a case, mended where the reference would stumble."""
    whole = case.config | changes
    return whole | {key: value for entry in case.dialect.config for key, value in entry.repaired(whole).items()}


class Info:
    """A tensor of the meta device as a file's header would tell it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape = "F32", tuple(tensor.shape)


def header(model: nn.Module) -> dict[str, Info]:
    """What it would save: under the names that files have, where memory has others (experts, one by one in files)."""
    saved = revert_weight_conversion(model, model.state_dict()).items()
    return {name: Info(tensor) for name, tensor in saved if name not in (model._keys_to_ignore_on_save or ())}


APART = [size for size in SIZES if size.startswith(("t5-v1.1", "flan-t5", "mt5"))]
"""Sizes whose head is a table of its own because their files have one: the class ties whatever its config says."""


@pytest.mark.parametrize("size", APART)
def test_head_that_only_a_file_has_makes_the_size(size: str) -> None:
    kind = "mt5" if size.startswith("mt5") else "t5"
    dialect, arguments = catalog.dialects()[kind], complete(size)
    case = Case(kind, size, config.write(dialect.config, arguments), arguments)
    theirs = built(case, dialect.references[0])
    head = theirs.lm_head.weight
    file = {**header(theirs), "lm_head.weight": Info(head)}
    read = config.read(dialect.config, case.config, strict=True).arguments
    plan = make_plan(dialect, resolve(dialect, read, file, lambda one, other: False), file)
    assert plan.model == catalog.spec(size)
    trained = sum(parameter.numel() for parameter in theirs.parameters())
    assert graph.parameters(plan.model) == trained + head.numel()


def test_every_size_is_compared() -> None:
    unsaid = {"transformer", "transformer-big"}  # no public format spells its eps
    unsaid |= set(APART)
    assert {case.size for case, _ in REFERENCES} >= set(SIZES) - unsaid
    assert {case.model_type for case, _ in REFERENCES} == set(WITH_HEADS) == set(JUDGED)


@pytest.mark.parametrize(("case", "reference"), REFERENCES, ids=NAMES)
def test_reference_has_as_many_parameters_and_its_names_fit(case: Case, reference: Reference) -> None:
    theirs = built(case, reference)
    kept = [buffer for name, buffer in theirs.named_buffers() if name in theirs.state_dict()]
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    file = header(theirs)
    written = CONFIG_MAPPING[case.model_type](**case.config).to_dict()
    read = config.read(case.dialect.config, written, strict=True).arguments
    named = (reference.name,)
    resolved = resolve(case.dialect, read, file, lambda one, other: True, lambda name, value: True, named)
    plan = make_plan(case.dialect, resolved, file)
    beside = {find.argument: resolved.arguments[find.argument] for find in case.dialect.finds}  # heads and the rest
    model = case.model(**beside | parts(case.dialect, reference))
    assert sum(tensor.numel() for tensor in (*trained, *kept)) == graph.parameters(model)
    assert plan.model == model
    used = [name for step in plan.steps for name in step.sources] + [copy.name for copy in plan.copied]
    assert sorted([*used, *(drop.name for drop in plan.dropped)]) == sorted(file)
    assert all(drop.value for drop in plan.dropped), "what is dropped follows from its shape"
    modules = dict(theirs.named_modules())
    matrices = [step for step in plan.steps if len(step.target_shapes[0]) == 2]
    for step in matrices:  # a square one shows by its module alone that it is stored [in, out]
        owner, _, name = step.sources[0].rpartition(".")
        turned = name == "weight" and isinstance(modules.get(owner), Conv1D)
        assert (Transpose() in step.operations) == turned


WITH_HEADS = {case.model_type: (case, r) for case, r in reversed(REFERENCES) if "head" in r.parts}


TIEABLE = [kind for kind, (case, _) in WITH_HEADS.items() if any(copy.argument for copy in case.dialect.copies)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", TIEABLE)
def test_shared_table_is_a_copy_and_another_is_not(model_type: str, tied: bool) -> None:
    case, reference = WITH_HEADS[model_type]
    theirs = built(case, reference, tie_word_embeddings=tied)
    file, tied = header(theirs), theirs.config.tie_word_embeddings  # a class may overrule the key
    read = config.read(case.dialect.config, case.config | {"tie_word_embeddings": tied}).arguments
    plan = make_plan(case.dialect, resolve(case.dialect, read, file, lambda one, other: True), file)
    tables = {fill(copy.source, {}, plan.base) for copy in case.dialect.copies if copy.argument == "tied"}
    assert plan.model.head.tied == tied
    assert bool(tables & {copy.name for copy in plan.copied}) == tied
