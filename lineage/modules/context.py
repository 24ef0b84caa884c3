"""What all blocks of one forward share. B batch, T tokens, S keys, P pairs of channels."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lineage import components as c
from lineage.modules.rotary import table


@dataclass
class Context:
    """positions_BT: of the tokens, [B, T] or [1, T]. keep_BS: false for padding; None if nothing is padded.

    backend: how attention is computed, see `attention.BACKENDS`. memory: the context of the encoder, whose result is
    hidden_BSD; bias: added to the scores of every block's own attention, [1, H, T, S].
    """

    positions_BT: Tensor
    keep_BS: Tensor | None = None
    backend: str = "sdpa"
    memory: "Context | None" = None
    hidden_BSD: Tensor | None = None
    bias: Tensor | None = None
    _masks: dict[c.Component, Tensor] = field(default_factory=dict)
    _tables: dict[c.Component, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def places_T(self) -> Tensor:
        """0, 1, 2, … of the tokens, padding or not."""
        return torch.arange(self.positions_BT.shape[1], device=self.positions_BT.device)

    @property
    def counts_BS(self) -> Tensor:
        """How many tokens before each key are no padding; 0 for padding. [B, S] or [1, S]."""
        return self.places_T[None] if self.keep_BS is None else (self.keep_BS.cumsum(1) - 1) * self.keep_BS

    def mask(self, spec: c.Mask) -> Tensor | None:
        """True where a query may look at a key, [B or 1, 1, T or 1, S]; None if all may."""
        if spec == c.Bidirectional() and self.keep_BS is None:
            return None
        if spec not in self._masks:
            place_T = self.places_T
            allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=place_T.device)
            back_TS = place_T[:, None] - place_T[None, :]
            if isinstance(spec, c.Bidirectional):
                allowed = allowed if spec.reach is None else allowed & (back_TS.abs() <= spec.reach)
            else:
                window = spec.window if isinstance(spec, c.Causal) else spec.length
                allowed = allowed & (back_TS >= 0) & (back_TS < (window or len(place_T)))
            if isinstance(spec, c.Chunked):
                first = 0 if self.keep_BS is None else (self.keep_BS.cumsum(1) == 0).sum(1, keepdim=True)
                chunk_BT = torch.div(place_T[None] - first, spec.length, rounding_mode="floor")
                allowed = allowed & (chunk_BT[:, None, :, None] == chunk_BT[:, None, None, :])
            self._masks[spec] = allowed if self.keep_BS is None else allowed & self.keep_BS[:, None, None, :]
        return self._masks[spec]

    def plainly_causal(self, spec: c.Mask) -> bool:
        """Whether causality is all that the mask says, so that a kernel need not be given one."""
        shorter = isinstance(spec, c.Causal) and (spec.window is None or spec.window >= self.positions_BT.shape[1])
        return shorter and self.keep_BS is None

    def rotation(self, spec: c.Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a rotation, made once a forward."""
        if spec not in self._tables:
            self._tables[spec] = table(spec, self.positions_BT, dtype)
        return self._tables[spec]
