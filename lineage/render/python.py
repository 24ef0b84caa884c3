"""A spec as Python: run, it gives the spec again."""

import re
from dataclasses import MISSING, fields
from itertools import groupby
from typing import Any

from lineage.components import Component, Model

INLINE = 64  # characters of a component that needs no line of its own


def python(model: Model) -> list[str]:
    """Lines that make `model`: a name for each part that is long or comes again, and the model at the end."""
    code = _Code(model)
    code.spell(model)
    imports = [f"from {module} import {', '.join(sorted(kinds))}" for module, kinds in sorted(code.kinds.items())]
    return [*imports, "", *code.lines]


class _Code:
    def __init__(self, whole: Model) -> None:
        self.lines: list[str] = []
        self.kinds: dict[str, set[str]] = {}
        self._names: dict[Component, str] = {}
        self._whole = whole

    def spell(self, value: Any) -> str:
        """An expression for a value; the lines that it needs are there then."""
        if isinstance(value, tuple):
            runs = [(self.spell(one), len(list(run))) for one, run in groupby(value)]
            return " + ".join(f"({told},)" + (f" * {n}" if n > 1 else "") for told, n in runs) or "()"
        if not isinstance(value, Component):
            return repr(value)
        if value not in self._names:
            self._names[value] = self._part(value)
        return self._names[value]

    def _part(self, part: Component) -> str:
        kind, home, given = type(part).__name__, type(part).__module__, []
        self.kinds.setdefault("lineage.components" if home.startswith("lineage.") else home, set()).add(kind)
        for f in fields(part):  # type: ignore[arg-type]
            usual = f.default if f.default_factory is MISSING else f.default_factory()
            if (value := getattr(part, f.name)) != usual:
                given.append(f"{f.name}={self.spell(value)}")
        told = f"{kind}({', '.join(given)})"
        if len(told) <= INLINE and not isinstance(part, Model):
            return told
        stem = "encoder" if isinstance(part, Model) and part is not self._whole else _snake(kind)
        taken = sum(one.partition(" = ")[0].rstrip("_0123456789") == stem for one in self.lines)
        self.lines.append(f"{stem}{f'_{taken + 1}' if taken else ''} = {told}")
        return self.lines[-1].partition(" = ")[0]


def _snake(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()
