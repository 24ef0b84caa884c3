"""Rotary positions. B batch, T tokens, H heads, W width of a head, P pairs of channels."""

import torch
from torch import Tensor

from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.scaling import scaled


def turn(x_BHTW: Tensor, table: tuple[Tensor, Tensor], spec: c.Rotary) -> Tensor:
    """Turn the first channels of each head by the table's angles (Su et al. 2021, eq. 34)."""
    cos_BTP, sin_BTP = (part[:, None] for part in table)
    turned, rest = x_BHTW[..., : spec.width].to(cos_BTP.dtype), x_BHTW[..., spec.width :]
    halves = spec.pairing == "halves"
    a, b = turned.chunk(2, -1) if halves else (turned[..., 0::2], turned[..., 1::2])
    pair = (a * cos_BTP - b * sin_BTP, b * cos_BTP + a * sin_BTP)
    joined = (torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)).to(x_BHTW.dtype)
    return torch.cat([joined, rest], -1) if rest.shape[-1] else joined


def table(spec: c.Rotary, positions_BT: Tensor, dtype: torch.dtype, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, T, P]: computed in single precision at least, then rounded as the spec says.

    length: of the text up to the last of them, in tokens. Raises UsageError for more than there are angles.
    """
    if spec.length is not None and length > spec.length:
        raise UsageError(f"{length} tokens, and {spec.length} places have an angle")
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.autocast(positions_BT.device.type, enabled=False):
        powers_P = torch.arange(0, spec.width, 2, dtype=exact) / spec.width
        frequencies_P, factor = 1.0 / spec.theta**powers_P, 1.0
        if spec.scaling is not None:
            frequencies_P, factor = scaled(spec, spec.scaling, powers_P, length)
        angles_BTP = positions_BT[..., None].to(exact) * frequencies_P.to(positions_BT.device)
        both = (angles_BTP.cos() * factor, angles_BTP.sin() * factor)
        cos_BTP, sin_BTP = both if spec.rounded == "result" else (part.to(dtype) for part in both)
        return (cos_BTP, sin_BTP) if spec.rounded == "table" else (cos_BTP.to(exact), sin_BTP.to(exact))
