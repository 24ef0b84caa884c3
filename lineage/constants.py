"""Buffers that files carry and no model needs, as constants; and numbers as a file's raw elements."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lineage.components import Shape
from lineage.operations import Array

if TYPE_CHECKING:
    import numpy as np
else:
    from lineage.later import np

CONSTANTS: Mapping[str, Callable[[Shape], Array]] = {
    "lower triangle": lambda shape: np.broadcast_to(np.tril(np.ones(shape[-2:])), shape),
    "0, 1, 2, …": lambda shape: np.broadcast_to(np.arange(shape[-1]), shape),
    "-1e4": lambda shape: np.full(shape, -1e4),
    "-1e9": lambda shape: np.full(shape, -1e9),
    "sines, then cosines": lambda shape: _waves(*shape),
}
"""Buffers that files carry and no model needs: their values follow from their shapes."""


def _waves(count: int, width: int) -> Array:
    """Sines of positions 0, 1, … and behind them their cosines, in single precision (Vaswani et al. 2017, §3.5)."""
    powers = np.array([2 * (channel // 2) / width for channel in range(width)])
    angles = np.arange(count)[:, None] / np.power(10000, powers)
    both = (np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2]))
    return np.concatenate(both, 1).astype(np.float32)


NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


def stored(values: Array, dtype: str) -> Array | None:
    """Numbers as raw elements (unsigned integers of the type's width), floats rounded to the nearest, ties to even.

    dtype: safetensors' name of a type. None if the type does not hold them.
    """
    if dtype == "BF16":
        wide = values.astype(np.float32).view(np.uint32)
        rounded = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    if dtype not in NUMPY:
        return None
    kind = np.dtype(NUMPY[dtype])
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(kind)
    return cast.view(f"u{kind.itemsize}") if kind.kind == "f" or np.array_equal(cast, values) else None


def is_constant(name: str, raw: Array, dtype: str) -> bool:
    """Whether a stored tensor is exactly the named constant, bit for bit. raw: its elements as unsigned integers.

    Numbers of single precision that a narrower type would round are not that constant in it.
    """
    if raw.ndim < {"lower triangle": 2, "0, 1, 2, …": 1}.get(name, 0):
        return False
    if name == "sines, then cosines" and (raw.ndim != 2 or dtype not in ("F32", "F64")):
        return False
    constant = stored(CONSTANTS[name](raw.shape), dtype)
    return constant is not None and np.array_equal(raw, constant)
