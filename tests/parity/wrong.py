"""Attention as a hasty port does it. Each takes the place of a right module of its base's form.

B batch, T queries, S keys, H heads, K key-value heads, W width of a head, D width.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lineage import components as c
from lineage.modules.attention import Attention, Product, hotter
from lineage.modules.biases import Alibi, RelativeBias
from lineage.modules.context import Context
from lineage.modules.latent_attention import LatentProduct
from lineage.modules.rotary import turn

Masked = Callable[[Context, c.Mask], Tensor | None]


def masked(context: Context, mask: Masked) -> Context:
    """The same context with another way to say who sees whom."""

    class Other(Context):
        def plainly_causal(self, spec: c.Mask) -> bool:
            return False

        def mask(self, spec: c.Mask) -> Tensor | None:
            return mask(context, spec)

    other = copy(context)
    other.__class__ = Other
    return other


class Interleaved(Product):
    """Heads taken as the last axis but one: [.., W H] for [.., H W]."""

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.spec.head_width, -1).permute(0, 3, 1, 2)


class JoinedWrongly(Product):
    """Heads joined without being moved back behind the tokens."""

    def forward(self, *given: Any) -> Tensor:
        x_BTx = super().forward(*given)
        return self.heads(x_BTx).reshape(x_BTx.shape)


class SeesOneAhead(Product):
    """The mask one off: each token sees the next."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context, *rest: Any) -> Tensor:
        def ahead(context: Context, spec: c.Mask) -> Tensor:
            length = context.positions_BT.shape[1]
            following = torch.ones(length, length, dtype=torch.bool).tril(1).triu(1)
            real = torch.ones(1, 1, 1, length, dtype=torch.bool)
            real = real if context.keep_BS is None else context.keep_BS[:, None, None]
            seen = context.mask(spec)
            return (following & real) | (real if seen is None else seen)

        return super().forward(q, k, v, masked(context, ahead), *rest)


class ForgetsPadding(Product):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context, *rest: Any) -> Tensor:
        return super().forward(q, k, v, replace(context, keep_BS=None), *rest)


