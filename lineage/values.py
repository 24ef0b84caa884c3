"""The base of frozen values: what a frozen dataclass can do, without code that is generated for each class.

`dataclass(frozen=True)` writes and compiles six methods for each class, 0.7 ms of every command for each of a hundred
classes; here they are written once. `dataclasses.fields`, `replace` and `asdict` know these classes as their own.
"""

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, NoReturn, dataclass_transform


class Frozen:
    """What cannot be changed once it is made, equal to what has its class and its fields' values."""

    declared: ClassVar[tuple[Field[Any], ...]]

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"{type(self).__name__}.{name} cannot be set: dataclasses.replace makes another")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"{type(self).__name__}.{name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self._told() == other._told() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *self._told().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._told().items())})"

    def _told(self) -> dict[str, Any]:
        """The fields' values by name."""
        values = vars(self)
        if len(values) == len(self.declared):
            return values
        return {f.name: values[f.name] for f in self.declared}  # beside them lies what was computed and kept


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(Frozen):
    """A frozen value: `class Pair(Value)` with annotated fields is what a frozen dataclass of them would be.

    Of `field` it knows defaults; it calls no `__post_init__`. A subclass is not decorated.
    """

    _places: ClassVar[tuple[str, ...]]  # of those that may be told by place
    _usual: ClassVar[dict[str, Any]]
    _open: ClassVar[dict[str, Any]]  # what makes the value of a field that has no default

    def __init_subclass__(cls, kw_only: bool = False) -> None:
        super().__init_subclass__()
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        cls.declared = fields(cls)  # type: ignore[arg-type]
        cls._places = tuple(f.name for f in cls.declared if not f.kw_only)
        cls._usual = {f.name: f.default for f in cls.declared}
        cls._open = {f.name: f.default_factory for f in cls.declared if f.default is MISSING}

    def __init__(self, *given: Any, **named: Any) -> None:
        values, places = vars(self), self._places
        values.update(self._usual)
        values.update(zip(places, given, strict=False))
        values.update(named)
        told = len(given) + len(named)
        if len(values) > len(self._usual) or told > len({*places[: len(given)], *named}):
            self._refuse(given, named)
        for name, make in self._open.items():
            if values[name] is MISSING:
                if make is MISSING:
                    raise TypeError(f"{type(self).__name__} lacks {name}")
                values[name] = make()

    def _refuse(self, given: tuple[Any, ...], named: dict[str, Any]) -> NoReturn:
        kind, names = type(self).__name__, self._places
        if len(given) > len(names):
            raise TypeError(f"{kind} takes {len(names)} values by place, not {len(given)}")
        unknown = named.keys() - self._usual.keys()
        wrong = f"has no field {', '.join(unknown)}" if unknown else "is told a field twice"
        raise TypeError(f"{kind} {wrong}: {', '.join(named)}")
