"""What the catalog holds, as cases: each size, and how each dialect says it for each class of its reference."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lineage import catalog, config
from lineage.components import Model
from lineage.config import Key
from lineage.errors import ArchitectureError
from lineage.rules import Dialect, Reference

NEEDED: dict[str, dict[str, Any]] = {"glm4_moe": {"head_dim": 128}}
"""Keys without which a class's own defaults are no model that can be: 21 channels of 42 would turn in pairs."""
SIZES = sorted(catalog.published())
DIALECTS = sorted(catalog.dialects())
JUDGED = sorted(kind for kind, dialect in catalog.dialects().items() if dialect.references[0].build is None)
"""Those whose reference is in transformers. Another package's is not there to be asked: tests/test_annalog.py."""


@dataclass(frozen=True)
class Case:
    """One size as one dialect spells it: config holds the keys that say it, arguments the spec's."""

    model_type: str
    size: str
    config: dict[str, Any]
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.model_type}:{self.size}"

    @property
    def dialect(self) -> Dialect:
        return catalog.dialects()[self.model_type]

    def model(self, **changes: Any) -> Model:
        return catalog.families()[self.dialect.spec].function(**self.arguments | changes)


def complete(size: str) -> dict[str, Any]:
    """Every argument of a published size."""
    family, given = catalog.published()[size]
    return catalog.defaults(family) | given


def usual(dialect: Dialect) -> dict[str, Any]:
    """Every argument of the model that an empty config describes."""
    family = catalog.families()[dialect.spec]
    return complete_for(family.name, dialect, config.read(dialect.config, needed(dialect)).arguments)


def needed(dialect: Dialect) -> dict[str, Any]:
    """What a config must say at least."""
    return next((NEEDED[kind] for kind in dialect.model_types if kind in NEEDED), {})


def complete_for(family: str, dialect: Dialect, read: dict[str, Any]) -> dict[str, Any]:
    return {**catalog.defaults(catalog.families()[family]), **dialect.fixed, **read}


def said(dialect: Dialect, size: str) -> dict[str, Any] | None:
    """The config by which a dialect says a size; None if it has no words for it."""
    arguments = complete(size)
    try:
        written = config.write(dialect.config, arguments)
        read = config.read(dialect.config, written).arguments
    except ArchitectureError:
        return None
    decided = {find.argument for find in dialect.finds} | {name for r in dialect.references for name in r.decides}
    back = complete_for(dialect.spec, dialect, read)
    return written if all(back[name] == value for name, value in arguments.items() if name not in decided) else None


def cases() -> Iterator[Case]:
    """Each published size that a model_type can say, and its own defaults where they are none of these."""
    for model_type, dialect in sorted(catalog.dialects().items()):
        sizes = catalog.families()[dialect.spec].published
        spoken = {size: written for size in sizes if (written := said(dialect, size)) is not None}
        if all(complete(size) != usual(dialect) for size in spoken):
            yield Case(model_type, "default", needed(dialect), usual(dialect))
        yield from (Case(model_type, size, written, complete(size)) for size, written in spoken.items())


CASES = list(cases())
FIRST = {case.model_type: case for case in reversed(CASES)}
REFERENCES: list[tuple[Case, Reference]] = [
    (case, r)
    for case in CASES
    if case.model_type in JUDGED
    for r in case.dialect.references
    if not r.tells or case is FIRST[case.model_type]  # such heads are the same at every size
]


def parts(dialect: Dialect, reference: Reference) -> dict[str, Any]:
    """Which heads a class of the reference has."""
    heads = {find.argument: find.argument in reference.parts for find in dialect.finds if hasattr(Model, find.argument)}
    return ({"task": None} if any(r.tells for r in dialect.references) else {}) | heads | dict(reference.decides)


def keys(dialect: Dialect) -> list[Key]:
    return [entry for entry in dialect.config if isinstance(entry, Key)]
