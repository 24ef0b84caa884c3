"""Numbers of one floating-point type as those of another, rounded to nearest, ties to even."""

from lineage.checkpoint.safetensors import BITS
from lineage.constants import NUMPY, stored
from lineage.later import np
from lineage.operations import Array

CASTS = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
"""What a user calls a type -> safetensors' name of it."""
BLOCK = 1 << 16  # numbers that are cast at a time, within the processor's cache
EXACT = {("F16", "F32"), ("BF16", "F32")}


def rounds(old: str, new: str) -> bool:
    """Whether a cast between these types can change a number."""
    return old != new and (old, new) not in EXACT


def cast(raw: Array, old: str, new: str) -> Array:
    """Raw elements of one type as those of another. NaN stays NaN, infinity infinity.

    Double precision goes by way of single, as torch does it. Raises ValueError if a finite number would become
    infinite.
    """
    if old == new:
        return raw
    flat = np.ascontiguousarray(raw).reshape(-1)
    made = np.empty(flat.shape, f"<u{BITS[new] // 8}")
    for at in range(0, len(flat), BLOCK):
        made[at : at + BLOCK] = _cast(flat[at : at + BLOCK], old, new)
    return made.reshape(raw.shape)


def _cast(raw: Array, old: str, new: str) -> Array:
    values = (raw.astype("<u4") << 16).view("<f4") if old == "BF16" else raw.view(NUMPY[old])
    with np.errstate(invalid="ignore", over="ignore"):
        made = stored(values.astype("<f4", copy=False), new)
    assert made is not None, "a floating-point type"
    infinity, sign = {"BF16": (0x7F80, 0x8000), "F16": (0x7C00, 0x8000), "F32": (0x7F800000, 0x80000000)}[new]
    lost = ((made & (sign - 1)) == infinity) & np.isfinite(values)
    if lost.any():
        raise ValueError(f"{np.abs(values[lost]).max():.6g} is beyond what {new} holds")
    return made
