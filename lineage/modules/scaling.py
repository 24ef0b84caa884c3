"""Frequencies of rotary positions, stretched for longer texts. P pairs of channels."""

import math

import torch
from torch import Tensor

from lineage import components as c


def scaled(spec: c.Rotary, scaling: c.Scaling, powers_P: Tensor, length: int) -> tuple[Tensor, float]:
    """Radians a position for each pair, and what cosines and sines are multiplied by.

    powers_P: of theta, whose inverse the plain frequencies are. length: of the text.
    """
    plain_P = 1.0 / spec.theta**powers_P
    if isinstance(scaling, c.Linear):
        return plain_P / scaling.factor, 1.0
    if isinstance(scaling, c.Dynamic):
        stretch = scaling.factor * max(length, scaling.length) / scaling.length - (scaling.factor - 1)
        theta = spec.theta * stretch ** (spec.width / (spec.width - 2))
        return 1.0 / theta**powers_P, 1.0
    if isinstance(scaling, c.LongRope):
        longer = length > scaling.length
        factors_P = torch.tensor(scaling.long if longer else scaling.short, dtype=powers_P.dtype)
        return 1.0 / (factors_P * spec.theta**powers_P), scaling.long_attention if longer else scaling.attention
    if isinstance(scaling, c.Banded):
        return _banded(plain_P, scaling), 1.0
    return _yarn(spec, scaling, powers_P)


def _banded(plain_P: Tensor, scaling: c.Banded) -> Tensor:
    waves_P = 2 * math.pi / plain_P
    blend_P = (scaling.length / waves_P - scaling.low) / (scaling.high - scaling.low)
    slow_P = plain_P / scaling.factor
    mixed_P = (1 - blend_P) * slow_P + blend_P * plain_P
    outer_P = torch.where(waves_P > scaling.length / scaling.low, slow_P, plain_P)
    between_P = (waves_P <= scaling.length / scaling.low) & (waves_P >= scaling.length / scaling.high)
    return torch.where(between_P, mixed_P, outer_P)


def _yarn(spec: c.Rotary, scaling: c.Yarn, powers_P: Tensor) -> tuple[Tensor, float]:
    def place(turns: float) -> float:
        """The channel whose wave makes this many turns within the original length (Peng et al. 2023, eq. 17)."""
        return spec.width * math.log(scaling.length / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = place(scaling.fast), place(scaling.slow)
    if scaling.whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.width - 1)
    ramp_P = (torch.arange(spec.width // 2, dtype=powers_P.dtype) - low) / (high - low or 0.001)
    kept_P = 1 - ramp_P.clamp(0, 1)
    plain_P, stretched_P = 1.0 / spec.theta**powers_P, 1.0 / (scaling.factor * spec.theta**powers_P)
    usual = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    factor = usual if scaling.attention is None else scaling.attention
    return stretched_P * (1 - kept_P) + plain_P * kept_P, factor
