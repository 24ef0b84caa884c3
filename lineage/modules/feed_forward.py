"""Feed-forward networks and their activations. D width, F inner width."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.linear import Linear
from lineage.modules.registry import runs


def gelu_new(x: Tensor) -> Tensor:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))) (Hendrycks & Gimpel 2016), rounded as in GPT-2's code."""
    if x.itemsize > 2:
        return gelu_tanh(x)
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_tanh(x: Tensor) -> Tensor:
    """The same function as one kernel."""
    return F.gelu(x, approximate="tanh")


def _gelu_cut(x: Tensor, constant: float) -> Tensor:
    """The same with √(2/π) as others wrote it down."""
    return 0.5 * x * (1.0 + torch.tanh(constant * x * (1.0 + 0.044715 * x * x)))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_new,
    "gelu_tanh": gelu_tanh,
    "gelu_fast": partial(_gelu_cut, constant=0.7978845608),
    "gelu_cut": partial(_gelu_cut, constant=0.79788456),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Activation(nn.Module):
    """A function of each number, as a module so that it has a path."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


@runs(c.FeedForward)
class FeedForward(nn.Module):
    """down(act(up(x))) (Vaswani et al. 2017, eq. 2), or down(act(gate(x)) · up(x)) (Shazeer 2020, eq. 6)."""

    def __init__(self, spec: c.FeedForward, width: int) -> None:
        super().__init__()
        self.gate = Linear(width, spec.width, bias=spec.bias) if spec.gated else None
        self.up = Linear(width, spec.width, bias=spec.bias)
        self.gate_up: Linear | None = None  # in place of these two: see `fusing`
        self.act = Activation(spec.activation)
        self.down = Linear(spec.width, width, bias=spec.bias)

    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        if self.gate_up is not None:
            gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, -1)
            return self.down(self.act(gate_BTF) * up_BTF)
        up_BTF = self.up(x_BTD)
        inner_BTF = self.act(up_BTF) if self.gate is None else self.act(self.gate(x_BTD)) * up_BTF
        out: Tensor = self.down(inner_BTF)
        return out
