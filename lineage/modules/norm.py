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
