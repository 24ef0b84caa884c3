"""What a verification found: a verdict for each level, as data, as text."""

import math
import re
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from lineage.errors import FileDamaged, ParityError, TensorMismatch, UsageError
from lineage.values import Value

SCHEMA = "lineage.verify/1"
LEVELS = ("static", "bytes", "reference", "replay", "fp64", "fp32", "behaviour", "training", "bf16")
WHOLE = "the whole model"  # the path of everything is empty
LIKELY = (
    ("embed.positions", "position ids, or the table's length"),
    (".act", "the activation: exact or tanh GELU? (config's name against the spec's)"),
    (".distance_", "the map of distances: is it the tokens' own?"),
    ("distances", "the vectors of distances: their norm, their buckets"),
    (".product", "the attention product: scale, mask, number of heads, window"),
    ("norm", "the norm: its kind, its eps, its place"),
    ("embed", "the embedding: positions, segments, the norm after them"),
    ("head", "the head: tied or not, its transform, its bias"),
    (".q", "the query projection: how the fused tensor is split, the bias"),
    (".k", "the key projection: how the fused tensor is split, the bias"),
    (".v", "the value projection: how the fused tensor is split, the bias"),
    (".o", "the output projection: its matrix turned, heads joined in another order, the bias"),
    (".up", "the projection: its matrix turned, the bias"),
    (".down", "the projection: its matrix turned, the bias"),
    ("attention.body", "attention: scale, mask, number of heads, how they are split and joined"),
    ("mlp.body", "the feed-forward network: which parts it has, in which order"),
    (".attention", "the residual: what is added to what"),
    (".mlp", "the residual: what is added to what"),
    (".blocks", "the block: its branches and their order"),
    (".pooler", "the pooled vector: which token, tanh"),
    (".next_sentence", "the classifier: the order of its classes, the bias"),
    (".classifier", "the classifier: the order of its classes, the bias, which vector it reads"),
)


class Level(Value):
    """One rung of the ladder. figures: numbers for the report; problems: why it failed, or what was not done."""

    name: str
    verdict: str  # "passed", "failed" or "skipped"
    summary: str
    details: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    limit: float | None = None

    @property
    def failed(self) -> bool:
        return self.verdict == "failed"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "verdict": self.verdict, "summary": self.summary, "details": list(self.details),
            "limit": self.limit, "figures": list(self.figures),
        }  # fmt: skip


def check_levels(names: Iterable[str]) -> None:
    """Raises UsageError for names that are not of LEVELS."""
    if odd := set(names) - set(LEVELS):
        raise UsageError(f"no level {', '.join(sorted(odd))}", hint=f"levels: {', '.join(LEVELS)}")


def passed(name: str, good: bool, summary: str, details: Iterable[str] = (), **more: Any) -> Level:
    """A level with its verdict."""
    return Level(name, "passed" if good else "failed", summary, tuple(details), **more)


class Report(Value):
    """A verification. subject, against: what was compared; conditions: versions, threads, device.

    guilty: components at fault by themselves; nodes: every component of one traced run; faults: the reference's own.
    damaged: the files are not what they were, so that nothing else was asked.
    """

    subject: str
    against: str
    levels: tuple[Level, ...]
    conditions: dict[str, Any] = field(default_factory=dict)
    guilty: tuple[dict[str, Any], ...] = ()
    first_divergence: dict[str, Any] | None = None
    nodes: tuple[dict[str, Any], ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    damaged: bool = False

    @property
    def passed(self) -> bool:
        """Whether no level failed and at least one passed."""
        return not any(level.failed for level in self.levels) and any(
            level.verdict == "passed" for level in self.levels
        )

    @property
    def rel(self) -> float | None:
        """The largest relative difference of an fp32 result."""
        found = [f["rel"] for level in self.levels if level.name == "fp32" for f in level.figures]
        return max(found, default=None)

    @property
    def exit_code(self) -> int:
        """0 if it passed; 7 if the files are damaged; 9 if the reference did not load truly; else 3."""
        if self.damaged:
            return FileDamaged.exit_code
        untrue = any(level.failed and level.name == "reference" for level in self.levels)
        return 0 if self.passed else TensorMismatch.exit_code if untrue else ParityError.exit_code

    def level(self, name: str) -> Level:
        """A level by name. Raises KeyError if it was not run."""
        for level in self.levels:
            if level.name == name:
                return level
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        found = {
            "schema": SCHEMA,
            "result": "passed" if self.passed else "failed",
            "subject": self.subject,
            "against": self.against,
            "rel": self.rel,
            "levels": [level.to_dict() for level in self.levels],
            "first_divergence": self.first_divergence,
            "guilty": list(self.guilty),
            "likely": likely(self.guilty),
            "nodes": list(self.nodes),
            "reference_faults": list(self.faults),
            "conditions": self.conditions,
            "notes": list(self.notes),
        }
        return {name: spelt(value) for name, value in found.items()}

    def raise_for_status(self) -> None:
        """Raise ParityError, naming the component, unless the verification passed."""
        if not self.passed:
            names = ", ".join(node["ours"] or WHOLE for node in self.guilty[:5])
            failed = ", ".join(level.name for level in self.levels if level.failed) or "nothing was compared"
            raise ParityError(
                f"{self.subject} differs from {self.against} ({failed})" + (f": {names}" if names else ""),
                facts=self.lines(),
                context=self.to_dict(),
            )

    def lines(self) -> list[str]:
        """The report as text, a line an item."""
        lines = []
        long = max([9, *(len(level.name) for level in self.levels)])
        wide = max([72 - long, *(len(level.summary) for level in self.levels)])
        for level in self.levels:
            told = "ok" if level.verdict == "passed" else level.verdict.upper()
            lines.append(f"{level.name:{long}} {level.summary:{wide}} {told}")
            lines += [f"          {detail}" for detail in level.details]
        if node := self.first_divergence:
            lines.append(f"first     {node['ours'] or WHOLE} differs by {node['inherited']:.1e}   ({node['theirs']})")
        for nodes in folded(self.guilty)[:8]:
            worst = max(node["local"] for node in nodes)
            name, other = nodes[0]["ours"] or WHOLE, nodes[0]["theirs"] or WHOLE
            more = f", and {len(nodes) - 1} more like it" if len(nodes) > 1 else ""
            lines.append(f"guilty    {name}{more}   off by {worst:.1e} on the reference's own input   ({other})")
        if cause := likely(self.guilty):
            lines.append(f"likely    {cause}")
        lines += [f"fault     of the reference: {fault}" for fault in self.faults]
        return lines + [f"note      {note}" for note in self.notes]


def spelt(value: Any) -> Any:
    """A value as JSON can hold it: numbers that are not finite become the words Infinity, -Infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: spelt(part) for name, part in value.items()}
    return [spelt(part) for part in value] if isinstance(value, list | tuple) else value


def folded(nodes: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Components of the same place in different layers, together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        groups.setdefault(re.sub(r"\b\d+\b", "N", node["ours"]), []).append(node)
    return list(groups.values())


def likely(guilty: Iterable[dict[str, Any]]) -> str | None:
    """What to look at, from the place of the first component at fault."""
    for node in guilty:
        if not node["ours"]:
            return "how the components are joined: each by itself is right"
        for part, cause in LIKELY:
            if part in "." + node["ours"]:
                return cause
    return None
