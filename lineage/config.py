"""config.json <-> a spec's arguments: each key is understood, known to change nothing, or refused.

A table lists every key that the reference's config class knows. Five kinds of key carry an argument (Size, Index,
Number, Flag, Choice); `Only` allows one value; `Inert` has no say in the result, and tells why. Keys that the
reference does not know either cannot move its logits: they are listed, and refused only when asked to be strict.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lineage.errors import ArchitectureError

MANY = 2**31 - 1


@dataclass(frozen=True)
class Entry(ABC):
    """One key of a config."""

    key: str

    def spellings(self) -> tuple[str, ...]:
        """The key's spellings, the usual one first."""
        return (self.key,)

    @abstractmethod
    def wrong(self, value: Any) -> str | None:
        """What should stand there instead of this value; None if it is right."""

    def read(self, value: Any) -> dict[str, Any]:
        """The spec's arguments that follow from a value."""
        return {}

    def absent(self) -> dict[str, Any]:
        """The arguments when the key is missing: what the reference's class would take."""
        return {}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The key's line in a config that says these arguments."""
        return {}


@dataclass(frozen=True)
class Key(Entry):
    """A key that carries an argument of the spec. default: the reference's own, when the key is missing."""

    argument: str
    default: Any
    also: tuple[str, ...] = ()

    def spellings(self) -> tuple[str, ...]:
        return (self.key, *self.also)

    def wrong(self, value: Any) -> str | None:
        if value is None and self.default is None:
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
        return {self.key: arguments[self.argument]}


@dataclass(frozen=True)
class Size(Key):
    """A whole number of at least 1."""

    most: int = MANY

    def fits(self, value: Any) -> bool:
        return type(value) is int and 1 <= value <= self.most

    def wanted(self) -> str:
        return f"a whole number from 1 to {self.most:,}"


@dataclass(frozen=True)
class Index(Key):
    """A whole number of at least 0, such as a token's id. optional: or null, for none."""

    optional: bool = False

    def fits(self, value: Any) -> bool:
        return (value is None and self.optional) or (type(value) is int and 0 <= value <= MANY)

    def wanted(self) -> str:
        return "a whole number of at least 0" + (" or null" if self.optional else "")


@dataclass(frozen=True)
class Number(Key):
    """A finite number that is not negative."""

    def fits(self, value: Any) -> bool:
        return type(value) in (int, float) and 0 <= value <= sys.float_info.max

    def wanted(self) -> str:
        return "a finite number of at least 0"

    def read(self, value: Any) -> dict[str, Any]:
        return {self.argument: float(value)}


@dataclass(frozen=True)
class Flag(Key):
    """true or false."""

    def fits(self, value: Any) -> bool:
        return type(value) is bool

    def wanted(self) -> str:
        return "true or false"


@dataclass(frozen=True)
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
        return {self.key: spelling}


@dataclass(frozen=True)
class Only(Entry):
    """A key that may have one value only: with any other the model is one that the spec does not describe."""

    value: Any

    def wrong(self, value: Any) -> str | None:
        return None if type(value) is type(self.value) and value == self.value else json.dumps(self.value)


@dataclass(frozen=True)
class Inert(Entry):
    """A key that cannot move the result. why: the reason. form: what its value must still look like."""

    why: str
    form: str = "anything"

    def wrong(self, value: Any) -> str | None:
        return None if value is None or FORMS[self.form](value) else self.form


FLOATS = ("float64", "float32", "float16", "bfloat16", "auto")
FORMS: Mapping[str, Callable[[Any], bool]] = {
    "anything": lambda value: True,
    "a list of names": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "the name of a floating-point type": lambda value: str(value).removeprefix("torch.") in FLOATS,
}


def inert(why: str, *keys: str) -> tuple[Inert, ...]:
    """Several keys that change nothing for one reason."""
    return tuple(Inert(key, why) for key in keys)


@dataclass(frozen=True)
class Reading:
    """What a config says. arguments: for the spec's function. unknown: keys that no one reads."""

    arguments: dict[str, Any]
    unknown: tuple[str, ...]


def read(entries: Iterable[Entry], config: Mapping[str, Any], strict: bool = False) -> Reading:
    """Consume a config.json, or refuse it naming every key at fault at once.

    Raises ArchitectureError. strict: keys that the reference does not know are refused too.
    """
    arguments: dict[str, Any] = {}
    problems: list[str] = []
    known = {"model_type"}
    for entry in entries:
        present = [key for key in entry.spellings() if key in config]
        known.update(entry.spellings())
        values = [config[key] for key in present]
        wrong = [f"{k} is {brief(v)}; understood: {w}" for k in present if (w := entry.wrong(v := config[k]))]
        if len(present) > 1 and any(value != values[0] for value in values):
            wrong.append(f"{' and '.join(present)} are two spellings of one thing and differ")
        problems += wrong
        if not wrong:
            arguments |= entry.read(values[0]) if present else entry.absent()
    unknown = tuple(sorted(set(config) - known))
    if strict:
        problems += [f"{brief(key)} is not a key that the reference knows" for key in unknown]
    if problems:
        raise ArchitectureError(
            f"config.json: {problems[0]}"
            if len(problems) == 1
            else f"config.json: {len(problems)} keys are not understood",
            facts=problems if len(problems) > 1 else (),
            hint="an option that is not described is refused rather than ignored; see docs/add-a-family.md",
            context={"problems": problems},
        )
    return Reading(arguments, unknown)


def write(entries: Iterable[Entry], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `read`: the keys of a config that says these arguments."""
    return {key: value for entry in entries for key, value in entry.write(arguments).items()}


def build(entries: Iterable[Entry], function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a spec's function; a contradiction between its arguments is told in the config's own keys."""
    try:
        return function(**arguments)
    except ArchitectureError as error:
        spelling = {e.argument: e.key for e in entries if isinstance(e, Key)}
        keys = [
            f"{a} is {spelling[a]} = {brief(arguments[a])}" for a in error.context.get("arguments", ()) if a in spelling
        ]
        raise ArchitectureError(
            f"config.json: {error.message}", facts=keys, context={"problems": [error.message]}
        ) from error


def brief(value: Any, limit: int = 60) -> str:
    """A value on one short line, safe to print."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"
