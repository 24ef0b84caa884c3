"""Attention over latents. B batch, T tokens, D width, H heads, P plain channels, R turned ones, V of a value."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.backends import product
from lineage.modules.context import Context
from lineage.modules.linear import Linear
from lineage.modules.registry import make, make_or_pass, runs
from lineage.modules.rotary import turn


class LatentProduct(nn.Module):
    """The product over queries [B, T, H · (P + R)], kv_up's result [B, T, H · (P + V)], and what ends in a key of R."""

    def __init__(self, spec: c.LatentAttention) -> None:
        super().__init__()
        self.spec = spec
        scale = spec.head_width**-0.5 if spec.scale is None else spec.scale
        self.inner = c.Attention(
            heads=spec.heads,
            kv_heads=spec.heads,
            head_width=spec.head_width,
            mask=spec.mask,
            bias=False,
            output_bias=False,
            scale=spec.scale,
        )
        self.folded = replace(self.inner, kv_heads=1, head_width=spec.latent + spec.rotary.width, scale=scale)

    def turned(self, key_BTx: Tensor, context: Context) -> Tensor:
        """The shared key, which these vectors end in, [B, 1, T, R]."""
        rotary = self.spec.rotary
        return turn(key_BTx[:, None, :, -rotary.width :], context.rotation(rotary, key_BTx.dtype), rotary)

    def forward(
        self, q_BTx: Tensor, kv_BSx: Tensor, key_BTx: Tensor, context: Context, key_B1SR: Tensor | None = None
    ) -> Tensor:
        """key_B1SR: the shared keys already turned, in place of what ends in them."""
        spec = self.spec
        if key_B1SR is None:
            key_B1SR = self.turned(key_BTx, context)
        q_BHTx, kv_BHTx = (x.unflatten(-1, (spec.heads, -1)).transpose(1, 2) for x in (q_BTx, kv_BSx))
        k_BHTP, v_BHTV = kv_BHTx[..., : spec.plain], kv_BHTx[..., spec.plain :]
        cos_BTP, sin_BTP = (context.wanted(x) for x in context.rotation(spec.rotary, q_BTx.dtype))
        q_BHTR = turn(q_BHTx[..., spec.plain :], (cos_BTP, sin_BTP), spec.rotary)
        q_BHTx = torch.cat([q_BHTx[..., : spec.plain], q_BHTR], -1)
        k_BHTx = torch.cat([k_BHTP, key_B1SR.expand(-1, spec.heads, -1, -1)], -1)
        return product(q_BHTx, k_BHTx, v_BHTV, self.inner, context.late)

    def among_latents(self, q_BTx: Tensor, both_B1Sx: Tensor, up_xL: Tensor, context: Context) -> Tensor:
        """The same without keys and values, which need not be made again for each new token (DeepSeek-V2, §2.1.2).

        q · (U k) is (Uᵀ q) · k: what the cache holds is one key for all heads, and its first channels are the value.
        up_xL: kv_up's weight.
        """
        spec = self.spec
        q_BHTx, up_HxL = q_BTx.unflatten(-1, (spec.heads, -1)).transpose(1, 2), up_xL.unflatten(0, (spec.heads, -1))
        q_BHTR = turn(q_BHTx[..., spec.plain :], context.rotation(spec.rotary, q_BTx.dtype), spec.rotary)
        q_BHTx = torch.cat([q_BHTx[..., : spec.plain] @ up_HxL[:, : spec.plain], q_BHTR], -1)
        out_BTx = product(q_BHTx, both_B1Sx, both_B1Sx[..., : spec.latent], self.folded, context)
        out_BHTL = out_BTx.unflatten(-1, (spec.heads, -1)).transpose(1, 2)
        return (out_BHTL @ up_HxL[:, spec.plain :].mT).transpose(1, 2).flatten(2)


@runs(c.LatentAttention)
class LatentAttention(nn.Module):
    """Attention whose keys and values come from one small vector a token (MLA; DeepSeek-V2, §2.1)."""

    def __init__(self, spec: c.LatentAttention, width: int) -> None:
        super().__init__()
        self.spec, queries, small = spec, spec.heads * spec.head_width, spec.query_latent
        self.q = Linear(width, queries, bias=False) if small is None else None
        self.q_down = Linear(width, small, bias=spec.bias) if small else None
        self.query_norm = make_or_pass(spec.query_norm, small or 0)
        self.q_up = Linear(small, queries, bias=False) if small else None
        self.kv_down = Linear(width, spec.latent + spec.rotary.width, bias=spec.bias)
        self.latent_norm = make(spec.latent_norm, spec.latent)
        self.kv_up = Linear(spec.latent, spec.heads * (spec.plain + spec.value_width), bias=False)
        self.product = LatentProduct(spec)
        self.o = Linear(spec.heads * spec.value_width, width, bias=spec.bias)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        read_BTD = context.wanted(x_BTD)
        if self.q_down is not None and self.q_up is not None:
            q_BTx = self.q_up(self.query_norm(self.q_down(read_BTD)))
        else:
            q_BTx = self.q(read_BTD)  # type: ignore[misc]
        down_BTx = self.kv_down(x_BTD)
        latent_BTL = self.latent_norm(down_BTx[..., : self.spec.latent])
        key_B1SR = None
        if context.cache is not None:
            key_B1TR = self.product.turned(down_BTx, context)
            (both_B1Sx,) = context.kept(torch.cat([latent_BTL[:, None], key_B1TR], -1))
            if x_BTD.shape[1] == 1 and context.backend != "eager":  # which writes out every step
                new: Tensor = self.o(self.product.among_latents(q_BTx, both_B1Sx, self.kv_up.weight, context))
                return new
            latent_B1SL, key_B1SR = both_B1Sx.split([self.spec.latent, self.spec.rotary.width], -1)
            latent_BTL = latent_B1SL[:, 0]
        out: Tensor = self.o(self.product(q_BTx, self.kv_up(latent_BTL), down_BTx, context, key_B1SR))
        return out
