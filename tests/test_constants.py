"""Constants that files carry are known to the bit, in every type that holds them."""

import numpy as np
import pytest
import torch

from lineage.components import Shape
from lineage.constants import CONSTANTS, NUMPY, is_constant
from lineage.operations import Array

VALUES = {"lower triangle": (2, 1, 5, 5), "0, 1, 2, …": (1, 40), "-1e4": (), "-1e9": (), "sines, then cosines": (6, 5)}
HELD = [
    (name, dtype)
    for name in CONSTANTS
    for dtype in [*NUMPY, "BF16"]
    if name != "-1e4" or dtype in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16")
    if name != "-1e9" or dtype in ("F64", "F32", "F16", "BF16", "I64", "I32")
    if name != "0, 1, 2, …" or dtype != "BOOL"
    if name != "sines, then cosines" or dtype in ("F64", "F32")
]


def raw_of(name: str, dtype: str, shape: Shape) -> Array:
    """A constant as a file holds it, by torch's own rounding."""
    kinds = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"}
    kind = kinds.get(dtype) or dtype.replace("I", "int").replace("U", "uint")
    values = torch.from_numpy(np.array(CONSTANTS[name](shape)))
    tensor = values.to(getattr(torch, kind)).contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().view(f"<u{tensor.element_size()}").reshape(shape)


@pytest.mark.parametrize(("name", "dtype"), HELD)
def test_constant_is_known_and_a_changed_element_noticed(name: str, dtype: str) -> None:
    raw = raw_of(name, dtype, VALUES[name])
    assert is_constant(name, raw, dtype)
    for place in range(raw.size):
        changed = raw.copy()
        changed.reshape(-1)[place] ^= 1 if dtype != "BOOL" else 2
        assert not is_constant(name, changed, dtype)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_constant_may_be_rounded(dtype: str) -> None:
    raw = raw_of("0, 1, 2, …", dtype, (4000,))
    assert len(set(raw.tolist())) < 4000
    assert is_constant("0, 1, 2, …", raw, dtype)


def test_constant_is_equal_to_the_bit() -> None:
    triangle = np.tril(np.ones((3, 3), dtype="<f4"))
    triangle[0, 2] = -0.0
    assert not is_constant("lower triangle", triangle.view("<u4"), "F32")


@pytest.mark.parametrize(
    ("name", "raw", "dtype"),
    [
        ("lower triangle", np.ones(4, dtype="u1"), "U8"),
        ("0, 1, 2, …", np.zeros((), dtype="<u8"), "I64"),
        ("-1e4", np.full((), 240, dtype="u1"), "I8"),
        ("0, 1, 2, …", np.arange(300).astype("u1"), "U8"),
        ("0, 1, 2, …", np.zeros(1, dtype="u1"), "F8_E4M3"),
        ("-1e4", np.zeros((), dtype="<u8"), "C64"),
        ("sines, then cosines", np.zeros((1, 1), dtype="<u2"), "F16"),
        ("sines, then cosines", np.zeros(1, dtype="<u4"), "F32"),
    ],
)
def test_what_cannot_be_the_constant_is_not(name: str, raw: Array, dtype: str) -> None:
    assert not is_constant(name, raw, dtype)
