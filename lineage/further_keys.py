"""Kinds of config line that few formats need: lists of numbers, objects within the config, keys that repeat another."""

import sys
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from lineage.errors import ArchitectureError
from lineage.keys import MANY, Entry, Flag, Key, Size, brief
from lineage.rotary_keys import RotaryKeys

PAIR, THETA = ("short_mscale", "long_mscale"), "rope_theta"


class Numbers(Key):
    """A list of whole numbers of at least 0, such as those of layers. The argument is a tuple; null is none of them."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and all(type(number) is int and 0 <= number <= MANY for number in value)

    def wanted(self) -> str:
        return "a list of whole numbers"

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: None if value is None else tuple(value)}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = arguments[self.argument]
        return {} if given is None else {self.key: list(given)}


class Spare(Size):
    """A size that is not written where it follows from others: the class has no such field, and its code no null."""

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {} if arguments[self.argument] is None else super().write(arguments)


class Labels(Key):
    """The names of classes by their numbers: how many there are counts. `num_labels` may say that alone, or as well."""

    def spellings(self) -> tuple[str, ...]:
        return (self.key, "num_labels")

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict) and len(value) > 0 and all(str(number).isdecimal() for number in value)

    def wanted(self) -> str:
        return "an object of names by numbers"

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: len(value)}

    def absent(self) -> dict[str, Any]:
        return {self.argument: self.default}

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        names, count = config.get(self.key), config.get("num_labels")
        if names is not None and not self.fits(names):
            return {}, [f"{self.key} is {brief(names)}; understood: {self.wanted()}"]
        if count is not None and (
            type(count) is not int or not 1 <= count <= MANY or count != len(names or range(count))
        ):
            return {}, [f"num_labels is {brief(count)}; understood: how many classes {self.key} names, at least 1"]
        return {self.argument: len(names) if names else count or self.default}, []

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = {str(number): f"LABEL_{number}" for number in range(arguments[self.argument])}
        numbers = {name: int(number) for number, name in names.items()}
        return {} if len(names) == self.default else {self.key: names, "label2id": numbers}


class Twin(Flag):
    """A flag that carries several arguments alike. others: all but the first."""

    others: tuple[str, ...] = ()

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: value} | dict.fromkeys(self.others, value)

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if any(arguments[other] != arguments[self.argument] for other in self.others):
            said = [self.argument, *self.others]
            raise ArchitectureError(f"{self.key} says several things, which differ here", context={"arguments": said})
        return super().write(arguments)


class Under(Flag):
    """A flag that counts only where another key is true, and is false elsewhere. of: that key; usual: its default."""

    of: str = ""
    usual: bool = True

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        found, problems = super().consume(config)
        return ({self.argument: False}, problems) if config.get(self.of, self.usual) is False else (found, problems)


class Same(Entry):
    """A key that must say what another says. of: the other; argument: the spec's that the other carries.

    default, of_default: the class's own, for what is missing; None for a key that then follows the other.
    """

    of: str
    argument: str
    default: Any = None
    of_default: Any = None

    def wrong(self, value: Any) -> str | None:
        return None

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        value, other = config.get(self.key, self.default), config.get(self.of, self.of_default)
        if value is None or type(other) is not int or (type(value) is int and value == other):
            return {}, []  # what is wrong with the other is told of it
        return {}, [f"{self.key} is {brief(value)}; understood: what {self.of} is, {brief(other)}"]

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {self.key: arguments[self.argument]}


class UsualKeys(RotaryKeys):
    """Rotary positions with a scaling even where the config says nothing. usual: the object that the class takes."""

    usual: Mapping[str, Any] = field(default_factory=dict)

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        silent = not config.get("rope_scaling") and config.get(self.key) is None
        return super().consume({**config, self.key: self.usual} if silent else config)


class PairedKeys(RotaryKeys):
    """Rotary positions whose LongRope has its heat as a pair of numbers, for short calls and for long ones."""

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        key = "rope_scaling" if config.get("rope_scaling") else self.key
        given = config.get(key)
        if not isinstance(given, dict) or given.get("rope_type", given.get("type", "default")) == "default":
            return super().consume(config)
        pair: list[Any] = [given.get(name) for name in PAIR]
        inner = {name: value for name, value in given.items() if name not in PAIR}
        found, problems = super().consume({**config, key: inner})
        problems += [
            f"{key}: {name} is {brief(value)}; understood: a positive number"
            for name, value in zip(PAIR, pair, strict=True)
            if type(value) not in (int, float) or not value > 0
        ]
        if problems or found["scaling"] is None:
            return ({}, problems) if problems else (found, [])
        short, long = map(float, pair)
        return found | {"scaling": replace(found["scaling"], attention=short, long_attention=long)}, []

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        lines, scaling = super().write(arguments), arguments["scaling"]
        if scaling is not None:
            del lines[self.key]["attention_factor"]
            lines[self.key] |= dict(zip(PAIR, (scaling.attention, scaling.long_attention), strict=True))
        return lines


class HeatedKeys(RotaryKeys):
    """Rotary positions of a model that multiplies scores by the stretch too: `mscale_all_dim` is argument `heat`."""

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        found, problems = super().consume(config)
        if problems:
            return {}, problems
        given = (config.get("rope_scaling") or config.get(self.key) or {}) if found["scaling"] else {}
        return found | {"heat": float(given.get("mscale_all_dim") or 0.0)}, []

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        lines = super().write(arguments)
        if arguments["heat"]:
            lines[self.key]["mscale_all_dim"] = arguments["heat"]
        return lines


class Within(Entry):
    """An object in the config with keys of its own. entries: these.

    Keys within that no entry reads are refused: nothing tells whether they matter. needs: what the reference must be
    given for keys that are missing or null, on which its code fails.
    """

    entries: tuple[Entry, ...]
    needs: Mapping[str, Any] = field(default_factory=dict)

    def wrong(self, value: Any) -> str | None:
        return None if value is None or isinstance(value, dict) else "an object"

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        inner = config.get(self.key)
        if wrong := self.wrong(inner):
            return {}, [f"{self.key} is {brief(inner)}; understood: {wrong}"]
        inner = inner or {}
        arguments: dict[str, Any] = {}
        problems: list[str] = []
        for entry in self.entries:
            found, wrongs = entry.consume(inner)
            arguments |= found
            problems += wrongs
        known = {spelling for entry in self.entries for spelling in entry.spellings()}
        problems += [f"{brief(key)} is not understood" for key in inner if key not in known]
        return arguments, [f"{self.key}: {problem}" for problem in problems]

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {self.key: {key: value for entry in self.entries for key, value in entry.write(arguments).items()}}

    def repaired(self, config: Mapping[str, Any]) -> dict[str, Any]:
        inner = config.get(self.key) or {}
        lacking = {key: value for key, value in self.needs.items() if inner.get(key) is None}
        return {self.key: {**inner, **lacking}} if lacking else {}


class ThetaWithin(Within):
    """An object within the config that says theta too, where the reference reads another. elsewhere: its object.

    The one within counts: the weights were trained with it.
    """

    elsewhere: str = ""

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        inner = config.get(self.key)
        if not isinstance(inner, dict) or THETA not in inner:
            return super().consume(config)
        theta = inner[THETA]
        found, problems = super().consume({self.key: {key: value for key, value in inner.items() if key != THETA}})
        if type(theta) not in (int, float) or not 0 < theta <= sys.float_info.max:
            return {}, [*problems, f"{self.key}: {THETA} is {brief(theta)}; understood: a positive number"]
        return found | {"theta": float(theta)}, problems

    def repaired(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The reference wants theta within, and takes the one elsewhere."""
        lines = super().repaired(config)
        inner = lines.get(self.key, config.get(self.key) or {})
        said = dict(config.get("rope_scaling") or config.get(self.elsewhere) or {})
        taken = said.get(THETA, config.get(THETA, 10000.0))
        if THETA not in inner:
            return {self.key: inner | {THETA: taken}}
        if inner[THETA] == taken:
            return lines
        return lines | {self.elsewhere: {"rope_type": "default", **said, THETA: inner[THETA]}}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Theta too, where it is not the usual one."""
        lines = super().write(arguments)
        if arguments["theta"] != 10000.0:
            lines[self.key][THETA] = arguments["theta"]
        return lines


class Present(Key):
    """A number that stands there or is null: one way or the other, and the default is the only number known."""

    def fits(self, value: Any) -> bool:
        return type(value) in (int, float) and value == self.default

    def wanted(self) -> str:
        return f"{brief(self.default)} or null"

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: value is not None}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {self.key: self.default if arguments[self.argument] else None}
