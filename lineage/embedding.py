"""From tokens to vectors, as components."""

from collections.abc import Mapping

from lineage.fields import Component, Shape, check_positive, choice, contradiction, dense, size
from lineage.norms import Norm, check_tables


class Consecutive(Component):
    """Position ids offset, offset + 1, … by place, padding or not."""

    offset: int = choice(default=0)

    def check(self) -> None:
        if self.offset < 0:
            raise contradiction(f"offset {self.offset} leaves the first tokens no id", "offset")


class SkipPadding(Component):
    """Position ids that count tokens other than `pad`, from pad + 1 on; every `pad` itself has id `pad` (fairseq)."""

    pad: int = choice()

    @property
    def offset(self) -> int:
        return self.pad + 1

    def check(self) -> None:
        if self.pad < 0:
            raise contradiction(f"pad {self.pad} is not a token", "pad")


class SkipMasked(Component):
    """Position ids that count what the attention mask keeps, from `offset` on; the rest has id offset - 1."""

    offset: int = choice(default=1)

    def check(self) -> None:
        if self.offset < 1:
            raise contradiction(f"offset {self.offset} leaves the masked no id", "offset")


class LearnedPositions(Component):
    """A table of position vectors, added to the token's (Gehring et al. 2017). length: of the table, in rows."""

    length: int = size()
    ids: Consecutive | SkipPadding | SkipMasked = choice(default=Consecutive())

    def check(self) -> None:
        if self.reach < 1:
            raise contradiction(f"{self.length} positions leave no token a place", "pad", "context")

    @property
    def reach(self) -> int:
        """How many tokens have a place."""
        return self.length - self.ids.offset

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.length, width)}


class Sinusoids(Component):
    """Sines and cosines of geometric frequencies, added to the token's vector (Vaswani et al. 2017, §3.5).

    apart: all sines, then all cosines; else they take turns, as in the paper. closed: the frequencies run from 1 to
    1/10000 itself, and not to one step before it; a last channel without a pair is then zero. length: of the table,
    where one limits it. single: the numbers are those of single precision in any case. The row of a token that the ids
    skip is zero.
    """

    length: int | None = size(default=None)
    apart: bool = choice(default=False)
    closed: bool = choice(default=False)
    single: bool = choice(default=True)
    ids: Consecutive | SkipPadding = choice(default=Consecutive())

    @property
    def reach(self) -> int | None:
        """How many tokens have a place; None if nothing limits it."""
        return None if self.length is None else self.length - self.ids.offset

    def check(self) -> None:
        if self.reach is not None and self.reach < 1:
            raise contradiction(f"{self.length} positions leave no token a place", "pad", "context")


class Segments(Component):
    """A table of segment vectors: which of the sentences a token belongs to (Devlin et al. 2018, fig. 2)."""

    count: int = size()

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.count, width)}


class Projection(Component):
    """A linear map to another width (the factorised table of Lan et al. 2019, §3.1)."""

    width: int = size()
    bias: bool = choice()

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return dense("dense", self.width, width, self.bias)


class Embed(Component):
    """Tokens to vectors: token + segment + position, then a norm, of `width`; projected, of the projection's width.

    scale: what the token's vector is multiplied by; rounded: it is first rounded to the model's type. padding: the
    token whose row is not trained by looking it up (a tied head still trains it). early: the projection is of the
    token's vector alone, before anything is added, and not of the result. tied: the token table is the encoder's.
    """

    vocab: int = size()
    width: int = size()
    padding: int | None = choice(default=None)
    positions: LearnedPositions | Sinusoids | None = choice(default=None)
    segments: Segments | None = choice(default=None)
    norm: Norm | None = choice(default=None)
    scale: float | None = choice(default=None)
    rounded: bool = choice(default=True)
    projection: Projection | None = choice(default=None)
    early: bool = choice(default=False)
    tied: bool = choice(default=False)

    def check(self) -> None:
        check_positive(self, "scale")
        if self.padding is not None and not 0 <= self.padding < self.vocab:
            raise contradiction(f"padding token {self.padding} is not one of {self.vocab}", "padding", "vocab")
        if self.early and not self.projection:
            raise contradiction("early is of a projection, and there is none", "early", "projection")
        if isinstance(self.positions, Sinusoids) and self.positions.closed and self.width < 4:
            raise contradiction(f"width {self.width} leaves no step between frequencies", "width", "closed")
        if self.scale is None and not self.rounded:
            raise contradiction("rounded is of a scale, and there is none", "rounded", "scale")
        check_tables(self)

    @property
    def stream(self) -> int:
        """The width of what leaves it."""
        return self.projection.width if self.projection else self.width

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {} if self.tied else {"tokens.weight": (self.vocab, self.width)}

    def child_width(self, child: str, width: int) -> int:
        return self.stream if self.early and child != "projection" else self.width
