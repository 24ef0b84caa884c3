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


class LongRope(Component):
    """Each pair's frequency divided by a factor of its own (Ding et al. 2024, eq. 1): `long` for calls longer than
    `length`, else `short`. attention, long_attention: what cosines and sines are multiplied by.
    """

    short: tuple[float, ...] = choice()
    long: tuple[float, ...] = choice()
    length: int = size()
    attention: float = choice(default=1.0)
    long_attention: float = choice(default=1.0)

    def check(self) -> None:
        check_positive(self, "attention", "long_attention")
        if len(self.short) != len(self.long) or not all(factor > 0 for factor in (*self.short, *self.long)):
            raise contradiction("LongRope: short and long are not as many positive factors", "scaling")


Scaling = Linear | Dynamic | Banded | Yarn | LongRope


class Rotary(Component):
    """The first `width` channels of each head turned by an angle that grows with position (Su et al. 2021, eq. 34).

    pairing: which channels turn together, "halves" (c with c + width/2) or "neighbours" (2c with 2c + 1). rounded: what
    is rounded to the model's type: cosines and sines ("table"), what was turned in single precision ("result"), "both".
    length: how many places have an angle; None if all have.
    """

    theta: float = choice()
    width: int = size()
    pairing: str = choice(default="halves")
    scaling: Scaling | None = choice(default=None)
    rounded: str = choice(default="table")
    length: int | None = size(default=None)

    def check(self) -> None:
        check_positive(self, "theta")
        if self.width % 2:
            raise contradiction(f"Rotary: width {self.width} is odd", "head_size", "share")
        if self.pairing not in ("halves", "neighbours"):
            raise contradiction(f"Rotary: pairing {self.pairing[:20]!r} is not halves or neighbours", "pairing")
        if (self.width < 4 and isinstance(self.scaling, Dynamic)) or (
            self.theta == 1 and isinstance(self.scaling, Yarn)
        ):
            raise contradiction("Rotary: with one frequency there is nothing to stretch", "scaling", "theta")
        if self.rounded not in ("table", "result", "both"):
            raise contradiction(f"Rotary: rounded {self.rounded[:20]!r} is not table, result or both", "rounded")
        if isinstance(self.scaling, LongRope) and len(self.scaling.short) != self.width // 2:
            raise contradiction(
                f"Rotary: {len(self.scaling.short)} factors for {self.width // 2} pairs of channels", "scaling"
            )
