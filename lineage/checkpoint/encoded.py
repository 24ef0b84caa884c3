"""Tensors that a file holds encoded, presented as the ordinary ones that they tell, and decoded a slice at a time.

mxfp4 (OCP Microscaling Formats 1.0, §5.2 and 6.3): `NAME_blocks` [E, out, in/32, 16] of bytes, two e2m1 numbers in
each, the low half first, and `NAME_scales` [E, out, in/32], a byte s for 2^(s - 127), are told as NAME [E, in, out].
fp8 (DeepSeek-AI 2024, DeepSeek-V3, §3.3): `NAME` [out, in] in e4m3 and `NAME_scale_inv`, a factor for each block of
rows and columns, are told as NAME. Either comes out in bfloat16, as the reference stores it.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage.checkpoint.safetensors import BITS
from lineage.components import Shape
from lineage.constants import stored
from lineage.errors import TensorMismatch
from lineage.later import np
from lineage.operations import Array
from lineage.segments import Region
from lineage.values import Value

if TYPE_CHECKING:
    from lineage.checkpoint.weights import Stored

DEFAULT_BLOCK = (128, 128)
GREATEST = 252  # the byte of the largest scale with which every e2m1 number is within bfloat16


class Encoded(Value):
    """A tensor that others of the file tell. exact: decoding rounds nothing. even: blocks divide its rows and columns.

    parts: these others, by name; steps: how many of their rows make a slice; decode: a slice of each, as raw elements
    -> the raw elements of the tensor. It raises ValueError for what this type cannot hold. cuts: axes of the tensor
    along which a part of it can be decoded alone, and of its parts.
    """

    encoding: str
    exact: bool
    dtype: str
    shape: Shape
    parts: "Mapping[str, Stored]"
    steps: tuple[int, ...]
    decode: Callable[..., Array]
    even: bool = True
    cuts: tuple[tuple[int, int], ...] = ((0, 0),)

    @property
    def path(self) -> Path:
        return next(iter(self.parts.values())).path

    @property
    def size(self) -> int:
        return prod(self.shape) * BITS[self.dtype] // 8

    def region(self, region: Region, read: "Callable[[Stored, Region], Array]") -> Array:
        """A part of the tensor, of which no more is decoded than its cuts need. read: a part of a stored tensor."""
        wanted, spans = list(region), {}
        for axis, at in self.cuts:
            step = self.steps[0] if at == 0 else 1
            first, last = region[axis].start // step, -(-region[axis].stop // step)
            spans[at] = first, last
            wanted[axis] = slice(region[axis].start - first * step, region[axis].stop - first * step)
        rows = []
        for part, step in zip(self.parts.values(), self.steps, strict=True):
            full = [slice(0, size) for size in part.shape]
            for at, (first, last) in spans.items():
                unit = step if at == 0 else 1
                full[at] = slice(first * unit, min(last * unit, part.shape[at]))
            rows.append(read(part, tuple(full)))
        return self.decode(*rows)[tuple(wanted)]


def present(tensors: "Mapping[str, Stored]", storage: Mapping[str, Any]) -> "dict[str, Stored | Encoded]":
    """The tensors, with encoded ones in place of their parts. storage: the config's word for it, already understood.

    Raises TensorMismatch for parts that do not fit each other. Parts without the others stay as they are, and are
    nobody's: the plan refuses them.
    """
    found = _mxfp4(tensors) if storage["quant_method"] == "mxfp4" else _fp8(tensors, storage)
    made: dict[str, Encoded] = {}
    problems = []
    for name, what in found:
        if isinstance(what, str):
            problems.append(what)
        else:
            made[name] = what
    if problems:
        raise TensorMismatch("encoded tensors do not fit each other", facts=problems, context={"problems": problems})
    used = {part for what in made.values() for part in what.parts}
    return {name: entry for name, entry in tensors.items() if name not in used} | made


def _mxfp4(tensors: "Mapping[str, Stored]") -> Iterator[tuple[str, Encoded | str]]:
    for name, blocks in tensors.items():
        base = name.removesuffix("_blocks")
        if base == name or f"{base}_scales" not in tensors:
            continue
        scales = tensors[f"{base}_scales"]
        whole = blocks.dtype == scales.dtype == "U8" and len(blocks.shape) == 4 and 0 not in blocks.shape
        if base in tensors:
            yield base, f"{base} is there, and told by {name} too"
        elif not whole or blocks.shape[-1] != 16 or scales.shape != blocks.shape[:-1]:
            yield base, f"{_said(name, blocks)} and {_said(f'{base}_scales', scales)}; expected bytes, 16 to a scale"
        else:
            experts, out, groups, _ = blocks.shape
            parts = {name: blocks, f"{base}_scales": scales}
            yield (
                base,
                Encoded(
                    "mxfp4", True, "BF16", (experts, groups * 32, out), parts, (1, 1), _unpacked, cuts=((0, 0), (2, 1))
                ),
            )


def _said(name: str, entry: "Stored") -> str:
    return f"{name[:200]} {entry.dtype} {list(entry.shape)}"


@cache
def _pairs() -> Array:
    """[scale, byte] -> the two elements of the byte, as one number of twice the width, the low half first."""
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    halves = np.concatenate([levels, -levels])[np.arange(256)[:, None] >> np.array([0, 4]) & 15]
    values = np.ldexp(halves, np.arange(GREATEST + 1)[:, None, None] - 127)
    return (values.view(np.uint32) >> 16).astype("<u2").view("<u4")[..., 0]  # two bits of mantissa: nothing is cut off


def _unpacked(blocks_EOGK: Array, scales_EOG: Array) -> Array:
    if scales_EOG.max() > GREATEST:
        raise ValueError(f"a scale of 2^{scales_EOG.max() - 127}, beyond what bfloat16 holds")
    pairs_EOGK = _pairs()[scales_EOG[..., None], blocks_EOGK]
    return pairs_EOGK.view("<u2").reshape(*scales_EOG.shape[:-1], -1).swapaxes(-1, -2)


def _fp8(tensors: "Mapping[str, Stored]", storage: Mapping[str, Any]) -> Iterator[tuple[str, Encoded | str]]:
    high, wide = storage.get("weight_block_size", DEFAULT_BLOCK)
    for name, scales in tensors.items():
        base = name.removesuffix("_scale_inv")
        if base == name or base not in tensors or tensors[base].dtype != "F8_E4M3":
            continue
        weight = tensors[base]
        flat = len(weight.shape) == 2 and 0 not in weight.shape
        if not flat or scales.shape != (-(-weight.shape[0] // high), -(-weight.shape[1] // wide)):
            yield base, f"{_said(base, weight)} and {_said(name, scales)}; expected a scale for each {high} x {wide}"
        elif scales.dtype not in ("F32", "BF16"):
            yield base, f"{_said(name, scales)}; expected F32 or BF16"
        else:
            decode, parts = _scaled(scales.dtype, high, wide), {base: weight, name: scales}
            even = not (weight.shape[0] % high or weight.shape[1] % wide)
            yield base, Encoded(f"fp8 {high}x{wide}", False, "BF16", weight.shape, parts, (high, 1), decode, even)


@cache
def _e4m3() -> Array:
    """code -> number (Micikevicius et al. 2022, FP8 formats, table 1): no infinity, and one NaN of either sign."""
    code = np.arange(128)
    power, rest = code >> 3, code & 7
    half = np.ldexp(np.where(power > 0, 8 + rest, rest), np.maximum(power, 1) - 10).astype(np.float32)
    half[127] = np.nan
    return np.concatenate([half, -half])


def _scaled(dtype: str, high: int, wide: int) -> Callable[[Array, Array], Array]:
    """Each block's 256 possible results are computed, and looked up."""

    def decode(codes_OI: Array, scales_SJ: Array) -> Array:
        bits = scales_SJ.astype("<u4") << (16 if dtype == "BF16" else 0)
        with np.errstate(over="ignore", invalid="ignore"):
            values_SJC = _e4m3() * bits.view("<f4")[..., None]
        rounded_SJC = stored(values_SJC, "BF16")
        assert rounded_SJC is not None
        rows, columns = (np.arange(count) // size for count, size in zip(codes_OI.shape, (high, wide), strict=True))
        return rounded_SJC[rows[:, None], columns, codes_OI]

    return decode
