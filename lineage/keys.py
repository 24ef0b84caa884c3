"""The kinds of line that a config may have, each with its values' form and its way back."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lineage.errors import ArchitectureError
from lineage.values import Value

MANY = 2**31 - 1


class Entry(Value, ABC):
    """One key of a config."""

    key: str

    def spellings(self) -> tuple[str, ...]:
        """The key's spellings, the usual one first."""
        return (self.key,)

    @abstractmethod
    def wrong(self, value: Any) -> str | None:
        """What should stand there instead of this value; None if it is right."""

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The spec's arguments that follow from a config, and what is wrong with the key in it."""
        present = [key for key in self.spellings() if key in config]
        wrong = [f"{k} is {brief(config[k])}; understood: {w}" for k in present if (w := self.wrong(config[k]))]
        if any(config[key] != config[present[0]] for key in present[1:]):
            wrong.append(f"{' and '.join(present)} are two spellings of one thing and differ")
        if wrong:
            return {}, wrong
        return (self.read(config[present[0]]) if present else self.absent()), []

    def read(self, value: Any) -> dict[str, Any]:
        """The spec's arguments that follow from a value."""
        return {}

    def absent(self) -> dict[str, Any]:
        """The arguments when the key is missing: what the reference's class would take."""
        return {}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The key's line in a config that says these arguments."""
        return {}

    def repaired(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Lines that the reference must be given instead, where it gets wrong what this config means."""
        return {}


class Key(Entry):
    """A key that carries an argument of the spec.

    default: the reference's own, when the key is missing. nullable: null is a value too (always, if it is the default).
    quiet: the class reads the key and does not keep it, so that it is written only where it says something.
    """

    argument: str
    default: Any
    also: tuple[str, ...] = ()
    nullable: bool = False
    quiet: bool = False

    def spellings(self) -> tuple[str, ...]:
        return (self.key, *self.also)

    def wrong(self, value: Any) -> str | None:
        if value is None and (self.nullable or self.default is None):
            return None
        return None if self.fits(value) else self.wanted()

    @abstractmethod
    def fits(self, value: Any) -> bool: ...

    @abstractmethod
    def wanted(self) -> str: ...

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: value}

    def absent(self) -> dict[str, Any]:
        return self.read(self.default)

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        value = arguments[self.argument]
        return {} if self.quiet and value == self.default else {self.key: value}


class Size(Key):
    """A whole number of at least 1."""

    most: int = MANY

    def fits(self, value: Any) -> bool:
        return type(value) is int and 1 <= value <= self.most

    def wanted(self) -> str:
        return f"a whole number from 1 to {self.most:,}"


class Index(Key):
    """A whole number of at least 0, such as a token's id. none: a number that old configs write for null."""

    none: int | None = None

    def fits(self, value: Any) -> bool:
        return type(value) is int and (0 <= value <= MANY or value == self.none)

    def wanted(self) -> str:
        return "a whole number of at least 0"

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: None if value == self.none else value}

    def repaired(self, config: Mapping[str, Any]) -> dict[str, Any]:
        present = [key for key in self.spellings() if key in config]
        return {key: None for key in present if self.none is not None and config[key] == self.none}


class Number(Key):
    """A finite number that is not negative. positive: nor zero."""

    positive: bool = False

    def fits(self, value: Any) -> bool:
        return type(value) in (int, float) and 0 <= value <= sys.float_info.max and not (self.positive and value == 0)

    def wanted(self) -> str:
        return "a finite number " + ("above 0" if self.positive else "of at least 0")

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: None if value is None else float(value)}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        value = arguments[self.argument]
        return {self.key: int(value) if type(self.default) is int and value == int(value) else value}


class Flag(Key):
    """true or false."""

    def fits(self, value: Any) -> bool:
        return type(value) is bool

    def wanted(self) -> str:
        return "true or false"


class Choice(Key):
    """One of several names. names: the config's spelling -> the spec's; the first spelling of each is written."""

    names: Mapping[str, str] | None = None

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and value in (self.names or {})

    def wanted(self) -> str:
        return "one of " + ", ".join(self.names or {})

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: (self.names or {})[value]}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        wanted = arguments[self.argument]
        spelling = next((key for key, value in (self.names or {}).items() if value == wanted), None)
        if spelling is None:
            raise ArchitectureError(f"{self.key} has no name for {wanted!r}", context={"arguments": [self.argument]})
        return {} if self.quiet and spelling == self.default else {self.key: spelling}


class Only(Entry):
    """A key that may have one value only: with any other the model is one that the spec does not describe.

    nullable: null says the same.
    """

    value: Any
    nullable: bool = False

    def wrong(self, value: Any) -> str | None:
        if value is None and self.nullable:
            return None
        return None if type(value) is type(self.value) and value == self.value else json.dumps(self.value)


class Inert(Entry):
    """A key that cannot move the result. why: the reason. form: what its value must still look like."""

    why: str
    form: str = "anything"

    def wrong(self, value: Any) -> str | None:
        return None if value is None or FORMS[self.form](value) else self.form


class Island(Inert):
    """An inert key that makes the reference compute in single precision. off: the value with which it does not."""

    off: Any = False


LOSSES = ("regression", "single_label_classification", "multi_label_classification")
FLOATS = ("float64", "float32", "float16", "bfloat16", "auto")
FORMS: Mapping[str, Callable[[Any], bool]] = {
    "anything": lambda value: True,
    "full attention in every layer": lambda value: (
        isinstance(value, list) and all(one == "full_attention" for one in value)
    ),
    "a list of names": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "the name of a loss": lambda value: value in LOSSES,
    "the name of a floating-point type": lambda value: str(value).removeprefix("torch.") in FLOATS,
}


class Pattern(Key):
    """A name for each layer, or a number. names: the config's -> the spec's."""

    names: Mapping[Any, str] | None = None

    def fits(self, value: Any) -> bool:
        known = self.names or {}
        return isinstance(value, list) and all(type(name) in (str, int) and name in known for name in value)

    def wanted(self) -> str:
        return "a list of " + " and ".join(str(name) for name in self.names or {})

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: None if value is None else tuple((self.names or {})[name] for name in value)}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        spelled = {name: key for key, name in (self.names or {}).items()}
        given = arguments[self.argument]
        return {} if given is None else {self.key: [spelled[name] for name in given]}


def inert(why: str, *keys: str) -> tuple[Inert, ...]:
    """Several keys that change nothing for one reason."""
    return tuple(Inert(key, why) for key in keys)


def brief(value: Any, limit: int = 60) -> str:
    """A value on one short line, safe to print."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"
