"""Every single change of a spec, made by walking it: numbers nudged, flags flipped, parts removed, exchanged, replaced.

Nothing here knows a component by name, so a new field is changed as soon as it exists; a kind of value that is not
known here is an error, not a silence.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from itertools import combinations
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from lineage import components as c
from lineage.components import Component
from lineage.feed_forward import NORMALISATIONS, SCORES
from lineage.heads import READS, TASKS

NAMES = {
    "activation": c.ACTIVATIONS,
    "pairing": ("halves", "neighbours"),
    "score": SCORES,
    "normalise": NORMALISATIONS,
    "rounded": ("table", "result", "both"),
    "task": tuple(TASKS),
    "reads": READS,
}  # a field of names -> those it may have
SAMPLES: dict[Any, Any] = {int: 2, float: 0.5, bool: True, tuple[int, ...]: (0, 0)}
FITTING = {"buckets": 8, "distance": 20, "keep": 1, "offset": 3, "kernel": 3}  # go together, and do something
FURTHER = {"jitter": 1.2}  # how much further than usual a number must move before any token is judged otherwise
FACTORS = (2, 3)


@dataclass(frozen=True)
class Mutant:
    """make: the changed spec; it may refuse. moved: its tensors' prefixes -> where those tensors were."""

    path: str
    kind: type[Component]
    fields: tuple[str, ...]
    change: str
    make: Callable[[], Component]
    moved: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.path or 'model'}: {self.change}"

    def source(self, name: str) -> str:
        """Where a tensor of the mutant was in the original."""
        for new, old in self.moved.items():
            if name.startswith(new + "."):
                return old + name[len(new) :]
        return name


@dataclass(frozen=True)
class Change:
    """New values of a component's fields. moved: paths of tensors, relative to the component."""

    values: Mapping[str, Any]
    label: str
    moved: Mapping[str, str]


def mutants(spec: Component) -> Iterator[Mutant]:
    """All of them, each different from the original."""
    for path, component, rebuild in places(spec):
        for change in changes(component):
            dot = f"{path}." if path else ""
            yield Mutant(
                path,
                type(component),
                tuple(change.values),
                change.label,
                lambda r=rebuild, p=component, v=change.values: r(replace(p, **v)),
                {dot + new: dot + old for new, old in change.moved.items()},
            )


Rebuild = Callable[[Component], Component]


def places(part: Component, path: str = "", rebuild: Rebuild = lambda new: new) -> Iterator[tuple[str, Any, Rebuild]]:
    """Every component of a spec: its path, itself, and how to put another in its place."""
    yield path, part, rebuild
    for f in fields(part):  # type: ignore[arg-type]
        value, here = getattr(part, f.name), f"{path}.{f.name}" if path else f.name
        if isinstance(value, Component):
            yield from places(value, here, lambda new, n=f.name: rebuild(replace(part, **{n: new})))
        elif isinstance(value, tuple):
            for i, one in enumerate(one for one in value if isinstance(one, Component)):
                put = partial(_put, part, f.name, value, i, rebuild)
                yield from places(one, f"{here}.{i}", put)


def _put(whole: Component, name: str, parts: tuple[Any, ...], i: int, rebuild: Rebuild, new: Component) -> Component:
    return rebuild(replace(whole, **{name: (*parts[:i], new, *parts[i + 1 :])}))


def changes(part: Component) -> Iterator[Change]:
    hints = get_type_hints(type(part))
    values = {f.name: getattr(part, f.name) for f in fields(part)}  # type: ignore[arg-type]
    for name, value in values.items():
        if isinstance(value, tuple):
            yield from reordered(name, value) if isinstance(value[0], Component) else renumbered(name, value)
        for other in others(name, value, hints[name]):
            if other != value or type(other) is not type(value):
                yield Change({name: other}, f"{name} {brief(value)} -> {brief(other)}", {})
    yield from rescaled(values)
    yield from exchanged(values, hints)


