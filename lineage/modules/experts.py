"""Mixtures of experts. N tokens of the whole batch, D width, E experts, K chosen, G groups, F inner width."""

import contextlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.feed_forward import Activation
from lineage.modules.linear import linear, reads
from lineage.modules.registry import make, runs


@runs(c.Router)
class Router(nn.Module):
    """Logits [N, E], and the chosen experts' weights and numbers, [N, K] each (Shazeer et al. 2017, eq. 2 to 5)."""

    def __init__(self, spec: c.Router, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.experts, width))
        self.bias = nn.Parameter(torch.empty(spec.experts)) if spec.bias else None
        self.correction = nn.Parameter(torch.empty(spec.experts)) if spec.correction else None

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spec = self.spec
        if spec.exact:
            logits_NE = F.linear(_single(x_ND), _single(self.weight), None if self.bias is None else _single(self.bias))
        else:
            logits_NE = F.linear(x_ND, self.weight, self.bias)
        if spec.jitter is not None:
            weights_NK, chosen_NK = mix(logits_NE, spec.top_k, spec.jitter)
        else:
            exact_NE = _single(logits_NE)
            scores = {"softmax": lambda: exact_NE.softmax(-1), "sigmoid": exact_NE.sigmoid, "none": lambda: exact_NE}
            scores_NE = scores[spec.score]()
            chosen_NK = self._open(scores_NE).topk(spec.top_k, dim=-1).indices
            weights_NK = scores_NE.gather(-1, chosen_NK)
        if spec.normalise == "sum":
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + spec.eps)
        elif spec.normalise == "softmax":
            weights_NK = weights_NK.softmax(-1)
        elif spec.normalise == "sigmoid":
            weights_NK = weights_NK.sigmoid()
        weights_NK = weights_NK * spec.scale
        return logits_NE, weights_NK.to(x_ND.dtype) if spec.rounded else weights_NK, chosen_NK

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Router":
        """A router whose logits are in single precision keeps weights that are so when the model is rounded."""

        def kept(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            return tensor.to(made.device) if made.itemsize < 4 and tensor.dtype == torch.float32 else made

        return super()._apply(kept if self.spec.exact else fn, recurse)

    def _open(self, scores_NE: Tensor) -> Tensor:
        """What experts are chosen by: corrected scores, of the groups that are open."""
        groups = self.spec.groups
        by_NE = scores_NE if self.correction is None else scores_NE + self.correction
        if groups is None:
            return by_NE
        by_NGx = by_NE.unflatten(-1, (groups.count, -1))
        best_NG = by_NGx.topk(2, dim=-1).values.sum(-1) if groups.pair else by_NGx.amax(-1)
        closed_NG = torch.ones_like(best_NG, dtype=torch.bool).scatter(-1, best_NG.topk(groups.keep, -1).indices, False)
        return by_NGx.masked_fill(closed_NG[..., None], -torch.inf).flatten(-2)


def room(chosen_N1: Tensor, rows: int, spec: c.Router) -> Tensor:
    """Whether an expert still takes a token, [N, 1]: each has room for the first few of a row that choose it."""
    one_BTE = F.one_hot(chosen_N1.view(rows, -1), spec.experts)
    waiting_BT = (one_BTE.cumsum(1) * one_BTE).amax(-1)
    return (waiting_BT <= (spec.capacity or 0)).reshape(-1, 1)


def mix(logits_NE: Tensor, top_k: int, jitter: float) -> tuple[Tensor, Tensor]:
    """One expert after the other, each weighed by a softmax over those within 2 · jitter of the best that is left.

    The distance is measured against the larger of that best and a logit's own size (Liu et al. 2024, GRIN, §2).
    """
    left_NE, weights, chosen = logits_NE, [], []
    for _ in range(top_k):
        best_N1, expert_N1 = left_NE.max(-1, keepdim=True)
        far_NE = (best_N1 - logits_NE) / logits_NE.abs().clamp(min=best_N1) > 2 * jitter
        weights.append(left_NE.masked_fill(far_NE, -torch.inf).softmax(-1).gather(-1, expert_N1))
        chosen.append(expert_N1)
        left_NE = left_NE.scatter(-1, expert_N1, -torch.inf)
    return torch.cat(weights, -1), torch.cat(chosen, -1)


def _single(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


@contextlib.contextmanager
def routed(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within: the logits of every router of a model, [N, E] each, in the order in which they run."""
    found: list[Tensor] = []
    routers = [module for module in model.modules() if isinstance(module, Router)]
    hooks = [router.register_forward_hook(lambda _, args, output: found.append(output[0])) for router in routers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@runs(c.Experts)
class Experts(nn.Module):
    """The weighted sum of the chosen experts' results, each down(act(gate(x)) · up(x)); and what all tokens share."""

    def __init__(self, spec: c.Experts, width: int) -> None:
        super().__init__()
        self.spec = spec
        count = spec.router.experts
        self.router = make(spec.router, width)
        self.act = Activation(spec.activation)
        self.gate = nn.Parameter(torch.empty(count, spec.width, width)) if spec.gated else None
        self.up = nn.Parameter(torch.empty(count, spec.width, width))
        self.down = nn.Parameter(torch.empty(count, width, spec.width))
        self.gate_up: nn.Parameter | None = None  # in place of the two: see `fusing`
        self.gate_up_bias: nn.Parameter | None = None
        self.gate_bias = nn.Parameter(torch.empty(count, spec.width)) if spec.bias and spec.gated else None
        self.up_bias = nn.Parameter(torch.empty(count, spec.width)) if spec.bias else None
        self.down_bias = nn.Parameter(torch.empty(count, width)) if spec.bias else None
        self.shared = make(spec.shared, width) if spec.shared else None
        self.shared_gate = nn.Linear(width, 1, bias=False) if spec.shared_gate else None

    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        _, weights_NK, chosen_NK = self.router(x_ND)
        top_k = chosen_NK.shape[-1]
        if self.spec.router.capacity is not None:
            weights_NK = weights_NK * room(chosen_NK, x_BTD.shape[0], self.spec.router)
        expert_x, order_x = chosen_NK.flatten().sort(stable=True)
        rows_xD, weight_x1 = x_ND[order_x // top_k], weights_NK.flatten()[order_x, None]
        if self.spec.early:
            results_xD = self.each((rows_xD * weight_x1).to(x_ND.dtype), expert_x, x_BTD.shape[1])
        else:
            results_xD = (self.each(rows_xD, expert_x, x_BTD.shape[1]) * weight_x1).to(x_ND.dtype)
        back_x = torch.empty_like(order_x).scatter_(0, order_x, torch.arange(order_x.shape[0], device=order_x.device))
        out_BTD = results_xD[back_x].unflatten(0, (-1, top_k)).sum(1).view_as(x_BTD)
        if self.shared is None:
            return out_BTD
        shared_BTD: Tensor = self.shared(x_BTD)
        return out_BTD + (shared_BTD if self.shared_gate is None else self.shared_gate(x_BTD).sigmoid() * shared_BTD)

    def each(self, x_xD: Tensor, expert_x: Tensor, tokens: int) -> Tensor:
        """What every row becomes in its expert. expert_x: its number, ascending. tokens: of each text."""
        ends_E = torch.searchsorted(expert_x, torch.arange(self.down.shape[0], device=expert_x.device), right=True)

        def map_by(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
            y = grouped(x, weight, ends_E, tokens)
            return y if bias is None else y + bias[expert_x]  # in two steps: one kernel would round once

        clamp = self.spec.clamp
        if self.gate_up is not None:
            gate, up = map_by(self.gate_up, self.gate_up_bias, x_xD).chunk(2, -1)
        else:
            up = map_by(self.up, self.up_bias, x_xD)
            if self.gate is None:
                return map_by(self.down, self.down_bias, self.act(up))
            gate = map_by(self.gate, self.gate_bias, x_xD)
        if clamp is None:
            return map_by(self.down, self.down_bias, self.act(gate) * up)
        gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
        return map_by(self.down, self.down_bias, (up + 1) * (gate * torch.sigmoid(gate * clamp.slope)))


def grouped(x_xI: Tensor, weight_EOI: Tensor, ends_E: Tensor, tokens: int = 0) -> Tensor:
    """Every row by its own expert's matrix, [x, O]: in one product; no device waits to be told how rows are shared out.

    Rows are in the order of their experts, of which each ends where ends_E says. The kernel wants rows of whole 16
    bytes, and no double precision; a compiler knows it in bfloat16 alone. With one token
    of each text a CPU takes the experts that have any one by one, each a product that reads a large matrix.
    """
    if tokens == 1 and reads(x_xI[:, None], weight_EOI[0]):
        spans = enumerate(pairwise([0, *ends_E.tolist()]))
        return torch.cat([linear(x_xI[a:b, None], weight_EOI[expert]) for expert, (a, b) in spans if b > a])[:, 0]
    device = x_xI.device.type
    if torch.is_autocast_enabled(device):  # which does not know the kernel
        x_xI, weight_EOI = (one.to(torch.get_autocast_dtype(device)) for one in (x_xI, weight_EOI))
    known = x_xI.dtype == torch.bfloat16 or (x_xI.dtype != torch.float64 and not torch.compiler.is_compiling())
    if known and not any(size * x_xI.itemsize % 16 for size in weight_EOI.shape[1:]):
        return F.grouped_mm(x_xI, weight_EOI.transpose(-2, -1), offs=ends_E.int())
    return segments(x_xI, weight_EOI, ends_E)


@torch.library.custom_op("lineage::segments", mutates_args=())  # closed to a compiler, which cannot know the shares
def segments(x_xI: Tensor, weight_EOI: Tensor, ends_E: Tensor) -> Tensor:
    """The same, one expert after the other of those that have rows."""
    out_xO, start = x_xI.new_empty(len(x_xI), weight_EOI.shape[1]), 0
    for weight_OI, end in zip(weight_EOI, ends_E.tolist(), strict=True):
        torch.mm(x_xI[start:end], weight_OI.T, out=out_xO[start:end]) if end > start else None
        start = end
    return out_xO


@torch.library.custom_op("lineage::segment_products", mutates_args=())
def segment_products(left_xO: Tensor, right_xI: Tensor, ends_E: Tensor) -> Tensor:
    """Of every expert leftᵀ right over its rows, [E, O, I]: the gradient of its matrix."""
    out_EOI, start = left_xO.new_zeros(len(ends_E), left_xO.shape[1], right_xI.shape[1]), 0
    for one_OI, end in zip(out_EOI, ends_E.tolist(), strict=True):
        torch.mm(left_xO[start:end].T, right_xI[start:end], out=one_OI)
        start = end
    return out_EOI


def _gradients(context: Any, grad_xO: Tensor) -> tuple[Tensor, Tensor, None]:
    x_xI, weight_EOI, ends_E = context.saved_tensors
    grad_xO = grad_xO.contiguous()
    return segments(grad_xO, weight_EOI.mT, ends_E), segment_products(grad_xO, x_xI, ends_E), None


segments.register_fake(lambda x_xI, weight_EOI, ends_E: x_xI.new_empty(x_xI.shape[0], weight_EOI.shape[1]))
segment_products.register_fake(lambda left, right, ends: left.new_empty(ends.shape[0], left.shape[1], right.shape[1]))
segments.register_autograd(_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
