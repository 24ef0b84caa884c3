"""Modules that do what a hasty port does. Each takes the place of a right one of its base's form.

B batch, T queries, S keys, H heads, K key-value heads, W width of a head, D width, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.attention import Attention, Product, hotter
from lineage.modules.block import Block, Residual
from lineage.modules.context import Context
from lineage.modules.embedding import Embed, LearnedPositions
from lineage.modules.experts import Router
from lineage.modules.feed_forward import FeedForward
from lineage.modules.head import Head, Pooler, Transform
from lineage.modules.model import Model
from lineage.modules.norm import LayerNorm, RMSNorm
from lineage.modules.rotary import turn

SLOTS = ("norm_input", "norm_branch", "norm_sum")


class Interleaved(Product):
    """Heads taken as the last axis but one: [.., W H] for [.., H W]."""

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.spec.head_width, -1).permute(0, 3, 1, 2)


class JoinedWrongly(Product):
    """Heads joined without being moved back behind the tokens."""

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context, *more: Any) -> Tensor:
        x_BTx = super().forward(q_BTx, k_BSx, v_BSx, context, *more)
        return self.heads(x_BTx).reshape(x_BTx.shape)


class Ahead(Context):
    """The mask one off: each token sees the next."""

    def plainly_causal(self, spec: c.Component) -> bool:
        return False

    def mask(self, spec: c.Component) -> Tensor:
        length = self.positions_BT.shape[1]
        following = torch.ones(length, length, dtype=torch.bool).tril(1).triu(1)
        real = torch.ones(1, 1, 1, length, dtype=torch.bool) if self.keep_BS is None else self.keep_BS[:, None, None]
        return super().mask(spec) | (following & real)


class SeesOneAhead(Product):
    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context, *more: Any) -> Tensor:
        ahead = replace(context, _masks={})
        ahead.__class__ = Ahead
        return super().forward(q_BTx, k_BSx, v_BSx, ahead, *more)


class ForgetsPadding(Product):
    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context, *more: Any) -> Tensor:
        return super().forward(q_BTx, k_BSx, v_BSx, replace(context, keep_BS=None, _masks={}), *more)


class Written(Product):
    """The product written out, so that each step can be got wrong; as it stands, right."""

    def forward(
        self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context, bias: Tensor | None = None,
        sinks_H: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        spec = self.spec
        q_BHTW, k_BKSW, v_BKSW = self.turned(*(self.clipped(self.heads(x)) for x in (q_BTx, k_BSx, v_BSx)), context)
        if spec.temperature is not None:
            q_BHTW = q_BHTW * hotter(context.places_T, spec.temperature, q_BHTW.dtype)
        k_BHSW, v_BHSW = self.repeated(k_BKSW), self.repeated(v_BKSW)
        scores_BHTS = q_BHTW @ k_BHSW.transpose(2, 3) * (spec.head_width**-0.5 if spec.scale is None else spec.scale)
        scores_BHTS = scores_BHTS if bias is None else scores_BHTS + bias
        if spec.softcap is not None:
            scores_BHTS = torch.tanh(scores_BHTS / spec.softcap) * spec.softcap
        seen = context.mask(spec.mask)
        seen = torch.ones_like(scores_BHTS, dtype=torch.bool) if seen is None else seen.expand_as(scores_BHTS)
        if sinks_H is not None:  # a key that all see, and whose value is nothing
            scores_BHTS = torch.cat([scores_BHTS, sinks_H[:, None, None].expand_as(scores_BHTS[..., :1])], -1)
            seen = F.pad(seen, (0, 1), value=True)
            v_BHSW = F.pad(v_BHSW, (0, 0, 0, 1))
        return (self.weights(scores_BHTS, seen) @ v_BHSW).transpose(1, 2).flatten(2)

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.spec.clip is None else x.clamp(-self.spec.clip, self.spec.clip)

    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        rotary = self.spec.rotary
        if rotary is None:
            return q, k, v
        table = context.rotation(rotary, q.dtype)
        return turn(q, table, rotary), turn(k, table, rotary), v

    def repeated(self, x_BKSW: Tensor) -> Tensor:
        return x_BKSW.repeat_interleave(self.spec.heads // self.spec.kv_heads, 1)

    def weights(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)


class MasksSoftly(Written):
    """The mask of zeros and ones added to the scores as it is."""

    def weights(self, scores: Tensor, seen: Tensor) -> Tensor:
        return (scores + seen).softmax(-1)


class SoftmaxOverQueries(Written):
    def weights(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-2)


class MasksAfterSoftmax(Written):
    def weights(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.softmax(-1) * seen


class TilesHeads(Written):
    """Grouped heads repeated as 0 1 0 1 for 0 0 1 1."""

    def repeated(self, x_BKSW: Tensor) -> Tensor:
        return x_BKSW.repeat(1, self.spec.heads // self.spec.kv_heads, 1, 1)


class TurnsQueriesAlone(Written):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        return super().turned(q, k, v, context)[0], k, v


class TurnsValuesToo(Written):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        return (*super().turned(q, k, v, context)[:2], super().turned(v, v, v, context)[1])


class TurnsBackwards(Written):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        return super().turned(q, k, v, replace(context, positions_BT=-context.positions_BT, _tables={}))


class PositionsFromOneInKeys(Written):
    """Keys one position further on than queries: a cache's offset counted twice."""

    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        later = replace(context, positions_BT=context.positions_BT + 1, _tables={})
        return super().turned(q, k, v, context)[0], super().turned(q, k, v, later)[1], v


