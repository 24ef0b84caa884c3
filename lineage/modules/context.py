"""What all blocks of one forward share. B batch, T tokens, S keys, P pairs of channels."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lineage import components as c
from lineage.errors import UsageError
from lineage.modules.cache import Cache
from lineage.modules.rotary import table


@dataclass
class Context:
    """positions_BT: of the tokens, [B, T] or [1, T]. keep_BS: false for padding; None if nothing is padded.

    backend: how attention is computed, see `backends.BACKENDS`. memory: the context of the encoder, whose result is
    hidden_BSD; bias: added to the scores of every block's own attention, [1, H, T, S]. distances: vectors of distances,
    [R, D], and which of them each pair of tokens has, [T, S]. cache: what earlier calls kept;
    start: how many tokens they saw; layer: the depth that runs. Of what its queries may see, keys is the number, keys_S
    the places; None: 0, 1, 2, … asked: of how many tokens at the end this layer's result is wanted; None: of all.
    """

    positions_BT: Tensor
    keep_BS: Tensor | None = None
    backend: str = "sdpa"
    memory: "Context | None" = None
    hidden_BSD: Tensor | None = None
    bias: Tensor | None = None
    distances: tuple[Tensor, Tensor] | None = None
    cache: Cache | None = None
    start: int | Tensor = 0
    layer: int = 0
    keys: int = 0
    keys_S: Tensor | None = None
    asked: int | None = None
    blocks: dict[Any, Any] = field(default_factory=dict, init=False)
    _masks: dict[c.Component, Tensor] = field(default_factory=dict, init=False)
    _tables: dict[c.Component, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    @property
    def places_T(self) -> Tensor:
        """The places of the tokens, padding or not: 0, 1, 2, … from the first call on."""
        return torch.arange(self.positions_BT.shape[1], device=self.positions_BT.device) + self.start

    @property
    def places_S(self) -> Tensor:
        """The places of the keys."""
        if self.cache is None:
            return self.places_T
        return torch.arange(self.keys, device=self.positions_BT.device) if self.keys_S is None else self.keys_S

    @property
    def whole_S(self) -> Tensor:
        """The places of all tokens so far; of a fixed cache, after its first call, of all that it holds."""
        if self.cache is None or self.cache.fresh:
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

    def ask(self, last: int | None, alone: bool) -> None:
        """Want no more of the running layer than the result of the last so many tokens.

        Only if a cache keeps what others need of the rest; alone: and if nothing but attention mixes tokens. Raises
        UsageError for less than one.
        """
        if last is not None and last < 1:
            raise UsageError(f"last is {last}: one position at least, or None for all")
        if alone and self.cache is not None and last is not None and last < self.positions_BT.shape[1]:
            self.asked = last

    def wanted(self, x_BTx: Tensor) -> Tensor:
        """Of these vectors of the tokens, those that the layer's result needs; keys and values are of all."""
        return x_BTx if self.asked is None else x_BTx[:, -self.asked :]

    @property
    def late(self) -> "Context":
        """For attention's product alone: the queries that are wanted, as if they had come after all keys that are kept.

        What is told of all tokens (`whole_S`, `counts_BS`) is asked of the context itself, and before.
        """
        if self.asked is None:
            return self
        start, keys_S = self.start + self.positions_BT.shape[1] - self.asked, self.places_S
        far = None if self.distances is None else (self.distances[0], self.distances[1][-self.asked :])
        queries_BT = self.wanted(self.positions_BT)
        return replace(self, positions_BT=queries_BT, start=start, keys_S=keys_S, distances=far, asked=None)

    def kept(self, *new_BHTW: Tensor) -> list[Tensor]:
        """Keys and values of these tokens and, with a cache, of all before them."""
        if self.cache is None:
            return list(new_BHTW)
        whole, self.keys_S = self.cache.layers[self.layer].update(self.start, self.cache.fresh, *new_BHTW)
        self.keys = whole[0].shape[2]
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
        if self.keep_BS is None and self._sees_all(spec):
            return None
        if spec not in self._masks:
            first = 0 if self.first_B is None else self.first_B[:, None, None, None]
            allowed = sees(spec, self.places_T[:, None], self.places_S[None, None, None, :], first)
            self._masks[spec] = allowed if self.kept_keys is None else allowed & self.kept_keys[:, None, None, :]
        return self._masks[spec]

    @property
    def kept_keys(self) -> Tensor | None:
        """Which keys are no padding, [B, S]; None if nothing is padded."""
        return None if self.keep_BS is None else _at(self.keep_BS, self.places_S)

    @property
    def first_B(self) -> Tensor | None:
        """The place of each row's first token that is no padding; None if nothing is padded."""
        return None if self.keep_BS is None else (self.keep_BS.cumsum(1) == 0).sum(1)

    def _sees_all(self, spec: c.Mask) -> bool:
        """Whether every query sees every key: those of one new token and before it that it reaches, no more."""
        if isinstance(spec, c.Bidirectional):
            return spec.reach is None
        single = self.cache is not None and self.positions_BT.shape[1] == 1 and isinstance(self.start, int)
        return single and isinstance(spec, c.Causal) and self.keys <= (spec.window or self.keys)

    def plainly_causal(self, spec: c.Mask) -> bool:
        """Whether causality is all that the mask says, so that a kernel need not be given one."""
        if self.keep_BS is not None or not isinstance(spec, c.Causal):
            return False
        length = self.positions_BT.shape[1]
        if self.cache is not None and (not self.cache.fresh or self.keys_S is not None or length == 1):
            return False
        if spec.window is not None and spec.window < length:  # noqa: SIM103  (compared, a compiler's length is no bool)
            return False
        return True

    def rotation(self, spec: c.Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a rotation, made once a forward."""
        if spec not in self._tables:
            if not isinstance(self.start, int) and isinstance(spec.scaling, c.Dynamic | c.LongRope):
                raise UsageError("rotary positions that depend on the length of the text need a cache that grows")
            length = self.positions_BT.shape[1] + (self.start if isinstance(self.start, int) else 0)
            self._tables[spec] = table(spec, self.positions_BT, dtype, length)
        return self._tables[spec]


def sees(spec: c.Mask, place_T: Tensor, place_S: Tensor, first: Tensor | int = 0) -> Tensor:
    """Whether a query at one place may look at a key at another, padding apart. first: where the row's text begins."""
    if isinstance(spec, c.Bidirectional) and spec.reach is None:
        return torch.ones((1,) * place_S.dim(), dtype=torch.bool, device=place_S.device)  # whatever the queries are of
    back_TS = place_T - place_S
    if isinstance(spec, c.Bidirectional):
        return back_TS.abs() <= (spec.reach or 0)
    allowed = (back_TS >= 0) & (place_S >= 0)
    if isinstance(spec, c.Chunked):
        one, other = (torch.div(place - first, spec.length, rounding_mode="floor") for place in (place_T, place_S))
        return allowed & (one == other)
    return allowed if spec.window is None else allowed & (back_TS < spec.window)


def _at(told_BS: Tensor, place_S: Tensor) -> Tensor:
    """What is told of places; of those beyond, which no query sees, anything."""
    return told_BS[:, place_S.clamp(0, told_BS.shape[1] - 1)]
