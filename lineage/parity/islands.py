"""Lifts the reference's single-precision islands, so that "double precision" means it.

Many reference models cast to fp32 inside norms, softmax and rotations whatever dtype they were loaded in; in double
precision this leaves a floor of 5e-6, as high as some bugs. Under `lifted`, such a cast of a double keeps the double.
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
        kwargs = kwargs or {}
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            args = (args[0], *(_double(arg) for arg in args[1:]))
            kwargs = {name: _double(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Within: a cast of a double to single precision (float, to, softmax's dtype) does nothing."""
    with _Lifted():
        yield
