"""Attention. B batch, T queries, S keys, D width, H heads, K key-value heads, W width of a head."""

import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.context import Context
from lineage.modules.registry import runs


class Product(nn.Module):
    """softmax(q kᵀ · scale + mask) v over heads, which it splits and joins again (Vaswani et al. 2017, eq. 1)."""

    def __init__(self, spec: c.Attention) -> None:
        super().__init__()
        self.head_width = spec.head_width
        self.scale = spec.scale
        self.causal = isinstance(spec.mask, c.Causal)
        self.grouped = spec.kv_heads != spec.heads

    def forward(self, q_BTx: Tensor, k_BSx: Tensor, v_BSx: Tensor, context: Context) -> Tensor:
        x_BHTW = F.scaled_dot_product_attention(
            self.heads(q_BTx),
            self.heads(k_BSx),
            self.heads(v_BSx),
            attn_mask=context.mask(causal=self.causal),
            is_causal=self.causal and context.keep_BS is None,
            scale=self.scale,
            enable_gqa=self.grouped,
        )
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
