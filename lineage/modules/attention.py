"""Attention. B batch, T queries, S keys, D width, H heads, K key-value heads, W width of a head, V of a value."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.backends import product
from lineage.modules.context import Context
from lineage.modules.disentangled import entangled, of_distances
from lineage.modules.linear import Linear
from lineage.modules.registry import make, make_or_pass, runs
from lineage.modules.rotary import turn


class Product(nn.Module):
    """softmax(q kᵀ · scale + mask) v over heads, which it splits, clips, turns and joins again.

    (Vaswani et al. 2017, eq. 1; Su et al. 2021, eq. 34.)
    """

    def __init__(self, spec: c.Attention) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        q_BTx: Tensor,
        k_BSx: Tensor,
        v_BSx: Tensor,
        context: Context,
        bias: Tensor | None = None,
        sinks_H: Tensor | None = None,
        far: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        spec, clip = self.spec, self.spec.clip
        q_BHTW, k_BKSW, v_BKSW = (self.heads(x) for x in (q_BTx, k_BSx, v_BSx))
        if clip is not None:
            q_BHTW, k_BKSW, v_BKSW = (x.clamp(-clip, clip) for x in (q_BHTW, k_BKSW, v_BKSW))
        if spec.rotary is not None:
            rotation = context.rotation(spec.rotary, q_BHTW.dtype)
            k_BKSW = turn(k_BKSW, rotation, spec.rotary)
            q_BHTW = turn(q_BHTW, (context.wanted(rotation[0]), context.wanted(rotation[1])), spec.rotary)
        if not spec.cross:
            k_BKSW, v_BKSW = context.kept(k_BKSW, v_BKSW)
            context = context.late
            bias = None if bias is None else bias[:, :, -q_BHTW.shape[2] :]
        if spec.temperature is not None:
            q_BHTW = (q_BHTW * hotter(context.places_T, spec.temperature, q_BHTW.dtype)).to(q_BHTW.dtype)
        if far is not None:
            assert context.distances is not None
            queries_RHW, keys_RHW = (x if x is None else x.unflatten(-1, (spec.heads, -1)) for x in far)
            k_BKSW, bias = entangled(q_BHTW, k_BKSW, keys_RHW, queries_RHW, context.distances[1])
            spec = replace(spec, scale=1.0, disentangled=None)
        return product(q_BHTW, k_BKSW, v_BKSW, spec, context, bias, sinks_H)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, heads · W] or [B, T, heads, W] -> [B, heads, T, W]."""
        return x.reshape(*x.shape[:2], -1, self.spec.head_width).transpose(1, 2)


def hotter(places_T: Tensor, spec: c.Temperature, dtype: torch.dtype) -> Tensor:
    """What the queries at these places are multiplied by, [T, 1]."""
    exact_T = places_T.to(torch.promote_types(dtype, torch.float32))
    return (torch.log1p(torch.floor((exact_T + 1.0) / spec.length)) * spec.scale + 1.0)[:, None]


@runs(c.Attention)
class Attention(nn.Module):
    """Multi-head self-attention with projections q, k, v and o (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self, spec: c.Attention, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.sizes = [count * spec.head_width for count in (spec.heads, spec.kv_heads, spec.kv_heads)]
        self.q, self.k, self.v = (Linear(width, size, bias=spec.bias) for size in self.sizes)
        self.qkv: Linear | None = None  # in place of these three: see `fusing`
        self.query_norm = make_or_pass(spec.query_norm, spec.child_width("query_norm", width))
        self.key_norm = make_or_pass(spec.key_norm, spec.child_width("key_norm", width))
        self.position_bias = make(spec.position_bias, spec.heads) if spec.position_bias else None
        self.sinks = nn.Parameter(torch.empty(spec.heads)) if spec.sinks else None
        apart = spec.disentangled if spec.disentangled and not spec.disentangled.shared else None
        wanted = (apart.queries, apart.keys) if apart else (False, False)
        self.distance_query, self.distance_key = (
            Linear(width, size, bias=spec.bias) if there else None
            for size, there in zip(self.sizes, wanted, strict=False)
        )
        self.product = Product(spec)
        self.o = Linear(spec.heads * spec.head_width, width, bias=spec.output_bias)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        bias = None
        if self.spec.cross:
            assert context.memory is not None
            q_BTx, (k_BSx, v_BSx) = self.q(x_BTD), context.once(self.keys_and_values)
            context = context.memory
        else:
            if self.qkv is not None:
                q_BTx, k_BSx, v_BSx = self.qkv(x_BTD).split(self.sizes, -1)
                q_BTx, k_BSx = context.wanted(q_BTx), self._normed(k_BSx, self.key_norm)
            else:
                q_BTx, (k_BSx, v_BSx) = self.q(context.wanted(x_BTD)), self.keys_and_values(x_BTD)
            bias = context.bias if self.position_bias is None else self.position_bias(context, x_BTD.dtype)
        q_BTx = self._normed(q_BTx, self.query_norm)
        far = None if self.spec.disentangled is None else of_distances(self, self.spec.disentangled, context)
        out: Tensor = self.o(self.product(q_BTx, k_BSx, v_BSx, context, bias, self.sinks, far))
        return out

    def keys_and_values(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Of these vectors, before they are turned."""
        return self._normed(self.k(x_BSD), self.key_norm), self.v(x_BSD)

    def _normed(self, x_BTx: Tensor, norm: nn.Module) -> Tensor:
        """Each head normed by itself, or all at once."""
        normed: Tensor = norm(x_BTx if self.spec.joined else x_BTx.unflatten(-1, (-1, self.spec.head_width)))
        return normed
