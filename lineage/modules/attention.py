"""Attention. B batch, T queries, S keys, D width, H heads, K key-value heads, W width of a head."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.context import Context
from lineage.modules.registry import runs

Backend = Callable[[Tensor, Tensor, Tensor, Context, bool, float], Tensor]


def sdpa(q_BHTW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, context: Context, causal: bool, scale: float) -> Tensor:
    """The product in one kernel; heads are not repeated, and plain causality needs no mask."""
    return F.scaled_dot_product_attention(
        q_BHTW,
        k_BKSW,
        v_BKSW,
        attn_mask=context.mask(causal),
        is_causal=causal and context.keep_BS is None,
        scale=scale,
        enable_gqa=k_BKSW.shape[1] != q_BHTW.shape[1],
    )


def eager(q_BHTW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, context: Context, causal: bool, scale: float) -> Tensor:
    """The product written out, each step rounded as the reference's eager path rounds it."""
    groups = q_BHTW.shape[1] // k_BKSW.shape[1]
    k_BHSW, v_BHSW = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k_BKSW, v_BKSW))
    scores_BHTS = torch.matmul(q_BHTW, k_BHSW.transpose(2, 3)) * scale
    allowed = context.mask(causal) if context.keep_BS is not None else context.causal() if causal else None
    if allowed is not None:
        least = torch.finfo(scores_BHTS.dtype).min
        scores_BHTS = scores_BHTS + torch.zeros_like(allowed, dtype=scores_BHTS.dtype).masked_fill(~allowed, least)
    return torch.matmul(F.softmax(scores_BHTS, dim=-1), v_BHSW)


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "eager": eager}


class Product(nn.Module):
    """softmax(q kᵀ · scale + mask) v over heads, which it splits and joins again (Vaswani et al. 2017, eq. 1)."""

    def __init__(self, spec: c.Attention) -> None:
        super().__init__()
        self.head_width = spec.head_width
        self.scale = spec.head_width**-0.5 if spec.scale is None else spec.scale
        self.causal = isinstance(spec.mask, c.Causal)

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        q_BHTW, k_BKSW, v_BKSW = self.heads(q_BTx), self.heads(k_BSx), self.heads(v_BSx)
        x_BHTW = BACKENDS[context.backend](q_BHTW, k_BKSW, v_BKSW, context, self.causal, self.scale)
        return x_BHTW.transpose(1, 2).flatten(2)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, heads · W] -> [B, heads, T, W]."""
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


@runs(c.Attention)
class Attention(nn.Module):
    """Multi-head self-attention with projections q, k, v and o (Vaswani et al. 2017, §3.2.2)."""

    def __init__(self, spec: c.Attention, width: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, spec.heads * spec.head_width, bias=spec.bias)
        self.k = nn.Linear(width, spec.kv_heads * spec.head_width, bias=spec.bias)
        self.v = nn.Linear(width, spec.kv_heads * spec.head_width, bias=spec.bias)
        self.product = Product(spec)
        self.o = nn.Linear(spec.heads * spec.head_width, width, bias=spec.bias)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        out: Tensor = self.o(self.product(self.q(x_BTD), self.k(x_BTD), self.v(x_BTD), context))
        return out
