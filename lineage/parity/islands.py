"""Lifts the reference's single-precision islands, so that "double precision" means it.

Many reference models cast to fp32 inside norms, softmax and rotations whatever dtype they were loaded in; in double
precision this leaves a floor of 5e-6, as high as some bugs. Under `lifted` nothing is made in or cast to single
precision: what asks for it gets doubles.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Lifted(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        if func is torch.empty:  # what a checkpoint's reader fills must be of the file's type
            return func(*args, **(kwargs or {}))
        args = tuple(_double(arg) for arg in args)
        return func(*args, **{name: _double(value) for name, value in (kwargs or {}).items()})


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Within: single precision is double (casts, factories, softmax's dtype); load and run the reference so."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what a whole number times a Python float becomes
    try:
        with _Lifted():
            yield
    finally:
        torch.set_default_dtype(before)
