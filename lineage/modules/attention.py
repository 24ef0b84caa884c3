"""Attention. B batch, T queries, S keys, D width, H heads, K key-value heads, W width of a head."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.context import Context
from lineage.modules.registry import make_or_pass, runs
from lineage.modules.rotary import turn

Backend = Callable[[Tensor, Tensor, Tensor, c.Attention, Context], Tensor]


def sdpa(q_BHTW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, spec: c.Attention, context: Context) -> Tensor:
    """The product in one kernel; heads are not repeated, and plain causality needs no mask."""
    if spec.softcap is not None:
        return eager(q_BHTW, k_BKSW, v_BKSW, spec, context)
    plain = context.plainly_causal(spec.mask)
    return F.scaled_dot_product_attention(
        q_BHTW,
        k_BKSW,
        v_BKSW,
        attn_mask=None if plain else context.mask(spec.mask),
        is_causal=plain,
        scale=spec.scale,
        enable_gqa=spec.kv_heads != spec.heads,
    )


def eager(q_BHTW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, spec: c.Attention, context: Context) -> Tensor:
    """The product written out, each step rounded as the reference's eager path rounds it."""
    groups = spec.heads // spec.kv_heads
    k_BHSW, v_BHSW = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k_BKSW, v_BKSW))
    scale = spec.head_width**-0.5 if spec.scale is None else spec.scale
    scores_BHTS = torch.matmul(q_BHTW, k_BHSW.transpose(2, 3)) * scale
    if spec.softcap is not None:
        scores_BHTS = torch.tanh(scores_BHTS / spec.softcap) * spec.softcap
    allowed = context.mask(spec.mask)
    if allowed is not None:
        least = torch.finfo(scores_BHTS.dtype).min
        scores_BHTS = scores_BHTS + torch.zeros_like(allowed, dtype=scores_BHTS.dtype).masked_fill(~allowed, least)
    return torch.matmul(F.softmax(scores_BHTS, dim=-1), v_BHSW)


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "eager": eager}


class Product(nn.Module):
    """softmax(q kᵀ · scale + mask) v over heads, which it splits, norms, turns and joins again.

    (Vaswani et al. 2017, eq. 1; Su et al. 2021, eq. 34.)
    """

    def __init__(self, spec: c.Attention) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        spec = self.spec
        q_BHTW, k_BKSW, v_BKSW = (self.heads(x) for x in (q_BTx, k_BSx, v_BSx))
        if spec.rotary is not None:
            rotation = context.rotation(spec.rotary, q_BHTW.dtype)
            q_BHTW, k_BKSW = turn(q_BHTW, rotation, spec.rotary), turn(k_BKSW, rotation, spec.rotary)
        return BACKENDS[context.backend](q_BHTW, k_BKSW, v_BKSW, spec, context).transpose(1, 2).flatten(2)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, heads · W] or [B, T, heads, W] -> [B, heads, T, W]."""
        return x.reshape(*x.shape[:2], -1, self.spec.head_width).transpose(1, 2)


@runs(c.Attention)
class Attention(nn.Module):
    """Multi-head self-attention with projections q, k, v and o (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self, spec: c.Attention, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.q = nn.Linear(width, spec.heads * spec.head_width, bias=spec.bias)
        self.k = nn.Linear(width, spec.kv_heads * spec.head_width, bias=spec.bias)
        self.v = nn.Linear(width, spec.kv_heads * spec.head_width, bias=spec.bias)
        self.query_norm = make_or_pass(spec.query_norm, spec.head_width)
        self.key_norm = make_or_pass(spec.key_norm, spec.head_width)
        self.product = Product(spec)
        self.o = nn.Linear(spec.heads * spec.head_width, width, bias=spec.output_bias)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        q_BTx, k_BTx = self._normed(self.q(x_BTD), self.query_norm), self._normed(self.k(x_BTD), self.key_norm)
        out: Tensor = self.o(self.product(q_BTx, k_BTx, self.v(x_BTD), context))
        return out

    def _normed(self, x_BTx: Tensor, norm: nn.Module) -> Tensor:
        """Each head normed by itself."""
        normed: Tensor = norm(x_BTx.unflatten(-1, (-1, self.spec.head_width)))
        return normed
