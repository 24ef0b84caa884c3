"""Kinds of config line in which one key says several things, or an older one still counts."""

from collections.abc import Mapping
from typing import Any

from lineage.keys import MANY, Entry, Flag, Size, brief


class After(Flag):
    """A flag that, where it is missing, is what an older one says: true unless that is false. of: the older one."""

    of: str = ""

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        older = config.get(self.of)
        if older is not None and type(older) is not bool:
            return {}, [f"{self.of} is {brief(older)}; understood: {self.wanted()}"]
        if self.key in config:
            return super().consume({self.key: config[self.key]})
        return {self.argument: older is not False}, []

    def spellings(self) -> tuple[str, ...]:
        return (self.key, self.of)


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


class Steps(Entry):
    """How many layers are of a kind, such that these lie evenly apart: the argument is how far.

    For none it is the number of layers. default: how many there are. layers: the key of all layers, in its spellings,
    with its default. exact: the key that says how far apart they are, which wins.
    """

    default: int
    layers: tuple[str, ...]
    layers_default: int
    exact: str
    argument: str

    def spellings(self) -> tuple[str, ...]:
        return (self.key, self.exact)

    def wrong(self, value: Any) -> str | None:
        return None if type(value) is int and 0 <= value <= MANY else "a whole number of at least 0"

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        count, exact = config.get(self.key, self.default), config.get(self.exact)
        layers = next((config[name] for name in self.layers if config.get(name) is not None), self.layers_default)
        problems = [f"{self.key} is {brief(count)}; understood: {wrong}" for wrong in [self.wrong(count)] if wrong]
        if exact is not None and (self.wrong(exact) or exact == 0):
            problems.append(f"{self.exact} is {brief(exact)}; understood: a whole number of at least 1")
        if not problems and type(layers) is int and exact is None:
            exact = layers // count if count else layers
            problems = [f"{self.key} is {count} of {layers} layers; understood: as many at most"] * (exact == 0)
        return ({}, problems) if problems else ({self.argument: exact}, [])

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {self.exact: arguments[self.argument]}


class Counted(Size):
    """A size of which a number says that there is none: null is the same. none: that number; and all below it."""

    none: int = 0

    def fits(self, value: Any) -> bool:
        return type(value) is int and value <= self.most

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: None if value is None or value <= self.none else value}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        value = arguments[self.argument]
        return {} if value is None and self.quiet else {self.key: self.default if value is None else value}


class Parts(Entry):
    """Names, in a list or with bars between, each of which turns on a flag of the spec. flags: name -> argument."""

    flags: Mapping[str, str]

    def wrong(self, value: Any) -> str | None:
        names = self._names(value)
        good = isinstance(names, list) and all(isinstance(name, str) and name in self.flags for name in names)
        return None if good else f"null, or some of {', '.join(self.flags)}"

    def _names(self, value: Any) -> Any:
        return [one.strip() for one in value.lower().split("|")] if isinstance(value, str) else value or []

    def read(self, value: Any) -> dict[str, Any]:
        return {argument: name in self._names(value) for name, argument in self.flags.items()}

    def absent(self) -> dict[str, Any]:
        return self.read(None)

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {self.key: [name for name, argument in self.flags.items() if arguments[argument]] or None}
