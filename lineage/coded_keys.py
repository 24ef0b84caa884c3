"""Kinds of config line in which one key says several things, or an older one still counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineage.keys import Entry, Flag, brief


@dataclass(frozen=True)
class After(Flag):
    """A flag that, where it is missing, is what an older one says: true unless that is false. of: the older one."""

    of: str = ""

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        if self.key in config:
            return super().consume(config)
        older = config.get(self.of)
        if older is not None and type(older) is not bool:
            return {}, [f"{self.of} is {brief(older)}; understood: {self.wanted()}"]
        return {self.argument: older is not False}, []

    def spellings(self) -> tuple[str, ...]:
        return (self.key, self.of)


@dataclass(frozen=True)
class Coded(Entry):
    """An activation's name, after "gated-" where there is a gate; the keys of the two parts win where they are given.

    default: the class's own. names: of activations. whole: codes that mean another activation than their last part.
    Arguments are activation and gated.
    """

    default: str
    names: Mapping[str, str]
    whole: Mapping[str, str]
    name_key: str
    gate_key: str

    def spellings(self) -> tuple[str, ...]:
        return (self.key, self.name_key, self.gate_key)

    def wrong(self, value: Any) -> str | None:
        fits = isinstance(value, str) and value.removeprefix("gated-") in self.names
        return None if fits else "NAME or gated-NAME, of " + ", ".join(self.names)

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        code = config.get(self.key, self.default)
        if wrong := self.wrong(code):
            return {}, [f"{self.key} is {brief(code)}; understood: {wrong}"]
        name = config.get(self.name_key, self.whole.get(code, code.removeprefix("gated-")))
        gated = config.get(self.gate_key, code.startswith("gated-"))
        problems = [f"{self.gate_key} is {brief(gated)}; understood: true or false"] * (type(gated) is not bool)
        if not isinstance(name, str) or name not in self.names:
            problems.append(f"{self.name_key} is {brief(name)}; understood: one of {', '.join(self.names)}")
        return ({}, problems) if problems else ({"activation": self.names[name], "gated": gated}, [])

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        wanted = {name: arguments[name] for name in ("activation", "gated")}
        name = next(key for key, value in self.names.items() if value == wanted["activation"])
        codes = [*self.whole, ("gated-" if wanted["gated"] else "") + name]
        for code in codes:
            if self.consume({self.key: code})[0] == wanted:
                return {self.key: code}
        return {self.key: codes[-1], self.name_key: name, self.gate_key: wanted["gated"]}
