"""What all blocks of one forward share. B batch, T tokens, S keys, P pairs of channels."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.cache import Cache
from lineage.modules.rotary import table


@dataclass
class Context:
    """positions_BT: of the tokens, [B, T] or [1, T]. keep_BS: false for padding; None if nothing is padded.

    backend: how attention is computed, see `attention.BACKENDS`. memory: the context of the encoder, whose result is
    hidden_BSD; bias: added to the scores of every block's own attention, [1, H, T, S]. cache: what earlier calls kept;
    start: how many tokens they saw; layer: the depth that runs; keys_S: the places of what its queries may see.
    """

    positions_BT: Tensor
    keep_BS: Tensor | None = None
    backend: str = "sdpa"
    memory: "Context | None" = None
    hidden_BSD: Tensor | None = None
    bias: Tensor | None = None
    cache: Cache | None = None
    start: int | Tensor = 0
    layer: int = 0
    keys_S: Tensor | None = None
    _masks: dict[c.Component, Tensor] = field(default_factory=dict)
    _tables: dict[c.Component, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def places_T(self) -> Tensor:
        """The places of the tokens, padding or not: 0, 1, 2, … from the first call on."""
        return torch.arange(self.positions_BT.shape[1], device=self.positions_BT.device) + self.start

    @property
    def places_S(self) -> Tensor:
        """The places of the keys."""
        return self.places_T if self.keys_S is None else self.keys_S

    @property
    def whole_S(self) -> Tensor:
        """The places of all tokens so far; of a fixed cache, of all that it holds."""
        if self.cache is None:
            return self.places_T
        fixed = not isinstance(self.start, int)
        end = self.cache.length if fixed else self.positions_BT.shape[1] + int(self.start)
        return torch.arange(end, device=self.positions_BT.device)

    @property
    def counts_BS(self) -> Tensor:
        """How many tokens before each place are no padding; 0 for padding. [B, S] or [1, S]."""
        if self.keep_BS is None:
            return self.whole_S[None]
        return _at((self.keep_BS.cumsum(1) - 1) * self.keep_BS, self.whole_S)

    def kept(self, *new_BHTW: Tensor) -> list[Tensor]:
        """Keys and values of these tokens and, with a cache, of all before them."""
        if self.cache is None:
            return list(new_BHTW)
        whole, self.keys_S = self.cache.layers[self.layer].update(self.start, *new_BHTW)
        return whole

    def once(self, make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's result: made by the first call, and kept."""
        assert self.memory is not None
        assert self.memory.hidden_BSD is not None
        if self.cache is None:
            return make(self.memory.hidden_BSD)
        if self.layer not in self.cache.cross:
            self.cache.cross[self.layer] = make(self.memory.hidden_BSD)
        return self.cache.cross[self.layer]

    def mask(self, spec: c.Mask) -> Tensor | None:
        """True where a query may look at a key, [B or 1, 1, T or 1, S]; None if all may."""
        if self.keep_BS is None and (spec == c.Bidirectional() or self._sees_all(spec)):
            return None
        if spec not in self._masks:
            place_T, place_S = self.places_T, self.places_S
            back_TS = place_T[:, None] - place_S[None, :]
            allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=place_T.device)
            if isinstance(spec, c.Bidirectional):
                allowed = allowed if spec.reach is None else allowed & (back_TS.abs() <= spec.reach)
            else:
                allowed = allowed & (back_TS >= 0) & (place_S >= 0)
                window = spec.window if isinstance(spec, c.Causal) else spec.length
                allowed = allowed if window is None else allowed & (back_TS < window)
            if isinstance(spec, c.Chunked):
                first = 0 if self.keep_BS is None else (self.keep_BS.cumsum(1) == 0).sum(1, keepdim=True)
                one, other = (
                    torch.div(place[None] - first, spec.length, rounding_mode="floor") for place in (place_T, place_S)
                )
                allowed = allowed & (one[:, None, :, None] == other[:, None, None, :])
            keep = None if self.keep_BS is None else _at(self.keep_BS, place_S)
            self._masks[spec] = allowed if keep is None else allowed & keep[:, None, None, :]
        return self._masks[spec]

    def _sees_all(self, spec: c.Mask) -> bool:
        """Whether these are the keys of one new token and those before it that it reaches, no more."""
        single = self.cache is not None and self.positions_BT.shape[1] == 1 and isinstance(self.start, int)
        return single and isinstance(spec, c.Causal) and len(self.places_S) <= (spec.window or len(self.places_S))

    def plainly_causal(self, spec: c.Mask) -> bool:
        """Whether causality is all that the mask says, so that a kernel need not be given one."""
        length = self.positions_BT.shape[1]
        shorter = isinstance(spec, c.Causal) and (spec.window is None or spec.window >= length)
        return shorter and self.keep_BS is None and isinstance(self.start, int) and len(self.places_S) == length

    def rotation(self, spec: c.Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a rotation, made once a forward."""
        if spec not in self._tables:
            if not isinstance(self.start, int) and isinstance(spec.scaling, c.Dynamic | c.LongRope):
                raise UsageError("rotary positions that depend on the length of the text need a cache that grows")
            length = self.positions_BT.shape[1] + (self.start if isinstance(self.start, int) else 0)
            self._tables[spec] = table(spec, self.positions_BT, dtype, length)
        return self._tables[spec]


def _at(told_BS: Tensor, place_S: Tensor) -> Tensor:
    """What is told of places; of those beyond, which no query sees, anything."""
    return told_BS[:, place_S.clamp(0, told_BS.shape[1] - 1)]
