"""Modules that do what a hasty port does. Each takes the place of a right one of its base's form.

B batch, T queries, S keys, H heads, W width of a head, D width, V vocabulary.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage.modules.attention import Attention, Product
from lineage.modules.block import Block, Residual
from lineage.modules.context import Context
from lineage.modules.embedding import Embed, LearnedPositions
from lineage.modules.head import Head, Pooler, Transform
from lineage.modules.model import Model
from lineage.modules.norm import LayerNorm

SLOTS = ("norm_input", "norm_branch", "norm_sum")


def seen(context: Context, causal: bool) -> Tensor:
    """[B or 1, 1, T or 1, S], true where a query may look, in any case."""
    if context.keep_BS is not None:
        return context.mask(causal)
    every = torch.ones(1, 1, context.length, context.length, dtype=torch.bool)
    return every & context.causal() if causal else every


class Interleaved(Product):
    """Heads taken as the last axis but one: [.., W H] for [.., H W]."""

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.head_width, -1)).permute(0, 3, 1, 2)


class JoinedWrongly(Product):
    """Heads joined without being moved back behind the tokens."""

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        x_BTx = super().forward(q_BTx, k_BSx, v_BSx, context)
        return self.heads(x_BTx).reshape(x_BTx.shape)


class Ahead(Context):
    def causal(self) -> Tensor:
        return super().causal() | torch.ones(self.length, self.length, dtype=torch.bool).tril(1)


class SeesOneAhead(Product):
    """The causal mask one off: each token sees the next."""

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        keep_BS = torch.ones(k_BSx.shape[:2], dtype=torch.bool) if context.keep_BS is None else context.keep_BS
        return super().forward(q_BTx, k_BSx, v_BSx, Ahead(context.length, context.device, keep_BS, context.backend))


class ForgetsPadding(Product):
    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        return super().forward(q_BTx, k_BSx, v_BSx, replace(context, keep_BS=None, _masks={}))


class MasksSoftly(Product):
    """The mask of zeros and ones added to the scores as it is."""

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        q_BHTW, k_BHSW, v_BHSW = self.heads(q_BTx), self.heads(k_BSx), self.heads(v_BSx)
        added = seen(context, self.causal).to(q_BHTW.dtype)
        return (
            F.scaled_dot_product_attention(q_BHTW, k_BHSW, v_BHSW, added, scale=self.scale).transpose(1, 2).flatten(2)
        )


class SoftmaxOverQueries(Product):
    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        scores = self.heads(q_BTx) @ self.heads(k_BSx).transpose(2, 3) * self.scale
        scores = scores.masked_fill(~seen(context, self.causal), torch.finfo(scores.dtype).min)
        return (scores.softmax(-2) @ self.heads(v_BSx)).transpose(1, 2).flatten(2)


class MasksAfterSoftmax(Product):
    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        scores = self.heads(q_BTx) @ self.heads(k_BSx).transpose(2, 3) * self.scale
        kept = scores.softmax(-1) * seen(context, self.causal)
        return (kept @ self.heads(v_BSx)).transpose(1, 2).flatten(2)


class GivesValuesAsTheyCame(Attention):
    """o forgotten."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.product(self.q(x_BTD), self.k(x_BTD), self.v(x_BTD), context)


class UnbiasedVariance(LayerNorm):
    """torch's std divides by D - 1."""

    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD - x_xD.mean(-1, keepdim=True)
        return apart / (x_xD.var(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


class EpsOutsideRoot(LayerNorm):
    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD - x_xD.mean(-1, keepdim=True)
        return apart / (x_xD.var(-1, keepdim=True, correction=0).sqrt() + self.eps) * self.weight + self.bias


class MeanKept(LayerNorm):
    """RMSNorm for LayerNorm."""

    def forward(self, x_xD: Tensor) -> Tensor:
        return x_xD * (x_xD.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


class OnePlusWeight(LayerNorm):
    def forward(self, x_xD: Tensor) -> Tensor:
        return F.layer_norm(x_xD, self.weight.shape, 1 + self.weight, self.bias, self.eps)


class NoResidual(Residual):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.norm_sum(self.norm_branch(self.body(self.norm_input(x_BTD), context)))


class AddsNormed(Residual):
    """The branch added to its normed input (a residual after the norm, as BLOOM may have it)."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        normed_BTD = self.norm_input(x_BTD)
        return self.norm_sum(normed_BTD + self.norm_branch(self.body(normed_BTD, context)))


class Parallel(Block):
    """Both branches read the block's input, as in GPT-J."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.attention(x_BTD, context) + self.mlp(x_BTD, context) - x_BTD


class MlpFirst(Block):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.attention(self.mlp(x_BTD, context), context)


class Skipped(Block):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return x_BTD


class OneTokenOff(nn.Embedding):
    def forward(self, ids_BT: Tensor) -> Tensor:
        return super().forward((ids_BT + 1) % self.num_embeddings)


class ScaledByWidth(nn.Embedding):
    def forward(self, ids_BT: Tensor) -> Tensor:
        return super().forward(ids_BT) * self.embedding_dim**0.5


class FromPad(LearnedPositions):
    """Counting starts at the padding's own id, not after it."""

    def position_ids(self, ids_BT: Tensor) -> Tensor:
        return super().position_ids(ids_BT) - 1


class PadCounted(LearnedPositions):
    """Padding moves the tokens behind it, as if it were one of them."""

    def position_ids(self, ids_BT: Tensor) -> Tensor:
        return torch.arange(ids_BT.shape[1])[None] + self.pad + 1


class FirstSegmentOnly(Embed):
    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None, segments_BT: Tensor | None) -> Tensor:
        return super().forward(ids_BT, positions_BT, None)


class NormFirst(Embed):
    """Positions and segments added to the normed tokens."""

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None, segments_BT: Tensor | None) -> Tensor:
        x_BTD = self.norm(self.tokens(ids_BT)) + self.positions(ids_BT, positions_BT)
        if self.segments is None:
            return x_BTD
        return x_BTD + self.segments(torch.zeros_like(ids_BT) if segments_BT is None else segments_BT)


class ScaledHead(Head):
    """A tied head divided by √D, as T5's is."""

    def forward(self, x_BTD: Tensor, tokens_VD: Tensor) -> Tensor:
        return super().forward(x_BTD * x_BTD.shape[-1] ** -0.5, tokens_VD)


class ActAfterNorm(Transform):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.act(self.norm(self.dense(x_BTD)))


class NoTanh(Pooler):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.dense(x_BTD[:, 0])


class LastToken(Pooler):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_BTD[:, -1]))


class LayersBackwards(Model):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> object:
        self.blocks[0], self.blocks[1] = self.blocks[1], self.blocks[0]
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.blocks[0], self.blocks[1] = self.blocks[1], self.blocks[0]


class NormedTwice(Model):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> object:
        once = self.norm
        self.norm = nn.Sequential(once, once)
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.norm = once
