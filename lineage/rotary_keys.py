"""How configs spell rotary positions: today's `rope_parameters`, and the older `rope_theta` beside `rope_scaling`."""

import math
import sys
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from lineage.components import Banded, Component, Dynamic, Linear, LongRope, Scaling, Yarn
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
    "longrope": (
        LongRope,
        {"short_factor": "short", "long_factor": "long", LENGTH: "length", "attention_factor": "attention"},
        ("attention_factor",),
    ),
}
FURTHER = {"rope_type", "type", "rope_theta", "truncate", "partial_rotary_factor"}
LISTS = {"short_factor", "long_factor"}


class RotaryKeys(Entry):
    """Theta, its scaling, and the share of each head that is turned. theta, share: the class's own defaults.

    length, context: likewise, of the original length and the config's, where a scaling needs them. aliases: other
    names of scalings, in `rope_scaling`. broken: those of them that the reference fails on. kinds: the scalings that
    the class takes.
    """

    theta: float = 10000.0
    share: float | None = None
    older: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    length: int | None = None
    context: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    kinds: tuple[str, ...] = tuple(FORMS)

    def spellings(self) -> tuple[str, ...]:
        return (self.key, "rope_scaling", *self.older, LENGTH)

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
        if self.share is None and share not in (None, 1):
            problems.append(f"{self.older[1]} is {brief(share)}; understood: 1, every channel")
        scaling, wrong_parts = self._scaling(given, config)
        if problems or wrong_parts:
            return {}, problems + wrong_parts
        return {"theta": float(theta), "scaling": scaling} | ({} if self.share is None else {"share": float(share)}), []

    def _kind(self, given: Mapping[str, Any]) -> tuple[str, list[str]]:
        if nested := [key for key, value in given.items() if isinstance(value, dict)]:
            return "", [f"{self.key}: {brief(key)} is an object; understood: one rule for all layers" for key in nested]
        kind = given.get("rope_type", given.get("type", "default"))
        if given.get("type", kind) != kind:
            return "", [f"{self.key}: rope_type {brief(kind)} and type {brief(given['type'])} are not one"]
        known = (*self.kinds, *self.aliases)
        if not isinstance(kind, str) or kind not in ("default", *known):
            return "", [f"{self.key}: rope_type {brief(kind)}; understood: default, {', '.join(known)}"]
        return self.aliases.get(kind, kind), []

    def _scaling(self, given: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Scaling | None, list[str]]:
        kind, problems = self._kind(given)
        if problems or kind == "default":
            return None, problems
        component, fields, optional = FORMS[kind]
        more = ("factor",) if component is LongRope else ()
        odd = given.keys() - fields - {*optional, *more} - FURTHER
        problems = [f"{self.key}: {brief(key)} is not understood with {kind}" for key in odd]
        names = {**fields, CONTEXT: "length"} if kind == "dynamic" else fields
        values = {key: given.get(key) for key in (*names, *optional, *more)}
        values |= {key: value for key, value in self._lengths(kind, given, config).items() if key in values}
        for key, value in values.items():
            whole = names.get(key) == "length"
            good = _factors(value) if key in LISTS else _positive(value) and (type(value) is int or not whole)
            told = key in more and given.get("attention_factor") is not None  # what else it would be needed for
            if not good and (value is not None or not (told or key in optional)):
                wanted = "a list of positive numbers" if key in LISTS else "a positive number"
                wanted = "a whole number of at least 1" if whole else wanted
                problems.append(f"{self.key}: {key} is {brief(value)} with {kind}; understood: {wanted}")
        if kind == "yarn" and type(given.get("truncate", True)) is not bool:
            problems.append(f"{self.key}: truncate is {brief(given['truncate'])}; understood: true or false")
        if problems:
            return None, sorted(problems)
        arguments = {name: values[key] for key, name in names.items() if values[key] is not None}
        further = {"yarn": _yarn, "longrope": _longrope}.get(kind, lambda given: {})
        arguments |= further({**given, **values})
        return component(**arguments), []  # type: ignore[return-value]

    def _lengths(self, kind: str, given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """What the lengths are: one beside the object wins over the one within, and the config's own stands in.

        Where a factor follows from them, it is their quotient if the object has none.
        """
        context = config.get(CONTEXT, self.context)
        original = config.get(LENGTH, given.get(LENGTH) if self.length is None else self.length)
        original = context if original is None else original
        factor = given.get("factor")
        if factor is None and kind in ("yarn", "longrope") and _positive(context) and _positive(original):
            factor = context / original
        return {CONTEXT: context, LENGTH: original, "factor": factor}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        scaling = arguments["scaling"]
        found = {"rope_theta": arguments["theta"], "rope_type": "default"}
        beside: dict[str, Any] = {}
        if self.share is not None:
            found["partial_rotary_factor"] = arguments["share"]
        for kind, (component, fields, _) in FORMS.items():
            if type(scaling) is component:
                values = {key: getattr(scaling, name) for key, name in fields.items()}
                values = {key: list(value) if key in LISTS else value for key, value in values.items()}
                found |= {"rope_type": kind} | {key: value for key, value in values.items() if value is not None}
        if isinstance(scaling, Yarn):
            found["truncate"] = scaling.whole
        if isinstance(scaling, Dynamic):
            beside[CONTEXT] = scaling.length
        if self.length is not None and LENGTH in found:
            beside[LENGTH] = found[LENGTH]
        return {self.key: found} | beside

    def repaired(self, config: Mapping[str, Any]) -> dict[str, Any]:
        for key in (key for key in ("rope_scaling", self.key) if config.get(key)):
            given = config[key]
            kind = given.get("rope_type", given.get("type"))
            if kind in self.broken:
                return {key: {k: v for k, v in given.items() if k != "type"} | {"rope_type": self.aliases[kind]}}
        return {}


class RotaryKinds(Entry):
    """Rotary positions of each kind of layer, in objects within one object.

    kinds: a kind's name in the config -> the arguments' prefix, theta's default, and theta's older key. The first kind
    is the one that `rope_scaling` is about.
    """

    kinds: Mapping[str, tuple[str, float, str]]

    def spellings(self) -> tuple[str, ...]:
        older = (older for _, _, older in self.kinds.values())
        return (self.key, "rope_scaling", *older, "partial_rotary_factor", LENGTH)

    def wrong(self, value: Any) -> str | None:
        if value is None:
            return None
        nested = isinstance(value, dict) and all(
            key in self.kinds and isinstance(one, dict) for key, one in value.items()
        )
        return None if nested else f"an object for each of {', '.join(self.kinds)}"

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        given, scaling = config.get(self.key) or {}, config.get("rope_scaling") or {}
        if wrong := self.wrong(given):
            return {}, [f"{self.key} is {brief(given)}; understood: {wrong}"]
        arguments: dict[str, Any] = {}
        problems = [] if isinstance(scaling, dict) else [f"rope_scaling is {brief(scaling)}; understood: an object"]
        for place, (kind, (prefix, theta, older)) in enumerate(self.kinds.items()):
            within = given.get(kind, {})
            if place == 0 and isinstance(scaling, dict):  # the class reads no `type` here: alone it is refused
                within = {"rope_type": "default"} | within | scaling
            keys = RotaryKeys(f"{self.key}: {kind}", theta=theta, older=(older, "partial_rotary_factor"))
            found, wrongs = keys.consume({k: v for k, v in config.items() if k != "rope_scaling"} | {keys.key: within})
            arguments |= {prefix + name: value for name, value in found.items()}
            problems += wrongs
        return arguments, problems

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {self.key: {}}
        for kind, (prefix, theta, _) in self.kinds.items():
            one = {name: arguments[prefix + name] for name in ("theta", "scaling")}
            written = RotaryKeys(kind, theta=theta).write(one)
            found[self.key][kind] = written.pop(kind)
            found |= written
        return found


def _yarn(given: Mapping[str, Any]) -> dict[str, Any]:
    """What yarn's further keys say: the rounding of the ramp, and scores' heat told by a pair of numbers."""
    found: dict[str, Any] = {"whole": given.get("truncate", True)}
    top, bottom = given.get("mscale"), given.get("mscale_all_dim")
    if given.get("attention_factor") is None and top and bottom:
        heat = 0.1 * math.log(max(given["factor"], 1))
        found["attention"] = (heat * top + 1.0) / (heat * bottom + 1.0)
    return found


def _longrope(given: Mapping[str, Any]) -> dict[str, Any]:
    """The factors as tuples, and the scores' heat, by the stretch where no number tells it (Ding et al. 2024, §3.3)."""
    heat, stretch, length = given["attention_factor"], given["factor"], given[LENGTH]
    if heat is None:
        heat = math.sqrt(1 + math.log(stretch) / math.log(length)) if stretch > 1 < length else 1.0
    lists = {"short": "short_factor", "long": "long_factor"}
    factors = {name: tuple(float(one) for one in given[key]) for name, key in lists.items()}
    return factors | {"attention": float(heat), "long_attention": float(heat)}


def _factors(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(_positive(one) for one in value)


def _positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max
