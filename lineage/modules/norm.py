"""Norms. D: the width that is normalised."""

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
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if spec.bias else None

    def forward(self, x_xD: Tensor) -> Tensor:
        return F.layer_norm(x_xD, self.weight.shape, self.weight, self.bias, self.eps)


@runs(c.RMSNorm)
class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight over the last axis (Zhang & Sennrich 2019, eq. 4), in fp32 until it is rounded."""

    def __init__(self, spec: c.RMSNorm, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_xD: Tensor) -> Tensor:
        exact = x_xD if x_xD.dtype == torch.float64 else x_xD.float()
        scaled = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.spec.eps)
        weight = 1.0 + self.weight.to(exact.dtype) if self.spec.plus_one else self.weight
        return (
            (weight * scaled).to(x_xD.dtype) if self.spec.late else weight.to(self.weight.dtype) * scaled.to(x_xD.dtype)
        )
