"""How configs spell rotary positions: today's `rope_parameters`, and the older `rope_theta` beside `rope_scaling`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineage.components import Banded, Component, Dynamic, Linear, Scaling, Yarn
from lineage.keys import Entry, brief

LENGTH, CONTEXT = "original_max_position_embeddings", "max_position_embeddings"
# name in a config -> the component, its fields by their spelling, those that may be missing
FORMS: Mapping[str, tuple[type[Component], Mapping[str, str], tuple[str, ...]]] = {
    "linear": (Linear, {"factor": "factor"}, ()),
    "dynamic": (Dynamic, {"factor": "factor"}, ()),  # its length is the config's own
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
        ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
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
        given = config.get("rope_scaling") or config.get(self.key) or {}
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
        if nested := [key for key, value in given.items() if isinstance(value, dict)]:
            return None, [
                f"{self.key}: {brief(key)} is an object; understood: one rule for all layers" for key in nested
            ]
        kind = given.get("rope_type", given.get("type", "default"))
        if kind == "default":
            return None, []
        if not isinstance(kind, str) or kind not in FORMS:
            return None, [f"{self.key}: rope_type {brief(kind)}; understood: default, {', '.join(FORMS)}"]
        component, fields, optional = FORMS[kind]
        odd = given.keys() - fields - FURTHER
        problems = [f"{self.key}: {brief(key)} is not understood with {kind}" for key in odd]
        context, names = config.get(CONTEXT), {**fields, CONTEXT: "length"} if kind == "dynamic" else fields
        values = {key: given.get(key) for key in (*names, *optional)} | ({CONTEXT: context} if CONTEXT in names else {})
        if LENGTH in values and values[LENGTH] is None:
            values[LENGTH] = context
        for key, value in values.items():
            whole = names.get(key) == "length"
            good = _positive(value) and (type(value) is int or not whole)
            if not good and (value is not None or key not in optional):
                wanted = "a whole number of at least 1" if whole else "a positive number"
                problems.append(f"{self.key}: {key} is {brief(value)} with {kind}; understood: {wanted}")
        if kind == "yarn" and type(given.get("truncate", True)) is not bool:
            problems.append(f"{self.key}: truncate is {brief(given['truncate'])}; understood: true or false")
        if problems:
            return None, sorted(problems)
        arguments = {name: values[key] for key, name in names.items() if values[key] is not None}
        return component(**arguments, **_yarn(given) if kind == "yarn" else {}), []  # type: ignore[return-value]

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        scaling = arguments["scaling"]
        found = {"rope_theta": arguments["theta"], "rope_type": "default"}
        if self.share is not None:
            found["partial_rotary_factor"] = arguments["share"]
        for kind, (component, fields, _) in FORMS.items():
            if type(scaling) is component:
                values = {key: getattr(scaling, name) for key, name in fields.items()}
                found |= {"rope_type": kind} | {key: value for key, value in values.items() if value is not None}
        if isinstance(scaling, Yarn):
            found["truncate"] = scaling.whole
        return {self.key: found} | ({CONTEXT: scaling.length} if isinstance(scaling, Dynamic) else {})


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
