"""Norms as components."""

from collections.abc import Mapping

from lineage.fields import Component, Shape, choice, contradiction, size


class LayerNorm(Component):
    """(x - mean) / √(variance + eps) · weight + bias, over the last axis (Ba et al. 2016, eq. 4).

    weight, bias: whether it has them. tables: of heads that it is applied to, where each has a weight of its own.
    exact: in single precision, and rounded once.
    """

    eps: float = choice()
    bias: bool = choice(default=True)
    weight: bool = choice(default=True)
    tables: int | None = size(default=None)
    exact: bool = choice(default=False)

    def check(self) -> None:
        if self.eps < 0:
            raise contradiction(f"LayerNorm: eps {self.eps!r} is negative", "eps")
        if self.bias and (not self.weight or self.tables):
            raise contradiction("LayerNorm: a bias needs one weight", "bias")
        if self.tables and not self.weight:
            raise contradiction("LayerNorm: tables are of weights, and there are none", "tables", "weight")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        weight: Shape = (width,) if self.tables is None else (self.tables, width)
        return ({"weight": weight} if self.weight else {}) | ({"bias": (width,)} if self.bias else {})


class RMSNorm(Component):
    """x / √(mean(x²) + eps) · weight, over the last axis (Zhang & Sennrich 2019, eq. 4).

    plus_one: the stored weight is one less than what is multiplied. late: the result is rounded to the model's type
    after the weight and not before it. weight: whether it has one.
    """

    eps: float = choice()
    plus_one: bool = choice(default=False)
    late: bool = choice(default=False)
    weight: bool = choice(default=True)

    def check(self) -> None:
        if self.eps < 0:
            raise contradiction(f"RMSNorm: eps {self.eps!r} is negative", "eps")
        if (self.plus_one or self.late) and not self.weight:
            raise contradiction("RMSNorm: plus_one and late are of a weight, and there is none", "weight")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (width,)} if self.weight else {}


Norm = LayerNorm | RMSNorm


def check_tables(component: Component, **heads: int | None) -> None:
    """Raise ArchitectureError if a norm has tables of heads, unless it is one of these, and has as many."""
    for name, norm in vars(component).items():
        if isinstance(norm, LayerNorm) and norm.tables not in (None, heads.get(name)):
            raise contradiction(f"{name} has a table for each of {norm.tables} heads, and is not of these", name)
