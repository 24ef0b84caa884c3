"""Tokens to vectors. B batch, T tokens, D width."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.linear import Linear
from lineage.modules.registry import make, make_or_pass, runs


@runs(c.LearnedPositions)
class LearnedPositions(nn.Module):
    """A vector for each position id; the ids by place, or counting what is not padding (fairseq)."""

    def __init__(self, spec: c.LearnedPositions | c.Sinusoids, width: int) -> None:
        super().__init__()
        self.reach, self.ids = spec.reach, spec.ids
        self.pad = spec.ids.pad if isinstance(spec.ids, c.SkipPadding) else None
        if isinstance(spec, c.LearnedPositions):
            self.weight = nn.Parameter(torch.empty(spec.length, width))

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        keep_BS: Tensor | None = None,
        start: int | Tensor = 0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """The rows of the tokens' positions, [B, T, D] or [1, T, D]. start: how many tokens were seen before.

        dtype: of what they are added to.
        """
        if positions_BT is None:
            length = ids_BT.shape[1] + (start if isinstance(start, int) else 0)
            if self.reach is not None and length > self.reach:
                raise UsageError(f"{length} tokens, and the table of positions has {self.reach}")
            positions_BT = self.position_ids(ids_BT, keep_BS, start)
        elif self.pad is None:
            positions_BT = positions_BT + self.ids.offset
        return self.rows(positions_BT, dtype)

    def rows(self, positions_BT: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows of the table."""
        return F.embedding(positions_BT, self.weight, padding_idx=self.pad)

    def position_ids(self, ids_BT: Tensor, keep_BS: Tensor | None = None, start: int | Tensor = 0) -> Tensor:
        """Rows of the table, [B, T] or [1, T]."""
        length = ids_BT.shape[1]
        if self.pad is not None:
            real_BT = ids_BT.ne(self.pad).long()
            return (real_BT.cumsum(1) + start) * real_BT + self.pad
        if isinstance(self.ids, c.Consecutive) or keep_BS is None:
            return torch.arange(length, device=ids_BT.device)[None] + start + self.ids.offset
        real_BS = keep_BS.long()
        return (real_BS.cumsum(1) * real_BS + self.ids.offset - 1)[:, -length:]


@runs(c.Sinusoids)
class Sinusoids(LearnedPositions):
    """Sines and cosines in place of a table that is learned (Vaswani et al. 2017, §3.5)."""

    def __init__(self, spec: c.Sinusoids, width: int) -> None:
        super().__init__(spec, width)
        self.spec, self.width = spec, width

    def rows(self, positions_BT: Tensor, dtype: torch.dtype) -> Tensor:
        exact = torch.float64 if dtype == torch.float64 and not self.spec.single else torch.float32
        if self.spec.closed:  # in the order in which the numbers that are in use were once rounded
            half = self.width // 2
            step = math.log(10000) / (half - 1)
            waves_P = torch.exp(torch.arange(half, dtype=exact, device=positions_BT.device) * -step)
            angles_BTP = positions_BT[..., None].to(exact) * waves_P
        else:
            places_P = torch.arange((self.width + 1) // 2, dtype=torch.float64, device=positions_BT.device)
            angles_BTP = positions_BT[..., None].to(torch.float64) / 10000 ** (2 * places_P / self.width)
        sines_BTP, cosines_BTP = angles_BTP.sin(), angles_BTP.cos()
        if self.spec.apart:
            x_BTD = torch.cat([sines_BTP, cosines_BTP], -1)[..., : self.width]
        else:
            x_BTD = torch.stack([sines_BTP, cosines_BTP], -1).flatten(-2)[..., : self.width]
        x_BTD = F.pad(x_BTD, (0, self.width - x_BTD.shape[-1]))  # a channel that is no pair's is zero
        if self.pad is not None:
            x_BTD = x_BTD.masked_fill((positions_BT == self.pad)[..., None], 0)
        return x_BTD.to(exact)


@runs(c.Segments)
class Segments(nn.Module):
    """A vector for each segment id; without ids all are 0 (Devlin et al. 2018, fig. 2)."""

    def __init__(self, spec: c.Segments, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.count, width))

    def forward(self, segments_BT: Tensor) -> Tensor:
        return F.embedding(segments_BT, self.weight)


@runs(c.Projection)
class Projection(nn.Module):
    """A linear map to another width (Lan et al. 2019, §3.1)."""

    def __init__(self, spec: c.Projection, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, spec.width, bias=spec.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.dense(x_BTD)


@runs(c.Embed)
class Embed(nn.Module):
    """norm(token + segment + position), of those that the spec has."""

    def __init__(self, spec: c.Embed, width: int) -> None:
        super().__init__()
        table = None if spec.tied else torch.empty(spec.vocab, spec.width)  # drawing numbers on meta loads a compiler
        self.tokens = None if table is None else nn.Embedding.from_pretrained(table, False, spec.padding)
        inner = spec.child_width("norm", width)
        self.spec = spec
        self.positions = make(spec.positions, inner) if spec.positions else None
        self.segments = make(spec.segments, inner) if spec.segments else None
        self.norm = make_or_pass(spec.norm, inner)
        self.projection = make_or_pass(spec.projection, spec.width)

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None = None,
        segments_BT: Tensor | None = None,
        keep_BT: Tensor | None = None,
        shared_VD: Tensor | None = None,
        start: int | Tensor = 0,
    ) -> Tensor:
        if self.tokens is None:
            x_BTD = F.embedding(ids_BT, shared_VD, padding_idx=self.spec.padding)  # type: ignore[arg-type]
        else:
            x_BTD = self.tokens(ids_BT)
        scale = self.spec.scale
        if scale is not None:
            x_BTD = x_BTD * (x_BTD.new_tensor(scale) if self.spec.rounded else scale)
        if self.spec.early:
            x_BTD = self.projection(x_BTD)
        if self.segments is not None:
            x_BTD = x_BTD + self.segments(torch.zeros_like(ids_BT) if segments_BT is None else segments_BT)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(ids_BT, positions_BT, keep_BT, start, x_BTD.dtype).to(x_BTD.dtype)
        out: Tensor = self.norm(x_BTD)
        return out if self.spec.early else self.projection(out)
