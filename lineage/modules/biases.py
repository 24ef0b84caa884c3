"""What is added to attention's scores. B batch, T queries, S keys, H heads."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.context import Context
from lineage.modules.registry import runs


@runs(c.Alibi)
class Alibi(nn.Module):
    """Slope of the head · place of the key, [B or 1, H, 1, S] (Press et al. 2022, §3)."""

    def __init__(self, spec: c.Alibi, heads: int) -> None:
        super().__init__()
        self.spec, self.heads = spec, heads

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        places_BS = context.counts_BS
        exact = torch.promote_types(dtype, torch.float32)
        rounded = torch.bfloat16 if self.spec.rounded else exact
        slopes_H = torch.tensor(slopes(self.heads), dtype=exact, device=places_BS.device).to(rounded)
        kept = exact if self.spec.exact else dtype
        bias_BHS = (slopes_H[:, None] * places_BS[:, None].to(rounded)).to(kept) * self.spec.scale
        return bias_BHS[:, :, None]


@runs(c.RelativeBias)
class RelativeBias(nn.Module):
    """A learned number for each head and bucket of distances, [1, H, T, S] (Raffel et al. 2020, §2.1)."""

    def __init__(self, spec: c.RelativeBias, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.buckets, spec.heads))

    def forward(self, place_T: Tensor, place_S: Tensor) -> Tensor:
        return F.embedding(self.bucket(place_S[None] - place_T[:, None]), self.weight).permute(2, 0, 1)[None]

    def bucket(self, ahead_TS: Tensor) -> Tensor:
        """The bucket of a key that lies so many places after its query."""
        count, both_ways = self.spec.buckets, self.spec.both_ways
        count = count // 2 if both_ways else count
        distance_TS = ahead_TS.abs() if both_ways else (-ahead_TS).clamp(min=0)
        single = count // 2
        ranges = torch.log(distance_TS.float() / single) / math.log(self.spec.distance / single) * (count - single)
        large_TS = (single + ranges.clamp(min=0).long()).clamp(max=count - 1)
        bucket_TS = torch.where(distance_TS < single, distance_TS, large_TS)
        return bucket_TS + (ahead_TS > 0) * count if both_ways else bucket_TS


def slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), …: for the power of two n below; every second one of 2n's for the heads beyond."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    return first + [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
