"""What all blocks of one forward share. B batch, T tokens, S keys."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Context:
    """keep_BS: true for real tokens, false for padding; None if nothing is padded. length: T. device: of the tokens.

    backend: how attention is computed, see `attention.BACKENDS`.
    """

    length: int
    device: torch.device
    keep_BS: Tensor | None = None
    backend: str = "sdpa"
    _masks: dict[bool, Tensor] = field(default_factory=dict)

    def mask(self, causal: bool) -> Tensor | None:
        """[B, 1, T or 1, S], true where a query may look at a key; None if all may, or if only causality forbids."""
        if self.keep_BS is None:
            return None
        if causal not in self._masks:
            keep = self.keep_BS[:, None, None, :]
            self._masks[causal] = keep & self.causal() if causal else keep
        return self._masks[causal]

    def causal(self) -> Tensor:
        """[T, T], true where a query may look at a key: not after itself."""
        return torch.ones(self.length, self.length, dtype=torch.bool, device=self.device).tril()
