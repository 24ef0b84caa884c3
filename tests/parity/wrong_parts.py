"""Norms, feed-forward networks, experts and blocks as a hasty port does them. See `wrong`.

B batch, T tokens, N of them in a row, D width, E experts, K of them chosen.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage.modules.block import Block, Residual
from lineage.modules.context import Context
from lineage.modules.experts import Experts, Router
from lineage.modules.feed_forward import FeedForward
from lineage.modules.norm import LayerNorm, RMSNorm

SLOTS = ("norm_input", "norm_branch", "norm_sum")


def affine(norm: LayerNorm, x_xD: Tensor) -> Tensor:
    """What follows the division."""
    return x_xD * norm.weight + (0 if norm.bias is None else norm.bias)


class UnbiasedVariance(LayerNorm):
    """torch's std divides by D - 1."""

    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD - x_xD.mean(-1, keepdim=True)
        return affine(self, apart / (x_xD.var(-1, keepdim=True) + self.spec.eps).sqrt())


class EpsOutsideRoot(LayerNorm):
    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD - x_xD.mean(-1, keepdim=True)
        return affine(self, apart / (x_xD.var(-1, keepdim=True, correction=0).sqrt() + self.spec.eps))


class MeanKept(LayerNorm):
    """RMSNorm for LayerNorm."""

    def forward(self, x_xD: Tensor) -> Tensor:
        return affine(self, x_xD * (x_xD.pow(2).mean(-1, keepdim=True) + self.spec.eps).rsqrt())


class OnePlusWeight(LayerNorm):
    def forward(self, x_xD: Tensor) -> Tensor:
        return F.layer_norm(x_xD, self.weight.shape, 1 + self.weight, self.bias, self.spec.eps)


class FirstTableForAll(LayerNorm):
    """One head's weights in every head."""

    def forward(self, x_xHD: Tensor) -> Tensor:
        return F.layer_norm(x_xHD, (self.width,), eps=self.spec.eps) * self.weight[0]


class NormsEachHead(RMSNorm):
    """Each head by its own mean square, where all heads are one vector. Set `heads` before the first call."""

    heads: int

    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD.unflatten(-1, (self.heads, -1))
        return (apart * torch.rsqrt(apart.pow(2).mean(-1, keepdim=True) + self.spec.eps)).flatten(-2) * self.weight


class ClipsFirst(RMSNorm):
    """The clip that belongs behind the norm. Set `clip` before the first call."""

    clip: float

    def forward(self, x_xD: Tensor) -> Tensor:
        return super().forward(x_xD.clamp(-self.clip, self.clip))


class MeanRemoved(RMSNorm):
    """LayerNorm for RMSNorm."""

    def forward(self, x_xD: Tensor) -> Tensor:
        return super().forward(x_xD - x_xD.mean(-1, keepdim=True))


class RootOfSum(RMSNorm):
    """The sum of squares for their mean."""

    def forward(self, x_xD: Tensor) -> Tensor:
        return super().forward(x_xD) * x_xD.shape[-1] ** -0.5


class ActsOnUp(FeedForward):
    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        return self.down(self.gate(x_BTD) * self.act(self.up(x_BTD)))


class GateLeftOut(FeedForward):
    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        return self.down(self.act(self.gate(x_BTD)))


class SigmoidScores(Router):
    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE = F.linear(x_ND, self.weight, self.bias)
        weights_NK, chosen_NK = logits_NE.sigmoid().topk(self.spec.top_k, dim=-1)
        return logits_NE, weights_NK / weights_NK.sum(-1, keepdim=True), chosen_NK


class EvenWeights(Router):
    """Each chosen expert counts the same."""

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE, weights_NK, chosen_NK = super().forward(x_ND)
        return logits_NE, torch.full_like(weights_NK, 1 / self.spec.top_k), chosen_NK


class WeighsCorrected(Router):
    """The correction is in the weights too, and not in the choice alone."""

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE, _, chosen_NK = super().forward(x_ND)
        weights_NK = (logits_NE.sigmoid() + self.correction).gather(-1, chosen_NK)
        if self.spec.normalise == "sum":
            weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        return logits_NE, weights_NK * self.spec.scale, chosen_NK


class WeighsAmongAll(Router):
    """The mixer's experts each weighed among all that are left, however far below the best."""

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE, _, chosen_NK = super().forward(x_ND)
        left_NE, weights = logits_NE, []
        for number_N1 in chosen_NK.split(1, -1):
            weights.append(left_NE.softmax(-1).gather(-1, number_N1))
            left_NE = left_NE.scatter(-1, number_N1, -torch.inf)
        return logits_NE, torch.cat(weights, -1), chosen_NK


class GateWithoutSigmoid(Experts):
    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        gate, self.shared_gate = self.shared_gate, None
        try:
            routed_BTD = super().forward(x_BTD) - self.shared(x_BTD)
        finally:
            self.shared_gate = gate
        return routed_BTD + gate(x_BTD) * self.shared(x_BTD)


class WeighsLate(Experts):
    """What leaves an expert is weighed, and not what enters it."""

    def forward(self, x_BTD: Tensor, context: object = None) -> Tensor:
        spec = self.spec
        self.spec = replace(spec, early=not spec.early)
        try:
            return super().forward(x_BTD)
        finally:
            self.spec = spec


class UpWithoutOne(Experts):
    """A clamped gate times up, and not times up + 1."""

    def each(self, x_xD: Tensor, expert_x: Tensor, tokens: int) -> Tensor:
        bias = self.up_bias
        self.up_bias = nn.Parameter(bias - 1)
        try:
            return super().each(x_xD, expert_x, tokens)
        finally:
            self.up_bias = bias


class NoResidual(Residual):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.norm_sum(self.branch(x_BTD, context))


class AddsNormed(Residual):
    """The branch added to its normed input (a residual after the norm, as BLOOM may have it)."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        normed_BTD = self.norm_input(x_BTD)
        return self.norm_sum(normed_BTD + self.branch(normed_BTD, context))


class OtherOrder(Block):
    """Both branches on the block's input as in GPT-J, where they follow each other; or the reverse."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        if self.parallel:
            x_BTD = x_BTD + self.branch(self.attention, x_BTD, context)
            return x_BTD + self.branch(self.mlp, x_BTD, context)
        return self.attention(x_BTD, context) + self.mlp(x_BTD, context) - x_BTD

    def branch(self, one: Residual, x_BTD: Tensor, context: Context) -> Tensor:
        return one.branch(one.norm_input(self.norm_input(x_BTD)), context)


class SharedNormTwice(Block):
    """Each branch norms again what the norm of both has normed."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        read_BTD = self.norm_input(self.norm_input(x_BTD))
        return x_BTD + self.attention.branch(read_BTD, context) + self.mlp.branch(read_BTD, context)


class MlpWithoutNorm(Block):
    """The norm of both branches is read by attention alone."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        first_BTD = self.attention.branch(self.norm_input(x_BTD), context)
        return x_BTD + first_BTD + self.mlp.branch(x_BTD, context)


class NoCross(Block):
    """The encoder is not listened to."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.mlp(self.attention(x_BTD, context), context)


class CrossFirst(Block):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.mlp(self.attention(self.cross(x_BTD, context), context), context)


class NoStream(OtherOrder):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.branch(self.attention, x_BTD, context) + self.branch(self.mlp, x_BTD, context)


class MlpFirst(Block):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.attention(self.mlp(x_BTD, context), context)


class Skipped(Block):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return x_BTD
