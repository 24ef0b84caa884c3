"""Heads that score classes, as the classes of the BERT line spell them: what all of them share."""

from collections.abc import Callable
from typing import Any

from lineage.config import Labels
from lineage.rules import Reference, Rule, Tap

from .common import COMMON, without

CLASSES = (*without(COMMON, "id2label", "num_labels"), Labels("id2label", "classes", 2))
"""The common keys, where a head may score classes: how many is read."""
TASKS = {
    "text": "SequenceClassification",
    "choice": "MultipleChoice",
    "tokens": "TokenClassification",
    "span": "QuestionAnswering",
    "replaced": "PreTraining",
}
SPAN = ("start_logits", "end_logits")


def of(*tasks: str) -> Callable[[Any], bool]:
    """Whether a model's classifier is for one of these tasks."""
    return lambda model: model.classifier is not None and model.classifier.task in tasks


def task(family: str, name: str, tells: str, *parts: str, **decides: object) -> Reference:
    """The reference's class for a task. tells: the beginning of its head's tensors; parts: others that it needs."""
    outputs = {"scores": SPAN if name == "span" else ("logits",) if name == "replaced" else "logits"}
    given = {"task": name} | decides
    return Reference(f"{family}For{TASKS[name]}", ("classifier", *parts), outputs, "", of(name), tells, given)


def pooled(family: str) -> tuple[Reference, ...]:
    """The usual four, texts by what the pooler gives."""
    texts = (task(family, name, "classifier.", "pooler") for name in ("text", "choice"))
    return *texts, task(family, "tokens", "classifier."), task(family, "span", "qa_outputs.")


def apart(family: str) -> tuple[Reference, ...]:
    """The usual four, classes of texts by two maps of their own."""
    text = task(family, "text", "classifier.out_proj.", summary="tanh")
    choice, tokens = task(family, "choice", "classifier.weight", "pooler"), task(family, "tokens", "classifier.weight")
    return text, choice, tokens, task(family, "span", "qa_outputs.")


def plain(**modules: str) -> tuple[Rule, ...]:
    """A linear map alone: its module by the task."""
    return tuple(Rule(f"{module}.{{p}}", "classifier.{p}", where=of(name)) for name, module in modules.items())


def deep(dense: str, out: str, *tasks: str) -> tuple[tuple[Rule, ...], tuple[Tap, ...]]:
    """Two maps with an activation between them, for these tasks."""
    where, inner = of(*tasks), "classifier.transform"
    rules = (
        Rule(f"{dense}.{{p}}", f"{inner}.dense.{{p}}", where=where),
        Rule(f"{out}.{{p}}", "classifier.{p}", where=where),
    )
    taps = (
        Tap(out, "classifier", entry=dense, where=where),
        Tap(out, inner, at="input", entry=dense, where=where),
        Tap(out, f"{inner}.act", at="input", feeds=(f"{inner}.dense",), where=where),
    )
    return rules, taps
