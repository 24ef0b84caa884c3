"""Norms. D: the width that is normalised, H: heads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.registry import runs


@runs(c.LayerNorm)
class LayerNorm(nn.Module):
    """(x - mean) / √(variance + eps) · weight + bias over the last axis (Ba et al. 2016, eq. 4)."""

    def __init__(self, spec: c.LayerNorm, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        shape = (width,) if spec.tables is None else (spec.tables, width)
        self.weight = nn.Parameter(torch.ones(shape)) if spec.weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if spec.bias else None

    def forward(self, x_xD: Tensor) -> Tensor:
        if self.spec.tables is None and not self.spec.exact:
            return F.layer_norm(x_xD, (self.width,), self.weight, self.bias, self.spec.eps)
        exact_xD = x_xD if x_xD.dtype == torch.float64 else x_xD.float()
        normed_xD = F.layer_norm(exact_xD, (self.width,), eps=self.spec.eps)
        weighed_xD = normed_xD if self.weight is None else normed_xD * self.weight
        return (weighed_xD if self.bias is None else weighed_xD + self.bias).to(x_xD.dtype)


@runs(c.RMSNorm)
class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight over the last axis (Zhang & Sennrich 2019, eq. 4), in fp32 until it is rounded."""

    def __init__(self, spec: c.RMSNorm, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.ones(width)) if spec.weight else None

    def forward(self, x_xD: Tensor) -> Tensor:
        if x_xD.dtype in (torch.float32, torch.float64) and not self.spec.plus_one:  # nothing is rounded in between
            return F.rms_norm(x_xD, x_xD.shape[-1:], self.weight, self.spec.eps)
        exact = x_xD if x_xD.dtype == torch.float64 else x_xD.float()
        scaled = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.spec.eps)
        if self.weight is None:
            return scaled.to(x_xD.dtype)
        weight = 1.0 + self.weight.to(exact.dtype) if self.spec.plus_one else self.weight
        return (
            (weight * scaled).to(x_xD.dtype) if self.spec.late else weight.to(self.weight.dtype) * scaled.to(x_xD.dtype)
        )
