"""Keys and values that a model keeps between calls. B batch, H heads, T new tokens, S keys, C kept, W width of one."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lineage import components as c
from lineage.count import reach
from lineage.errors import UsageError


class Kept:
    """What one attention keeps of each token, up to `limit` tokens: of a window, only those that it still reaches.

    parts: for each tensor kept, how many heads of which width. reach: how many tokens one attends to. fixed: room for
    all is made at once, and every call but the first reads all of it, so that shapes never change.
    """

    def __init__(self, parts: tuple[tuple[int, int], ...], limit: int, reach: int, fixed: bool) -> None:
        self.parts, self.fixed = parts, fixed
        self.limit, self.ring = min(limit, reach), reach < limit
        self.tensors: list[Tensor] = []

    def update(self, start: int | Tensor, first: bool, *new_BHTW: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Keep new tokens at the places from `start` on. first: nothing is kept yet.

        Returns all that their queries may see, and its places [S]; None: these are 0, 1, 2, …
        """
        count = new_BHTW[0].shape[2]
        self.make_room(min(start + count, self.limit) if isinstance(start, int) else self.limit, new_BHTW)
        if isinstance(start, int) and not self.ring:
            for kept, new in zip(self.tensors, new_BHTW, strict=True):
                kept[:, :, start : start + count] = new
            return list(new_BHTW) if first else [kept[:, :, : start + count] for kept in self.tensors], None
        place_T = torch.arange(count, device=new_BHTW[0].device) + start
        if first or not self.ring or count == 1:
            self._put(place_T, new_BHTW)
            if first or not self.ring:
                return list(new_BHTW) if first else self.tensors, None
            size = min(start + 1, self.limit) if isinstance(start, int) else self.limit
            return [kept[:, :, :size] for kept in self.tensors], _places(place_T[-1], size, self.limit)
        # several tokens at once: what they push out of the ring, some of them still see
        seen = _places(place_T[0] - 1, self.tensors[0].shape[2], self.limit)
        whole = [torch.cat([old, new], 2) for old, new in zip(self.tensors, new_BHTW, strict=True)]
        self._put(place_T, new_BHTW)
        return whole, torch.cat([seen, place_T])

    def _put(self, place_T: Tensor, new_BHTW: tuple[Tensor, ...]) -> None:
        slots = place_T[-self.limit :] % self.limit
        for kept, new in zip(self.tensors, new_BHTW, strict=True):
            kept.index_copy_(2, slots, new[:, :, -self.limit :].to(kept.dtype))

    def make_room(self, size: int, like: tuple[Tensor, ...]) -> None:
        """Room for so many tokens, of the types of these; growing doubles it, so that a token costs no copy."""
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
    fresh: nothing was seen yet.
    """

    def __init__(self, spec: c.Model, length: int, fixed: bool = False) -> None:
        self.length = length
        bodies: Iterator[Any] = (block.attention.body for block in spec.depth)
        self.layers = [Kept(body.kept, length, reach(body.mask, length), fixed) for body in bodies]
        self.cross: dict[int, tuple[Tensor, Tensor]] = {}
        self.seen: int | Tensor = torch.zeros((), dtype=torch.long) if fixed else 0
        self.fresh = True
        self.memory: Any = None

    def reserve(self, rows: int, like: Tensor) -> "Cache":
        """Make room for so many texts now, of the type and on the device of this tensor; else the first call does.

        A graph of the device that is recorded once needs it: what it writes to must not move. Returns itself.
        """
        for layer in self.layers:
            layer.make_room(layer.limit, tuple(like.new_empty(rows, heads, 0, width) for heads, width in layer.parts))
            for kept in layer.tensors:
                torch._dynamo.mark_static_address(kept)
        if isinstance(self.seen, Tensor):
            self.seen = self.seen.to(like.device)
            torch._dynamo.mark_static_address(self.seen)
        return self

    def begin(self, count: int, memory: Any) -> int | Tensor:
        """How many tokens were seen before these. Raises UsageError if there is no room. memory: of the encoder."""
        if not torch.compiler.is_compiling() and int(self.seen) + count > self.length:
            raise UsageError(f"the cache holds {self.length} tokens, and {int(self.seen) + count} were given")
        self.memory = memory
        return self.seen

    def advance(self, count: int) -> None:
        """Remember that so many tokens more were seen."""
        self.fresh = False
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
