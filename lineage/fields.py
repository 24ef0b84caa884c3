"""What every component is: a frozen value whose fields are sizes and choices, each of its annotated kind."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from lineage.errors import ArchitectureError
from lineage.values import Frozen

Shape = tuple[int, ...]
RANK_LIMIT = 32  # of an array that every numpy takes

ACTIVATIONS = ("gelu", "gelu_new", "gelu_tanh", "gelu_fast", "gelu_cut", "quick_gelu", "relu", "relu2", "silu", "tanh")
"""gelu: exact (erf; Hendrycks & Gimpel 2016, eq. 1). gelu_new and gelu_tanh: its tanh approximation (eq. 2), written
out as GPT-2 did and as one kernel: the same function, rounded differently; gelu_fast, gelu_cut: with √(2/π) cut after
ten and after eight digits. quick_gelu: x·σ(1.702 x). relu: max(0, x); relu2: its square (So et al. 2021). silu:
x·σ(x)."""


def size(**options: Any) -> Any:
    """Declare a field that is a dimension."""
    return field(metadata={"role": "size"}, **options)


def choice(**options: Any) -> Any:
    """Declare a field that is a design decision."""
    return field(metadata={"role": "choice"}, **options)


def contradiction(message: str, *arguments: str) -> ArchitectureError:
    """The refusal of values that cannot be. arguments: whose they are."""
    return ArchitectureError(message, context={"arguments": list(arguments)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(size, choice, field))
class Component(Frozen):
    """The base of the vocabulary. Its subclasses are final, frozen values, known by their class name."""

    kinds: ClassVar[dict[str, type["Component"]]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)
        cls.declared = fields(cls)  # type: ignore[arg-type]
        Component.kinds[cls.__name__] = cls

    def __init__(self, **given: Any) -> None:
        kind: Any = type(self)
        (usual, slots), values = _slots(kind), vars(self)
        values.update(usual)
        values.update(given)
        if len(values) > len(usual):
            raise TypeError(f"{kind.__name__} has no field {', '.join(given.keys() - usual.keys())}")
        for name, hint, exact, least in slots:
            value = values[name]
            if type(value) not in exact or (least and type(value) is int and value < least):
                values[name] = self._fitted(name, value, hint, least)
        self.check()

    def _fitted(self, name: str, value: Any, hint: Any, least: int | None) -> Any:
        kind = type(self).__name__
        if value is MISSING:
            raise TypeError(f"{kind} lacks {name}")
        if type(value) is int and value.bit_length() < 1024 and float in (hint, *get_args(hint)):
            value = float(value)  # so that equal values are written alike
        if not fits(value, hint) or (least and type(value) is int and value < least):
            raise contradiction(f"{kind}: {name} must be {_wanted(hint, least)}, not {repr(value)[:80]}", name)
        return value

    def check(self) -> None:
        """Raise ArchitectureError if the values contradict each other."""

    def tensors(self, width: int) -> Mapping[str, Shape]:
        """The tensors that this component itself owns (its children's apart): name -> shape."""
        return {}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from lineage.render.text import notebook

        return notebook(self)

    def child_width(self, child: str, width: int) -> int:
        """The width that a child works on, when this component works on `width`."""
        return width


@cache
def _slots(kind: Any) -> tuple[dict[str, Any], tuple[tuple[str, Any, frozenset[Any], int | None], ...]]:
    """The defaults; and of each field its name, its annotation, the types whose every value fits, the least value of a
    size.
    """
    hints, least = get_type_hints(kind), {"size": 1}
    roles = {f.name: f.metadata.get("role") for f in kind.declared}
    slots = tuple((name, hints[name], _exactly(hints[name]), least.get(str(role))) for name, role in roles.items())
    return {f.name: f.default for f in kind.declared}, slots


def _exactly(hint: Any) -> frozenset[Any]:
    """The types whose every value fits an annotation; floats, which may be infinite, are none."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(kind for kind in kinds if isinstance(kind, type) and kind is not float)


_WANTED = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a name"}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated kind, exactly: true is no number, a list no tuple.

    A component that another package defines may stand where any component may.
    """
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, kind) for kind in get_args(hint))
    if get_origin(hint) is tuple:
        if type(value) is not tuple:
            return False
        return all(fits(part, get_args(hint)[0]) for part in {id(part): part for part in value}.values())
    if isinstance(hint, type) and issubclass(hint, Component):
        ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
        return isinstance(value, hint) or (isinstance(value, Component) and not ours)
    if hint is float:
        return type(value) is float and math.isfinite(value)
    return type(value) is hint or hint not in (int, bool, str, NoneType)


def _wanted(hint: Any, least: int | None) -> str:
    kinds = [kind for kind in get_args(hint) or (hint,) if kind not in (NoneType, Ellipsis)]
    names = " or ".join(_WANTED.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds)
    return ("a tuple of " if get_origin(hint) is tuple else "") + names + (f" of at least {least}" if least else "")


def dense(name: str, wide_out: int, wide_in: int, bias: bool) -> dict[str, Shape]:
    """The tensors of a linear map y = W x + b: W is [out, in]."""
    weight: dict[str, Shape] = {f"{name}.weight": (wide_out, wide_in)}
    return weight | ({f"{name}.bias": (wide_out,)} if bias else {})


def check_activation(name: str) -> None:
    """Raise ArchitectureError unless the name is one of ACTIVATIONS."""
    if name not in ACTIVATIONS:
        raise contradiction(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}", "activation")


def check_positive(component: Component, *names: str) -> None:
    """Raise ArchitectureError unless each of these fields is above zero, or empty."""
    for name in names:
        value = getattr(component, name)
        if value is not None and not value > 0:
            raise contradiction(f"{type(component).__name__}: {name} {value!r} is not positive", name)
