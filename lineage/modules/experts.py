"""Mixtures of experts. N tokens of the whole batch, D width, E experts, K chosen, F inner width."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.feed_forward import Activation
from lineage.modules.registry import make, runs


@runs(c.Router)
class Router(nn.Module):
    """Logits [N, E], and the chosen experts' weights and numbers, [N, K] each (Shazeer et al. 2017, eq. 2 to 5)."""

    def __init__(self, spec: c.Router, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.experts, width))

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE = F.linear(x_ND, self.weight)
        exact = logits_NE if logits_NE.dtype == torch.float64 else logits_NE.float()
        scores = {"softmax": lambda: exact.softmax(-1), "sigmoid": exact.sigmoid, "none": lambda: exact}
        weights_NK, chosen_NK = scores[self.spec.score]().topk(self.spec.top_k, dim=-1)
        if self.spec.normalise == "sum":
            weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        elif self.spec.normalise == "softmax":
            weights_NK = weights_NK.softmax(-1)
        return logits_NE, weights_NK.to(x_ND.dtype) if self.spec.rounded else weights_NK, chosen_NK


@runs(c.Experts)
class Experts(nn.Module):
    """The weighted sum of the chosen experts' results, each down(act(gate(x)) · up(x))."""

    def __init__(self, spec: c.Experts, width: int) -> None:
        super().__init__()
        count = spec.router.experts
        self.router = make(spec.router, width)
        self.act = Activation(spec.activation)
        self.gate = nn.Parameter(torch.empty(count, spec.width, width))
        self.up = nn.Parameter(torch.empty(count, spec.width, width))
        self.down = nn.Parameter(torch.empty(count, width, spec.width))

    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        _, weights_NK, chosen_NK = self.router(x_ND)
        out_ND = torch.zeros_like(x_ND)
        for expert in range(self.gate.shape[0]):
            token, place = torch.where(chosen_NK == expert)
            inner = self.act(F.linear(x_ND[token], self.gate[expert])) * F.linear(x_ND[token], self.up[expert])
            result = F.linear(inner, self.down[expert]) * weights_NK[token, place, None]
            out_ND.index_add_(0, token, result.to(out_ND.dtype))
        return out_ND.view_as(x_BTD)
