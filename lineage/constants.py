"""Buffers that files carry and no model needs, as constants; and numbers as a file's raw elements."""

from collections.abc import Callable, Mapping

import numpy as np

from lineage.components import Shape
from lineage.operations import Array

CONSTANTS: Mapping[str, Callable[[Shape], Array]] = {
    "lower triangle": lambda shape: np.broadcast_to(np.tril(np.ones(shape[-2:])), shape),
    "0, 1, 2, …": lambda shape: np.broadcast_to(np.arange(shape[-1]), shape),
    "-1e4": lambda shape: np.full(shape, -1e4),
    "-1e9": lambda shape: np.full(shape, -1e9),
}
"""Buffers that files carry and no model needs: their values follow from their shapes."""

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
        return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    if dtype not in NUMPY:
        return None
    kind = np.dtype(NUMPY[dtype])
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(kind)
    return cast.view(f"u{kind.itemsize}") if kind.kind == "f" or np.array_equal(cast, values) else None


def is_constant(name: str, raw: Array, dtype: str) -> bool:
    """Whether a stored tensor is exactly the named constant, bit for bit. raw: its elements as unsigned integers."""
    if raw.ndim < {"lower triangle": 2, "0, 1, 2, …": 1}.get(name, 0):
        return False
    constant = stored(CONSTANTS[name](raw.shape), dtype)
    return constant is not None and np.array_equal(raw, constant)
