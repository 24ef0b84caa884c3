"""Kinds of config line that say which layers differ from the others."""

from collections.abc import Mapping
from typing import Any

from lineage.keys import Entry, brief


class Toggle(Entry):
    """A flag under which other keys count. off: the arguments where it is false, and these say nothing."""

    entries: tuple[Entry, ...]
    off: Mapping[str, Any]

    def spellings(self) -> tuple[str, ...]:
        return (self.key, *(spelling for entry in self.entries for spelling in entry.spellings()))

    def wrong(self, value: Any) -> str | None:
        return None if type(value) is bool else "true or false"

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        on = config.get(self.key, False)
        if wrong := self.wrong(on):
            return {}, [f"{self.key} is {brief(on)}; understood: {wrong}"]
        if not on:
            return dict(self.off), []
        read = [entry.consume(config) for entry in self.entries]
        return {k: v for found, _ in read for k, v in found.items()}, [one for _, wrongs in read for one in wrongs]

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if all(arguments[name] == value for name, value in self.off.items()):
            return {self.key: False}
        return {self.key: True} | {k: v for entry in self.entries for k, v in entry.write(arguments).items()}
