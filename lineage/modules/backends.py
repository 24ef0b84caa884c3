"""How attention's product is computed. B batch, T queries, S keys, H heads, K of keys, W width, V of a value."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.context import Context, sees

Backend = Callable[[Tensor, Tensor, Tensor, c.Attention, Context, Tensor | None, Tensor | None], Tensor]


def sdpa(
    q_BHTW: Tensor, k_BKSW: Tensor, v_BKSV: Tensor, spec: c.Attention, context: Context,
    bias: Tensor | None, sinks_H: Tensor | None,
) -> Tensor:  # fmt: skip
    """One kernel, where it knows what is asked for. Heads are not repeated, and plain causality needs no mask."""
    if spec.softcap is not None or sinks_H is not None:
        return eager(q_BHTW, k_BKSW, v_BKSV, spec, context, bias, sinks_H)
    plain = bias is None and context.plainly_causal(spec.mask)
    allowed = None if plain else context.mask(spec.mask)
    shape, grouped = q_BHTW.shape, spec.kv_heads != spec.heads
    if grouped and shape[2] == 1 and bias is None:  # the queries of a group as rows: each key is read once
        q_BHTW, grouped = q_BHTW.reshape(shape[0], spec.kv_heads, -1, shape[3]), False
    out_BHTV = F.scaled_dot_product_attention(
        q_BHTW,
        k_BKSW,
        v_BKSV,
        attn_mask=allowed if bias is None else _added(bias.to(q_BHTW.dtype), allowed),
        is_causal=plain,
        scale=spec.scale,
        enable_gqa=grouped,
    )
    return out_BHTV.reshape(*shape[:3], -1)


def eager(
    q_BHTW: Tensor, k_BKSW: Tensor, v_BKSV: Tensor, spec: c.Attention, context: Context,
    bias: Tensor | None, sinks_H: Tensor | None,
) -> Tensor:  # fmt: skip
    """The product written out, each step rounded as the reference's eager path rounds it."""
    groups = spec.heads // spec.kv_heads
    k_BHSW, v_BHSV = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k_BKSW, v_BKSV))
    scale = spec.head_width**-0.5 if spec.scale is None else spec.scale
    if spec.exact and q_BHTW.dtype != torch.float64:
        q_BHTW, k_BHSW = q_BHTW.float(), k_BHSW.float()
    early, late = (scale, 1.0) if spec.early else (1.0, scale)
    scores_BHTS = torch.matmul(q_BHTW * early, k_BHSW.transpose(2, 3)) * late
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if spec.softcap is not None:
        scores_BHTS = torch.tanh(scores_BHTS / spec.softcap) * spec.softcap
    allowed = context.mask(spec.mask)
    if allowed is not None:
        scores_BHTS = scores_BHTS + _added(torch.zeros_like(allowed, dtype=scores_BHTS.dtype), allowed)
    if sinks_H is None:
        return torch.matmul(F.softmax(scores_BHTS, dim=-1).to(v_BHSV.dtype), v_BHSV)
    sinks_BHT1 = sinks_H[None, :, None, None].expand(*scores_BHTS.shape[:3], 1)
    scores_BHTx = torch.cat([scores_BHTS, sinks_BHT1], -1)
    scores_BHTx = scores_BHTx - scores_BHTx.amax(-1, keepdim=True)
    return torch.matmul(F.softmax(scores_BHTx, dim=-1)[..., :-1].to(v_BHSV.dtype), v_BHSV)


def _added(bias: Tensor, allowed: Tensor | None) -> Tensor:
    """A bias to scores, with the least number there is where no query may look."""
    return bias if allowed is None else bias.masked_fill(~allowed, torch.finfo(bias.dtype).min)


def flex(
    q_BHTW: Tensor, k_BKSW: Tensor, v_BKSV: Tensor, spec: c.Attention, context: Context,
    bias: Tensor | None, sinks_H: Tensor | None,
) -> Tensor:  # fmt: skip
    """Masks, biases, soft caps and sinks in one compiled kernel; blocks that no query sees are skipped."""
    from torch.nn.attention.flex_attention import AuxRequest

    kernel = _compiled(q_BHTW.device.type)
    if kernel is None:
        return sdpa(q_BHTW, k_BKSW, v_BKSV, spec, context, bias, sinks_H)
    whole = None if bias is None else bias.expand(*q_BHTW.shape[:3], k_BKSW.shape[2])

    def score(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        score = score if whole is None else score + whole[b, h, t, s]
        return score if spec.softcap is None else torch.tanh(score / spec.softcap) * spec.softcap

    made = kernel(
        q_BHTW,
        k_BKSW.to(q_BHTW.dtype),
        v_BKSV.to(q_BHTW.dtype),
        score_mod=None if whole is None and spec.softcap is None else score,
        block_mask=_block_mask(spec.mask, context, q_BHTW.shape[2], k_BKSW.shape[2]),
        scale=spec.scale,
        enable_gqa=spec.kv_heads != spec.heads,
        return_aux=None if sinks_H is None else AuxRequest(lse=True),
    )
    if sinks_H is None:
        return made
    out_BHTV, aux = made
    return out_BHTV * torch.sigmoid(aux.lse - sinks_H[:, None].to(aux.lse.dtype))[..., None].to(out_BHTV.dtype)


def _block_mask(spec: c.Mask, context: Context, queries: int, keys: int) -> Any:
    """The mask by blocks, made once a forward; None if every query sees every key."""
    from torch.nn.attention.flex_attention import create_block_mask

    if context.mask(spec) is None:
        return None
    if (spec, queries) not in context.blocks:
        place_T, place_S, keep_BS, first_B = context.places_T, context.places_S, context.kept_keys, context.first_B

        def allowed(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            own_t = place_T[t] if len(place_T) == queries else place_T[0]  # of another text, where it does not count
            seen = sees(spec, own_t, place_S[s], 0 if first_B is None else first_B[b])
            return seen if keep_BS is None else seen & keep_BS[b, s]

        rows = None if keep_BS is None else len(keep_BS)
        made = create_block_mask(allowed, rows, None, queries, keys, device=place_T.device.type)
        context.blocks[spec, queries] = made
    return context.blocks[spec, queries]


@cache
def _compiled(device: str) -> Any:
    """The kernel for such a device; None for a CPU.

    There the compiler (torch 2.13) refuses gradients and sinks, and for lengths that vary writes code that is not C++.
    """
    if device == "cpu":
        return None
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if torch.compiler.is_compiling() else torch.compile(flex_attention, dynamic=True)


BACKENDS: dict[str, Backend] = {"sdpa": sdpa, "eager": eager, "flex": flex}
"""What may compute the product, by the name that `Model.attention` gives; add your own."""


def product(
    q_BHTW: Tensor,
    k_BKSW: Tensor,
    v_BKSV: Tensor,
    spec: c.Attention,
    context: Context,
    bias: Tensor | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias + mask) v by the context's back end, heads joined again: [B, T, H · V].

    Raises UsageError for a back end that is not known.
    """
    if context.backend not in BACKENDS:
        raise UsageError(f"attention {context.backend!r} is not one of {', '.join(BACKENDS)}")
    out_BHTV = BACKENDS[context.backend](q_BHTW, k_BKSW, v_BKSV, spec, context, bias, sinks_H)
    return out_BHTV.transpose(1, 2).flatten(2)