def others(name: str, value: Any, hint: Any) -> Iterator[Any]:
    """What a field might be instead of its value."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not Ellipsis]
    if NoneType in kinds and value is not None:
        yield None
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Component) and not isinstance(value, kind | tuple):
            yield sample(kind)
        elif value is None and kind in SAMPLES:
            yield SAMPLES[kind]
    if not isinstance(value, Component | tuple | None):
        yield from nudged(name, value)


def nudged(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value - 1, value + 1)
    elif isinstance(value, float):
        yield value * FURTHER.get(name, 1.01) if value > 1e-6 else 1e-5
    else:
        yield from NAMES[name]


def sample(kind: type[Component]) -> Component:
    """Any component of a kind: what it need not be told is as usual."""
    given: dict[str, Any] = {}
    for f in fields(kind):  # type: ignore[arg-type]
        usual = f.default is not MISSING or f.default_factory is not MISSING
        if usual and f.name not in FITTING:
            continue
        hint = get_type_hints(kind)[f.name]
        first = next(option for option in get_args(hint) or (hint,) if option is not Ellipsis)
        if hint is str:
            made = NAMES[f.name][0]
        elif NoneType in get_args(hint):
            made = None
        else:
            made = FITTING.get(f.name, SAMPLES.get(first)) or sample(first)
        given[f.name] = (made,) if get_origin(hint) is tuple else made
    return kind(**given)


def reordered(name: str, parts: tuple[Any, ...]) -> Iterator[Change]:
    """One fewer, one more, and neighbours exchanged with and without their tensors."""
    yield Change({name: parts[:-1]}, f"{name} without its last", {})
    yield Change({name: (*parts, parts[-1])}, f"{name} with its last twice", {})
    for i in range(len(parts) - 1):
        turned = (*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :])
        one, two = f"{name}.{i}", f"{name}.{i + 1}"
        yield Change({name: turned}, f"{one} and {two} exchanged", {one: two, two: one})
        if turned != parts:
            yield Change({name: turned}, f"{one} and {two} exchanged, their tensors not", {})


def renumbered(name: str, numbers: tuple[Any, ...]) -> Iterator[Change]:
    """One fewer, one more, each nudged, and different neighbours exchanged."""
    others = [numbers[:-1], (*numbers, numbers[-1])]
    for i, number in enumerate(numbers):
        others += [(*numbers[:i], near, *numbers[i + 1 :]) for near in nudged(name, number)]
        others += [(*numbers[:i], *numbers[i : i + 2][::-1], *numbers[i + 2 :])]
    yield from (Change({name: new}, f"{name} {numbers} -> {new}", {}) for new in others if new != numbers)


def rescaled(values: Mapping[str, Any]) -> Iterator[Change]:
    """Some whole numbers times a factor and the others divided by it: shapes that are products may stay."""
    whole = {name: value for name, value in values.items() if type(value) is int}
    for count in range(1, len(whole)):
        for chosen in combinations(whole, count):
            for factor in FACTORS:
                rest = [name for name in whole if name not in chosen]
                if all(whole[name] % factor == 0 for name in rest):
                    new = {n: v * factor if n in chosen else v // factor for n, v in whole.items()}
                    yield Change(new, f"{whole} -> {new}", {})


def exchanged(values: Mapping[str, Any], hints: Mapping[str, Any]) -> Iterator[Change]:
    """The parts in two fields that could each hold the other's, with their tensors: a norm in another place."""
    for one, two in combinations(values, 2):
        a, b = values[one], values[two]
        bare = isinstance(a, Component) and a == b and not a.tensors(1)  # nothing that could change its place
        apart = not bare and (isinstance(a, Component) or isinstance(b, Component))
        if apart and allows(hints[one], b) and allows(hints[two], a):
            yield Change({one: b, two: a}, f"{one} and {two} exchanged", {one: two, two: one})


def allows(hint: Any, value: Any) -> bool:
    return type(value) in (get_args(hint) or (hint,))


def brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return type(value).__name__ if isinstance(value, Component) else str(value)
