"""Distances that attention reads. B batch, T queries, S keys, H heads, W width of a head, R rows of table, D width."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.context import Context
from lineage.modules.feed_forward import Activation
from lineage.modules.registry import make, make_or_pass, runs


@runs(c.Distances)
class Distances(nn.Module):
    """A vector for each distance, [R, D], and the row of each pair of tokens, [T, S] (He et al. 2020, §3.1)."""

    def __init__(self, spec: c.Distances, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(2 * spec.span, width))
        self.norm = make_or_pass(spec.norm, width)

    def forward(self, place_T: Tensor, place_S: Tensor) -> tuple[Tensor, Tensor]:
        span, back_TS = self.spec.span, place_T[:, None] - place_S[None]
        if self.spec.reach is not None:
            single = span // 2
            most = torch.tensor((self.spec.reach - 1) / single, device=back_TS.device)
            far_TS = torch.log(back_TS.abs().clamp(min=single) / single) / torch.log(most)
            ranged_TS = (torch.ceil(far_TS * (single - 1)).long() + single) * back_TS.sign()
            back_TS = torch.where(back_TS.abs() <= single, back_TS, ranged_TS)
        return self.norm(self.weight), (back_TS + span).clamp(0, 2 * span - 1)


def of_distances(module: Any, spec: c.Disentangled, context: Context) -> list[Tensor | None]:
    """An attention's queries and keys of distances, [R, H · W], of those that are wanted."""
    assert context.distances is not None
    table_RD, _ = context.distances
    if not spec.shared:
        both = [one if one is None else one(table_RD) for one in (module.distance_query, module.distance_key)]
    elif module.qkv is not None:
        both = list(module.qkv(table_RD).split(module.sizes, -1)[:2])
    else:
        both = [module.q(table_RD), module.k(table_RD)]
    return [one if wanted else None for one, wanted in zip(both, (spec.queries, spec.keys), strict=True)]


def entangled(
    q_BHTW: Tensor, k_BHSW: Tensor, keys_RHW: Tensor | None, queries_RHW: Tensor | None, rows_TS: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys divided by the scale of all scores, and what distances add to them, [B, H, T, S] (He et al. 2020, eq. 4).

    keys, queries: of distances. Each part is divided by itself, in the order in which the released code rounds.
    """
    terms = 1 + sum(one is not None for one in (keys_RHW, queries_RHW))
    scale, found = q_BHTW.new_tensor(math.sqrt(q_BHTW.shape[-1] * terms)), torch.zeros((), dtype=q_BHTW.dtype)
    if keys_RHW is not None:
        scores_BHTR = q_BHTW @ keys_RHW.permute(1, 2, 0)
        found = scores_BHTR.gather(-1, rows_TS.expand(*scores_BHTR.shape[:2], -1, -1)) / scale
    if queries_RHW is not None:
        scores_BHSR = k_BHSW @ queries_RHW.permute(1, 2, 0)
        turned_BHST = scores_BHSR.gather(-1, rows_TS.T.expand(*scores_BHSR.shape[:2], -1, -1))
        found = found + turned_BHST.transpose(-1, -2) / scale
    return k_BHSW / scale, found


@runs(c.Convolution)
class Convolution(nn.Module):
    """norm(x + activation(convolution of what the first block read)) (He et al. 2020, version 2)."""

    def __init__(self, spec: c.Convolution, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.tensors(width)["weight"]))
        self.bias = nn.Parameter(torch.zeros(width))
        self.act = Activation(spec.activation)
        self.norm = make(spec.norm, width)

    def forward(self, read_BTD: Tensor, x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
        read_BDT = (read_BTD if keep_BT is None else read_BTD * keep_BT[..., None]).transpose(1, 2)
        half, groups = self.spec.kernel // 2, self.spec.groups
        near_BTD = F.conv1d(read_BDT, self.weight, self.bias, padding=half, groups=groups).transpose(1, 2)
        out: Tensor = self.norm(x_BTD + self.act(near_BTD))
        return out
