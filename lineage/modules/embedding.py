"""Tokens to vectors. B batch, T tokens, D width."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.registry import make, make_or_pass, runs


@runs(c.LearnedPositions)
class LearnedPositions(nn.Module):
    """A vector for each position id; the ids by place, or counting what is not padding (fairseq)."""

    def __init__(self, spec: c.LearnedPositions, width: int) -> None:
        super().__init__()
        self.reach = spec.reach
        self.pad = spec.ids.pad if isinstance(spec.ids, c.SkipPadding) else None
        self.weight = nn.Parameter(torch.empty(spec.length, width))

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        if positions_BT is None:
            positions_BT = self.position_ids(ids_BT)
            if ids_BT.shape[1] > self.reach:
                raise UsageError(f"{ids_BT.shape[1]} tokens, and the table of positions has {self.reach}")
        return F.embedding(positions_BT, self.weight, padding_idx=self.pad)

    def position_ids(self, ids_BT: Tensor) -> Tensor:
        """[B, T] or [1, T]."""
        if self.pad is None:
            return torch.arange(ids_BT.shape[1], device=ids_BT.device)[None]
        real_BT = ids_BT.ne(self.pad).long()
        return real_BT.cumsum(1) * real_BT + self.pad


@runs(c.Segments)
class Segments(nn.Module):
    """A vector for each segment id; without ids all are 0 (Devlin et al. 2018, fig. 2)."""

    def __init__(self, spec: c.Segments, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.count, width))

    def forward(self, segments_BT: Tensor) -> Tensor:
        return F.embedding(segments_BT, self.weight)


@runs(c.Embed)
class Embed(nn.Module):
    """norm(token + segment + position), of those that the spec has."""

    def __init__(self, spec: c.Embed, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab, spec.width, padding_idx=spec.padding)
        self.positions = make(spec.positions, spec.width) if spec.positions else None
        self.segments = make(spec.segments, spec.width) if spec.segments else None
        self.norm = make_or_pass(spec.norm, spec.width)
        self.scale = spec.scale

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None, segments_BT: Tensor | None) -> Tensor:
        x_BTD = self.tokens(ids_BT)
        if self.scale is not None:
            x_BTD = x_BTD * torch.tensor(self.scale, dtype=x_BTD.dtype, device=x_BTD.device)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(ids_BT) if segments_BT is None else segments_BT)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(ids_BT, positions_BT)
        out: Tensor = self.norm(x_BTD)
        return out