class ChunksFromTheStart(Product):
    """Chunks counted from a row's first token, padding or not."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, context: Context, *rest: Any) -> Tensor:
        def counted(context: Context, spec: c.Mask) -> Tensor | None:
            seen = replace(context, keep_BS=None).mask(spec)
            return seen if context.keep_BS is None else seen & context.keep_BS[:, None, None]

        return super().forward(q, k, v, masked(context, counted), *rest)


class Written(Product):
    """The product written out, so that each step can be got wrong; as it stands, right."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: Context,
        bias: Tensor | None = None,
        sinks: Tensor | None = None,
        far: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        spec = self.spec
        q, k, v = self.turned(*self.clipped(*map(self.heads, (q, k, v))), context)
        k, v = self.repeated(k), self.repeated(v)
        scores = q @ k.transpose(2, 3) * (spec.head_width**-0.5 if spec.scale is None else spec.scale)
        scores = scores if bias is None else scores + bias
        if spec.softcap is not None:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        seen = context.mask(spec.mask)
        seen = torch.ones_like(scores, dtype=torch.bool) if seen is None else seen.expand_as(scores)
        return (self.weights(scores, seen, sinks) @ v).transpose(1, 2).flatten(2)

    def clipped(self, *parts: Tensor) -> tuple[Tensor, ...]:
        clip = self.spec.clip
        return parts if clip is None else tuple(x.clamp(-clip, clip) for x in parts)

    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        rotary = self.spec.rotary
        if rotary is not None:
            table = context.rotation(rotary, q.dtype)
            q, k = turn(q, table, rotary), turn(k, table, rotary)
        return self.heated(q, context), k, v

    def heated(self, q: Tensor, context: Context) -> Tensor:
        spec = self.spec.temperature
        return q if spec is None else q * hotter(context.places_T, spec, q.dtype)

    def repeated(self, x_BKSW: Tensor) -> Tensor:
        return x_BKSW.repeat_interleave(self.spec.heads // self.spec.kv_heads, 1)

    def weights(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        if sinks is None:
            return scores.softmax(-1)
        return torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1).softmax(-1)[..., :-1]


class MasksSoftly(Written):
    """The mask of zeros and ones added to the scores as it is."""

    def weights(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
        return super().weights(scores + seen, torch.ones_like(seen), sinks)


class SoftmaxOverQueries(Written):
    def weights(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-2)


class MasksAfterSoftmax(Written):
    def weights(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
        return super().weights(scores, torch.ones_like(seen), sinks) * seen


class ForgetsSinks(Written):
    def weights(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
        return super().weights(scores, seen, None)


class OneSinkForAll(Written):
    """The first head's sink in every head."""

    def weights(self, scores: Tensor, seen: Tensor, sinks: Tensor | None) -> Tensor:
        return super().weights(scores, seen, None if sinks is None else sinks[:1].expand_as(sinks))


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
        return super().turned(q, k, v, replace(context, positions_BT=-context.positions_BT))


class PositionsFromOneInKeys(Written):
    """Keys one position further on than queries: a cache's offset counted twice."""

    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        later = replace(context, positions_BT=context.positions_BT + 1)
        return super().turned(q, k, v, context)[0], super().turned(q, k, v, later)[1], v


class ClipsNoValues(Written):
    """Values left as they are: only what meets in scores is clipped."""

    def clipped(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return (*super().clipped(*parts[:2]), parts[2])


class HeatsOneLater(Written):
    """The temperature of the place before: it counts from 0, and should from 1."""

    def heated(self, q: Tensor, context: Context) -> Tensor:
        spec = self.spec.temperature
        return q if spec is None else q * hotter(context.places_T - 1, spec, q.dtype)


class HeatsKeysToo(Written):
    def turned(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().turned(q, k, v, context)
        return q, self.heated(k, context), v


class GivesValuesAsTheyCame(Attention):
    """o forgotten."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q, (k, v) = self._normed(self.q(x_BTD), self.query_norm), self.keys_and_values(x_BTD)
        bias = context.bias if self.position_bias is None else self.position_bias(context, x_BTD.dtype)
        return self.product(q, k, v, context, bias, self.sinks)


class SlopesBackwards(Alibi):
    """The last head's slope in the first."""

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        return super().forward(context, dtype).flip(1)


class SlopesDown(Alibi):
    """Near keys made worse."""

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        return -super().forward(context, dtype)


class SlopesOfAnyNumber(Alibi):
    """2^(-8 h / n), whether or not the number of heads n is a power of two."""

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        slopes_H = 2 ** (-8 * torch.arange(1, self.heads + 1, dtype=dtype) / self.heads)
        return (slopes_H[:, None] * context.counts_BS[:, None] * self.spec.scale)[:, :, None].to(dtype)


class DistancesBackwards(RelativeBias):
    """Keys after the query taken for keys before it."""

    def forward(self, place_T: Tensor, place_S: Tensor) -> Tensor:
        return super().forward(-place_T, -place_S)


class NoDistances(RelativeBias):
    def forward(self, place_T: Tensor, place_S: Tensor) -> Tensor:
        return super().forward(place_T, place_S) * 0


class LatentKeyNotTurned(LatentProduct):
    def turned(self, key_BTx: Tensor, context: Context) -> Tensor:
        return key_BTx[:, None, :, -self.spec.rotary.width :]


class LatentTurnedFirst(LatentProduct):
    """The channels that turn taken for the first of a query, where they are its last."""

    def forward(self, q_BTx: Tensor, *rest: Any) -> Tensor:
        heads = q_BTx.unflatten(-1, (self.spec.heads, -1)).roll(-self.spec.rotary.width, -1)
        return super().forward(heads.flatten(2), *rest)


class LatentValuesFirst(LatentProduct):
    """Of each head's share of kv_up, the values taken first and then the keys."""

    def forward(self, q_BTx: Tensor, kv_BSx: Tensor, *rest: Any) -> Tensor:
        heads = kv_BSx.unflatten(-1, (self.spec.heads, -1)).roll(-self.spec.plain, -1)
        return super().forward(q_BTx, heads.flatten(2), *rest)


class LatentKeysThenValues(LatentProduct):
    """All heads' keys, then all heads' values, where they stand head by head."""

    def forward(self, q_BTx: Tensor, kv_BSx: Tensor, *rest: Any) -> Tensor:
        keys = kv_BSx[..., : self.spec.heads * self.spec.plain].unflatten(-1, (self.spec.heads, -1))
        values = kv_BSx[..., self.spec.heads * self.spec.plain :].unflatten(-1, (self.spec.heads, -1))
        return super().forward(q_BTx, torch.cat([keys, values], -1).flatten(2), *rest)
