"""Keys and values that a model keeps between calls. B batch, H heads, T new tokens, S keys, C kept, W width of one."""

from typing import Any

import torch
from torch import Tensor

from lineage import components as c
from lineage.errors import UsageError


class Kept:
    """What one attention keeps of each token, up to `limit` tokens: of a window, only those that it still reaches.

    parts: for each tensor kept, how many heads of which width. fixed: room for all is made at once, and every call
    reads all of it, so that shapes never change.
    """

    def __init__(self, parts: tuple[tuple[int, int], ...], limit: int, window: int | None, fixed: bool) -> None:
        self.parts, self.fixed = parts, fixed
        self.limit = min(limit, window or limit)
        self.ring = window is not None and window < limit
        self.tensors: list[Tensor] = []

    def update(self, start: int | Tensor, *new_BHTW: Tensor) -> tuple[list[Tensor], Tensor]:
        """Keep new tokens at the places from `start` on. Returns all that their queries may see, and its places [S]."""
        count, device = new_BHTW[0].shape[2], new_BHTW[0].device
        place_T = torch.arange(count, device=device) + start
        if isinstance(start, int) and not self.fixed:
            self._make_room(min(start + count, self.limit), new_BHTW)
        elif not self.tensors:
            self._make_room(self.limit, new_BHTW)
        if not self.ring:
            return self._write(place_T, new_BHTW, start)
        if count == 1:
            self._put(place_T % self.limit, new_BHTW)
            size = min(start + 1, self.limit) if isinstance(start, int) else self.limit
            return [kept[:, :, :size] for kept in self.tensors], _places(place_T[-1], size, self.limit)
        # several tokens at once: what they push out of the ring, some of them still see
        before, seen = list(self.tensors), _places(place_T[0] - 1, self.tensors[0].shape[2], self.limit)
        whole = [torch.cat([old, new], 2) for old, new in zip(before, new_BHTW, strict=True)]
        last = place_T[-self.limit :]
        self._put(last % self.limit, tuple(new[:, :, -self.limit :] for new in new_BHTW))
        return whole, torch.cat([seen, place_T])

    def _write(self, place_T: Tensor, new_BHTW: tuple[Tensor, ...], start: int | Tensor) -> tuple[list[Tensor], Tensor]:
        self._put(place_T, new_BHTW)
        if isinstance(start, int) and not self.fixed:
            end = start + new_BHTW[0].shape[2]
            return [kept[:, :, :end] for kept in self.tensors], torch.arange(end, device=place_T.device)
        return self.tensors, torch.arange(self.limit, device=place_T.device)

    def _put(self, slots: Tensor, new_BHTW: tuple[Tensor, ...]) -> None:
        for kept, new in zip(self.tensors, new_BHTW, strict=True):
            kept.index_copy_(2, slots, new.to(kept.dtype))

    def _make_room(self, size: int, like: tuple[Tensor, ...]) -> None:
        """Room for so many tokens; when it grows, for twice as many, so that a token costs no copy of all others."""
        if self.tensors and self.tensors[0].shape[2] >= size:
            return
        room = size if not self.tensors else min(max(size, 2 * self.tensors[0].shape[2]), self.limit)
        made = [
            new.new_zeros(new.shape[0], heads, room, width)
            for new, (heads, width) in zip(like, self.parts, strict=True)
        ]
        for old, new in zip(self.tensors, made, strict=False):
            new[:, :, : old.shape[2]] = old
        self.tensors = made


def _places(last: Tensor, size: int, ring: int) -> Tensor:
    """The place that each slot of a ring holds, when the newest is `last`; negative for those not yet filled."""
    slot = torch.arange(size, device=last.device)
    return last - (last - slot) % ring


class Cache:
    """What a model keeps of the tokens that it has seen, a `Kept` for each layer; and of an encoder's result, once.

    length: tokens at most. fixed: as `Kept`; then `seen` is a tensor, and nothing in a call depends on its value.
    """

    def __init__(self, spec: c.Model, length: int, fixed: bool = False) -> None:
        self.length = length
        self.layers = [Kept(kept_of(block), length, window_of(block), fixed) for block in spec.depth]
        self.cross: dict[int, tuple[Tensor, Tensor]] = {}
        self.seen: int | Tensor = torch.zeros((), dtype=torch.long) if fixed else 0
        self.memory: Any = None

    def begin(self, count: int, memory: Any) -> int | Tensor:
        """How many tokens were seen before these. Raises UsageError if there is no room. memory: of the encoder."""
        if not torch.compiler.is_compiling() and int(self.seen) + count > self.length:
            raise UsageError(f"the cache holds {self.length} tokens, and {int(self.seen) + count} were given")
        self.memory = memory
        return self.seen

    def advance(self, count: int) -> None:
        """Remember that so many tokens more were seen."""
        if isinstance(self.seen, int):
            self.seen += count
        else:
            self.seen.add_(count)

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: of beams, those that live on."""
        for layer in self.layers:
            layer.tensors = [kept.index_select(0, rows) for kept in layer.tensors]

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        held = [
            *(kept for layer in self.layers for kept in layer.tensors),
            *(x for pair in self.cross.values() for x in pair),
        ]
        return sum(kept.numel() * kept.element_size() for kept in held)


def kept_of(block: c.Block) -> tuple[tuple[int, int], ...]:
    """What a layer keeps of each token: heads and width of keys and values, or of the latent that they come from."""
    body = block.attention.body
    if isinstance(body, c.LatentAttention):
        return ((1, body.latent + body.rotary.width),)
    assert isinstance(body, c.Attention)
    return ((body.kv_heads, body.head_width),) * 2


def window_of(block: c.Block) -> int | None:
    """How many tokens a layer's attention reaches; None if all."""
    mask = block.attention.body.mask if isinstance(block.attention.body, c.Attention | c.LatentAttention) else None
    return mask.window if isinstance(mask, c.Causal) else None
