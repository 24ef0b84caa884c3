"""How far two results are apart. B batch, T tokens, V the last axis."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lineage.values import Value


class Figures(Value):
    """Two results compared at the positions that count.

    max_abs: largest |Δ|. rel: max_abs over the largest |reference|. std: of the reference. cosine: the least over the
    positions. top1: share of positions with the same largest entry. kl: largest Kullback-Leibler divergence over the
    positions, in nats, of the softmax of the two (logits only, else None). worst: the positions with the largest |Δ|.
    """

    output: str
    probe: str
    positions: int
    max_abs: float
    rel: float
    std: float
    cosine: float
    top1: float | None = None
    kl: float | None = None
    worst: tuple[tuple[int, int, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def distance(ours: Tensor, theirs: Tensor) -> float:
    """max |Δ| over the largest |reference|; infinite if either holds something that is not finite, or shapes differ.

    Leading axes of length one make no difference: a table of positions may be looked up once for a batch.
    """
    if _bare(ours) != _bare(theirs):
        return float("inf")
    if theirs.numel() == 0:
        return 0.0
    gap, top = (
        (ours.double() - theirs.double().reshape(ours.shape)).abs().max().item(),
        theirs.double().abs().max().item(),
    )
    if not (gap < float("inf") and top < float("inf")):
        return float("inf")
    return gap / top if top else (0.0 if gap == 0 else float("inf"))


def _bare(value: Tensor) -> tuple[int, ...]:
    shape = tuple(value.shape)
    return shape[next((place for place, length in enumerate(shape) if length != 1), len(shape)) :]


def rms(ours: Tensor, truth: Tensor, keep_BT: Tensor | None) -> float:
    """Root of the mean squared difference, at the positions that count."""
    gap = (ours.double() - truth.double()).pow(2)
    kept = gap[keep_BT] if keep_BT is not None and gap.dim() == 3 else gap
    return kept.mean().sqrt().item()


def compare(output: str, probe: str, ours: Tensor, theirs: Tensor, keep_BT: Tensor | None) -> Figures:
    """Compare two results of one call, [B, T, V] or [B, V]; keep_BT chooses the positions of the former."""
    if ours.shape != theirs.shape:
        inf = float("inf")
        return Figures(output, probe, 0, inf, inf, 0.0, 0.0)
    by_token = ours.dim() == 3
    keep = torch.ones(ours.shape[:-1], dtype=torch.bool) if keep_BT is None or not by_token else keep_BT
    a_NV, b_NV = ours[keep].double(), theirs[keep].double()
    gap_N = (a_NV - b_NV).abs().amax(-1)
    if not torch.isfinite(a_NV).all():
        gap_N = torch.where(torch.isfinite(gap_N), gap_N, float("inf"))
    logits = output == "logits"
    return Figures(
        output,
        probe,
        positions=int(keep.sum()),
        max_abs=gap_N.max().item(),
        rel=distance(a_NV, b_NV),
        std=b_NV.std().item() if b_NV.numel() > 1 else 0.0,
        cosine=torch.cosine_similarity(a_NV, b_NV, dim=-1).min().item(),
        top1=(a_NV.argmax(-1) == b_NV.argmax(-1)).double().mean().item() if logits else None,
        kl=_divergence(a_NV, b_NV) if logits else None,
        worst=_worst(gap_N, keep.nonzero()),
    )


def _divergence(a_NV: Tensor, b_NV: Tensor) -> float:
    p_NV, q_NV = b_NV.log_softmax(-1), a_NV.log_softmax(-1)
    worst = (p_NV.exp() * (p_NV - q_NV)).sum(-1).max().item()
    return max(0.0, worst) if worst < float("inf") else float("inf")


def _worst(gap_N: Tensor, places_N: Tensor) -> tuple[tuple[int, int, float], ...]:
    top = gap_N.topk(min(3, gap_N.numel()))
    rows = [(*places_N[i].tolist(), 0)[:2] for i in top.indices.tolist()]
    return tuple((row, token, gap) for (row, token), gap in zip(rows, top.values.tolist(), strict=True))
