"""How configs spell rotary positions: today's `rope_parameters`, and the older `rope_theta` beside `rope_scaling`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineage.components import Banded, Component, Dynamic, Linear, Scaling, Yarn
from lineage.keys import Entry, brief

LENGTH = "original_max_position_embeddings"
# name in a config -> the component, its fields by their spelling, those that may be missing
FORMS: Mapping[str, tuple[type[Component], Mapping[str, str], tuple[str, ...]]] = {
    "linear": (Linear, {"factor": "factor"}, ()),
    "dynamic": (Dynamic, {"factor": "factor", "max_position_embeddings": "length"}, ("max_position_embeddings",)),
    "llama3": (
        Banded,
        {"factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high", LENGTH: "length"},
        (),
    ),
    "yarn": (
        Yarn,
        {
            "factor": "factor",
            LENGTH: "length",
            "beta_fast": "fast",
            "beta_slow": "slow",
            "attention_factor": "attention",
        },
        (LENGTH, "beta_fast", "beta_slow", "attention_factor"),
    ),
}
FURTHER = {"rope_type", "type", "rope_theta", "truncate", "mscale", "mscale_all_dim", "partial_rotary_factor"}


@dataclass(frozen=True)
class RotaryKeys(Entry):
    """Theta, its scaling, and the share of each head that is turned. theta, share: the class's own defaults."""

    theta: float = 10000.0
    share: float | None = None
    older: tuple[str, str] = ("rope_theta", "partial_rotary_factor")

    def spellings(self) -> tuple[str, ...]:
        return (self.key, "rope_scaling", *self.older)

    def wrong(self, value: Any) -> str | None:
        return None if value is None or isinstance(value, dict) else "an object"

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        given = config.get(self.key) or config.get("rope_scaling") or {}
        if wrong := self.wrong(given):
            return {}, [f"{self.key} is {brief(given)}; understood: {wrong}"]
        theta = given.get("rope_theta", config.get(self.older[0], self.theta))
        share = given.get("partial_rotary_factor", config.get(self.older[1], self.share))
        problems = [f"{self.older[0]} is {brief(theta)}; understood: a positive number"] * (not _positive(theta))
        if self.share is not None and not (_positive(share) and share <= 1):
            problems.append(f"{self.older[1]} is {brief(share)}; understood: a number up to 1")
        scaling, wrong_parts = self._scaling(given, config)
        if problems or wrong_parts:
            return {}, problems + wrong_parts
        return {"theta": float(theta), "scaling": scaling} | ({} if self.share is None else {"share": float(share)}), []

    def _scaling(self, given: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Scaling | None, list[str]]:
        kind = given.get("rope_type", given.get("type", "default"))
        if kind == "default":
            return None, []
        if kind not in FORMS:
            return None, [f"{self.key}: rope_type {brief(kind)}; understood: default, {', '.join(FORMS)}"]
        component, fields, optional = FORMS[kind]
        odd = given.keys() - fields - FURTHER
        problems = [f"{self.key}: {brief(key)} is not understood with {kind}" for key in odd]
        context = config.get("max_position_embeddings")
        values = {spelling: given.get(spelling) for spelling in fields}
        for key in (LENGTH, "max_position_embeddings"):
            if key in values and values[key] is None:
                values[key] = context
        for key, value in values.items():
            if (value is None and key not in optional) or (value is not None and not _positive(value)):
                problems.append(f"{self.key}: {key} is {brief(value)} with {kind}; understood: a positive number")
        if problems:
            return None, sorted(problems)
        arguments = {fields[key]: value for key, value in values.items() if value is not None}
        return component(**arguments, **_yarn(given) if kind == "yarn" else {}), []  # type: ignore[return-value]

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        scaling = arguments["scaling"]
        found = {"rope_theta": arguments["theta"], "rope_type": "default"}
        if self.share is not None:
            found["partial_rotary_factor"] = arguments["share"]
        for kind, (component, fields, _) in FORMS.items():
            if type(scaling) is component:
                values = {key: getattr(scaling, name) for key, name in fields.items()}
                values.pop("max_position_embeddings", None)
                found |= {"rope_type": kind} | {key: value for key, value in values.items() if value is not None}
        if isinstance(scaling, Yarn):
            found["truncate"] = scaling.whole
        return {self.key: found}


def _yarn(given: Mapping[str, Any]) -> dict[str, Any]:
    """What yarn's further keys say: the rounding of the ramp, and scores' heat told by a pair of numbers."""
    found: dict[str, Any] = {"whole": given.get("truncate", True)}
    top, bottom = given.get("mscale"), given.get("mscale_all_dim")
    if given.get("attention_factor") is None and top and bottom:
        heat = 0.1 * math.log(max(given["factor"], 1))
        found["attention"] = (heat * top + 1.0) / (heat * bottom + 1.0)
    return found


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0
