"""Config lines that tell a pattern of layers."""

from collections.abc import Mapping
from typing import Any

from lineage.keys import MANY, Key, Pattern, brief


class Repeats(Pattern):
    """A name for each layer, as [[names, times], …]. each: the key that may list them one by one as well.

    The argument is the shortest pattern whose repetition gives the list. layers: the entry that counts them.
    """

    each: str = ""
    layers: Key | None = None

    def spellings(self) -> tuple[str, ...]:
        return (self.key, self.each)

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and all(self._repeated(pair) for pair in value)

    def _repeated(self, pair: Any) -> bool:
        whole = isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int and 0 <= pair[1] <= MANY
        return whole and super().fits(pair[0])

    def wanted(self) -> str:
        return f"[[names, times], …], where names are {super().wanted()}"

    def consume(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        given, each = config.get(self.key), config.get(self.each)
        assert self.layers is not None
        found, unclear = self.layers.consume(config)
        wrong = []
        if given is not None and not self.fits(given):
            wrong.append(f"{self.key} is {brief(given)}; understood: {self.wanted()}")
        if each is not None and not super().fits(each):
            wrong.append(f"{self.each} is {brief(each)}; understood: {super().wanted()}")
        if wrong or unclear:
            return {}, wrong  # what is wrong with the count, its own entry tells
        pairs = given if given is not None else self.default if each is None else [[each, 1]]
        count, layers = sum(len(names) * times for names, times in pairs), found[self.layers.argument]
        if count != layers:
            return {}, [f"{self.key} names {count} layers, and {self.layers.key} is {layers}"]
        if each is not None and each != _listed(pairs):
            return {}, [f"{self.key} and {self.each} name different layers"]
        return self.read(pairs), []

    def read(self, value: Any) -> dict[str, Any]:
        names = super().read(_listed(value))[self.argument]
        period = next(n for n in range(1, len(names) + 1) if all(names[i] == names[i % n] for i in range(len(names))))
        return {self.argument: names[:period]}

    def write(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        assert self.layers is not None
        (names,) = super().write(arguments).values()
        times, rest = divmod(arguments[self.layers.argument], len(names))
        return {self.key: [[part, count] for part, count in ((names, times), (names[:rest], 1)) if part and count]}


def _listed(pairs: list[Any]) -> list[str]:
    return [name for names, times in pairs for _ in range(times) for name in names]
