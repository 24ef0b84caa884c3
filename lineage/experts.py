"""Mixtures of experts (Shazeer et al. 2017) as components."""

from collections.abc import Mapping

from lineage.fields import Component, Shape, check_activation, choice, contradiction, size

SCORES, NORMALISATIONS = ("softmax", "sigmoid", "none"), ("none", "sum", "softmax")


class Router(Component):
    """Which experts see a token, and how much each counts: score → the top_k largest → normalise over those chosen.

    (Shazeer et al. 2017, eq. 2 to 5; Jiang et al. 2024, §2.1.) rounded: the weights are rounded to the model's type
    before they are used, and not only their product.
    """

    experts: int = size()
    top_k: int = size()
    score: str = choice(default="softmax")
    normalise: str = choice(default="sum")
    rounded: bool = choice(default=False)

    def check(self) -> None:
        if self.top_k > self.experts:
            raise contradiction(f"top_k {self.top_k} of {self.experts} experts", "top_k", "experts")
        if self.score not in SCORES or self.normalise not in NORMALISATIONS:
            raise contradiction(
                f"Router: {self.score[:20]!r}, {self.normalise[:20]!r} are not of {SCORES}, {NORMALISATIONS}",
                "score",
                "normalise",
            )

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.experts, width)}


class Experts(Component):
    """Several gated feed-forward networks of one shape, of which a router chooses a few for each token.

    Their tensors are stacked: [experts, out, in].
    """

    router: Router = choice()
    width: int = size()
    activation: str = choice()

    def check(self) -> None:
        check_activation(self.activation)

    def tensors(self, width: int) -> Mapping[str, Shape]:
        count = self.router.experts
        return {
            "gate": (count, self.width, width),
            "up": (count, self.width, width),
            "down": (count, width, self.width),
        }
