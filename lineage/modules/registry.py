"""Which module runs which component: a registry, so that the core never learns a family's name.

A module is made from its component and the width it works on. Its attributes are named as the component's fields, so
that one path names a part in the spec, at run time and in the tensors' names.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from lineage.components import Component
from lineage.errors import ArchitectureError

Made = TypeVar("Made", bound=nn.Module)
_RUNS: dict[type[Component], Callable[..., nn.Module]] = {}


def runs(component: type[Component]) -> Callable[[type[Made]], type[Made]]:
    """Declare the module that runs a component: its constructor takes the component and a width."""

    def declare(module: type[Made]) -> type[Made]:
        _RUNS[component] = module
        return module

    return declare


def make(component: Component, width: int) -> nn.Module:
    """The module of a component. Raises ArchitectureError if no module runs it."""
    if type(component) not in _RUNS:
        raise ArchitectureError(
            f"no module runs the component {type(component).__name__}", hint="declare it with @runs"
        )
    return _RUNS[type(component)](component, width)


def make_or_pass(component: Component | None, width: int) -> nn.Module:
    """The module of an optional component: an empty slot passes its input on."""
    return nn.Identity() if component is None else make(component, width)
