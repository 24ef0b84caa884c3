"""Rotary positions (Su et al. 2021) and the rules that stretch them to longer texts, as components."""

from lineage.fields import Component, check_positive, choice, contradiction, size


class Linear(Component):
    """Positions divided by a factor (Chen et al. 2023, eq. 4)."""

    factor: float = choice()

    def check(self) -> None:
        check_positive(self, "factor")


class Dynamic(Component):
    """A larger theta for calls longer than `length` (NTK-aware, bloc97 2023): depends on the length of the call."""

    factor: float = choice()
    length: int = size()

    def check(self) -> None:
        check_positive(self, "factor")


class Banded(Component):
    """Slow frequencies divided by a factor, fast ones kept, those between blended (Llama 3.1, Dubey et al. 2024).

    low, high: turns within `length` that bound the blended band.
    """

    factor: float = choice()
    low: float = choice()
    high: float = choice()
    length: int = size()

    def check(self) -> None:
        check_positive(self, "factor", "low", "high")


class Yarn(Component):
    """Interpolation by frequency, and hotter scores (Peng et al. 2023, eq. 17 to 22).

    fast, slow: turns within `length` that bound the ramp; whole: its ends are rounded to whole dimensions.
    attention: what cosines and sines are multiplied by, None for 0.1 · ln(factor) + 1.
    """

    factor: float = choice()
    length: int = size()
    fast: float = choice(default=32.0)
    slow: float = choice(default=1.0)
    whole: bool = choice(default=True)
    attention: float | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "factor", "fast", "slow", "attention")


Scaling = Linear | Dynamic | Banded | Yarn


class Rotary(Component):
    """The first `width` channels of each head turned by an angle that grows with position (Su et al. 2021, eq. 34).

    pairing: which channels turn together, "halves" (c with c + width/2) or "neighbours" (2c with 2c + 1).
    """

    theta: float = choice()
    width: int = size()
    pairing: str = choice(default="halves")
    scaling: Scaling | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "theta")
        if self.width % 2:
            raise contradiction(f"Rotary: width {self.width} is odd", "head_size", "share")
        if self.pairing not in ("halves", "neighbours"):
            raise contradiction(f"Rotary: pairing {self.pairing[:20]!r} is not halves or neighbours", "pairing")