class GivesValuesAsTheyCame(Attention):
    """o forgotten."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        right, self.o = self.o, nn.Identity()
        try:
            return super().forward(x_BTD, context)
        finally:
            self.o = right


class UnbiasedVariance(LayerNorm):
    """torch's std divides by D - 1."""

    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD - x_xD.mean(-1, keepdim=True)
        return apart / (x_xD.var(-1, keepdim=True) + self.spec.eps).sqrt() * self.weight + self.bias


class EpsOutsideRoot(LayerNorm):
    def forward(self, x_xD: Tensor) -> Tensor:
        apart = x_xD - x_xD.mean(-1, keepdim=True)
        return apart / (x_xD.var(-1, keepdim=True, correction=0).sqrt() + self.spec.eps) * self.weight + self.bias


class MeanKept(LayerNorm):
    """RMSNorm for LayerNorm."""

    def forward(self, x_xD: Tensor) -> Tensor:
        return x_xD * (x_xD.pow(2).mean(-1, keepdim=True) + self.spec.eps).rsqrt() * self.weight + self.bias


class OnePlusWeight(LayerNorm):
    def forward(self, x_xD: Tensor) -> Tensor:
        return F.layer_norm(x_xD, self.weight.shape, 1 + self.weight, self.bias, self.spec.eps)


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
        logits_NE = F.linear(x_ND, self.weight)
        weights_NK, chosen_NK = logits_NE.sigmoid().topk(self.spec.top_k, dim=-1)
        return logits_NE, weights_NK / weights_NK.sum(-1, keepdim=True), chosen_NK


class EvenWeights(Router):
    """Each chosen expert counts the same."""

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE, weights_NK, chosen_NK = super().forward(x_ND)
        return logits_NE, torch.full_like(weights_NK, 1 / self.spec.top_k), chosen_NK


class NoResidual(Residual):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.norm_sum(self.branch(x_BTD, context))


class AddsNormed(Residual):
    """The branch added to its normed input (a residual after the norm, as BLOOM may have it)."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        normed_BTD = self.norm_input(x_BTD)
        return self.norm_sum(normed_BTD + self.norm_branch(self.body(normed_BTD, context)))


class OtherOrder(Block):
    """Both branches on the block's input as in GPT-J, where they follow each other; or the reverse."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        if self.parallel:
            x_BTD = x_BTD + self.attention.branch(x_BTD, context)
            return x_BTD + self.mlp.branch(x_BTD, context)
        return self.attention(x_BTD, context) + self.mlp(x_BTD, context) - x_BTD


class NoStream(Block):
    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        return self.attention.branch(x_BTD, context) + self.mlp.branch(x_BTD, context)


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

    def position_ids(self, ids_BT: Tensor, *more: Any) -> Tensor:
        return super().position_ids(ids_BT, *more) - 1


class PadCounted(LearnedPositions):
    """Padding moves the tokens behind it, as if it were one of them."""

    def position_ids(self, ids_BT: Tensor, *more: Any) -> Tensor:
        return torch.arange(ids_BT.shape[1])[None] + self.pad + 1


class FirstSegmentOnly(Embed):
    def forward(self, ids_BT: Tensor, positions_BT: Tensor, segments_BT: Tensor, *more: Any) -> Tensor:
        return super().forward(ids_BT, positions_BT, None, *more)


class NormFirst(Embed):
    """Positions and segments added to the normed tokens."""

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, segments_BT: Tensor, *more: Any) -> Tensor:
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
