"""Frozen values are what frozen dataclasses are, compared with real ones."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pytest

from lineage.values import Value


class Ours(Value):
    a: int
    b: str = "x"
    c: dict[str, int] = field(default_factory=dict)

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


class More(Ours):
    d: tuple[int, ...] = ()


class Named(Value, kw_only=True):
    a: int
    b: int = 2


@dataclass(frozen=True)
class Theirs:
    a: int
    b: str = "x"
    c: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TheirMore(Theirs):
    d: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TheirNamed:
    a: int
    b: int = 2


PAIRS = [(Ours, Theirs), (More, TheirMore), (Named, TheirNamed)]
CALLS: list[Callable[[Any], Any]] = [
    lambda kind: kind(1),
    lambda kind: kind(a=1),
    lambda kind: kind(b="y", a=1),
    lambda kind: kind(1, "y"),
    lambda kind: kind(1, "y", {"z": 1}, (2,)),
    lambda kind: kind(1, "y", {"z": 1}, (2,), 3),
    lambda kind: kind(1, d=(3,)),
    lambda kind: kind(),
    lambda kind: kind(b="y"),
    lambda kind: kind(1, a=1),
    lambda kind: kind(1, "y", b="z"),
    lambda kind: kind(1, e=5),
    lambda kind: kind(1, None),
    lambda kind: replace(kind(a=1), b="new"),
    lambda kind: replace(kind(a=1), e="new"),
]


def outcome(call: Callable[[Any], Any], kind: Any) -> Any:
    try:
        made = call(kind)
    except TypeError:
        return TypeError
    return asdict(made), list(vars(made)), repr(made).partition("(")[2]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("call", CALLS)
def test_made_as_a_dataclass_is(call: Callable[[Any], Any], ours: Any, theirs: Any) -> None:
    assert outcome(call, ours) == outcome(call, theirs)
    assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]


@pytest.mark.parametrize(
    ("arguments", "named", "told"),
    [((), {}, "Ours lacks a"), ((1, "y", {}, 4), {}, "takes 3 values by place, not 4"), ((1,), {"a": 2}, "twice: a"),
     ((1,), {"e": 2}, "has no field e")],
)  # fmt: skip
def test_what_is_wrong_is_said(arguments: tuple[Any, ...], named: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Ours(*arguments, **named)


def test_equal_by_class_and_fields() -> None:
    one, same = More(1, d=(2,)), More(d=(2,), a=1)
    assert one == same != More(1, d=(3,))
    assert one.twice == 2  # what is kept beside the fields changes neither equality nor hash
    assert one == same
    assert Ours(1) != More(1)
    assert Ours(1) != Theirs(1)
    assert hash(Named(a=1)) == hash(Named(b=2, a=1)) != hash(Named(a=2))
    with pytest.raises(TypeError, match="unhashable"):  # as its field is
        hash(one)


def test_each_makes_its_own() -> None:
    assert Ours(1).c is not Ours(1).c


def test_frozen() -> None:
    one = Ours(1)
    for change in (lambda: setattr(one, "a", 2), lambda: setattr(one, "new", 2), lambda: delattr(one, "a")):
        with pytest.raises(FrozenInstanceError):
            change()
    assert one == Ours(1)


def test_copied_and_pickled() -> None:
    one = Named(a=1)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
