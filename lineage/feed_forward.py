"""Feed-forward networks and mixtures of them (Shazeer et al. 2017), as components."""

from collections.abc import Mapping

from lineage.fields import Component, Shape, check_activation, check_positive, choice, contradiction, dense, size

SCORES, NORMALISATIONS = ("softmax", "sigmoid", "none", "mixer"), ("none", "sum", "softmax", "sigmoid")


class FeedForward(Component):
    """down(activation(up(x))), the same for each position (Vaswani et al. 2017, eq. 2).

    gated: down(activation(gate(x)) · up(x)) (Shazeer 2020, eq. 6).
    """

    width: int = size()
    activation: str = choice()
    bias: bool = choice()
    gated: bool = choice(default=False)

    def check(self) -> None:
        check_activation(self.activation)

    def tensors(self, width: int) -> Mapping[str, Shape]:
        gate = dense("gate", self.width, width, self.bias) if self.gated else {}
        return gate | dense("up", self.width, width, self.bias) | dense("down", width, self.width, self.bias)


class Clamp(Component):
    """The gate's product (up + 1) · gate · σ(slope · gate), of gates up to `limit` and ups within ±limit (gpt-oss)."""

    limit: float = choice()
    slope: float = choice()

    def check(self) -> None:
        check_positive(self, "limit", "slope")


class Groups(Component):
    """Experts in `count` groups, of which only the best `keep` are open (DeepSeek-V2, §2.2.2).

    pair: a group is judged by the sum of its two best scores and not by its best.
    """

    count: int = size()
    keep: int = size()
    pair: bool = choice(default=False)


class Router(Component):
    """Which experts see a token, and how much each counts: score → the top_k largest → normalise over those chosen.

    (Shazeer et al. 2017, eq. 2 to 5; Jiang et al. 2024, §2.1.) bias: of the scores' linear map. correction: a number
    for each expert that is added when choosing and not when weighing (DeepSeek-V3, eq. 16). scale: of the weights.
    eps: added to the sum that they are divided by. jitter: of the score "mixer", which takes one expert after the
    other, each weighed among those within 2 · jitter of the best (Liu et al. 2024, GRIN, §2). rounded: weights are
    rounded to the model's type before they are used. exact: logits are in single precision too. capacity: how many
    tokens of a row an expert takes; those after them get nothing from it (Fedus et al. 2021, §2.2), so that a token's
    result depends on the others of its row and call.
    """

    experts: int = size()
    top_k: int = size()
    score: str = choice(default="softmax")
    normalise: str = choice(default="sum")
    bias: bool = choice(default=False)
    correction: bool = choice(default=False)
    groups: Groups | None = choice(default=None)
    scale: float = choice(default=1.0)
    eps: float = choice(default=0.0)
    jitter: float | None = choice(default=None)
    capacity: int | None = size(default=None)
    rounded: bool = choice(default=False)
    exact: bool = choice(default=False)

    def check(self) -> None:
        check_positive(self, "scale")
        if self.eps < 0 or (self.jitter or 0) < 0:
            raise contradiction(f"Router: eps {self.eps!r}, jitter {self.jitter!r}: negative", "eps", "jitter")
        if self.top_k > self.experts:
            raise contradiction(f"top_k {self.top_k} of {self.experts} experts", "top_k", "experts")
        if self.score not in SCORES or self.normalise not in NORMALISATIONS:
            raise contradiction(
                f"Router: {self.score[:20]!r}, {self.normalise[:20]!r} are not of {SCORES}, {NORMALISATIONS}",
                "score",
                "normalise",
            )
        if (self.score == "mixer") != (self.jitter is not None):
            raise contradiction("Router: jitter belongs to the score mixer", "jitter", "score")
        if self.jitter is not None and (self.correction or self.groups or self.rounded):
            raise contradiction("Router: the mixer knows no correction and no groups, and rounds at once", "score")
        if self.capacity is not None and self.top_k != 1:
            raise contradiction("a capacity is of routers that choose one expert", "capacity", "top_k")
        if self.groups and (self.experts % self.groups.count or self.groups.keep > self.groups.count):
            raise contradiction(
                f"{self.groups.keep} of {self.groups.count} groups of {self.experts} experts", "groups", "experts"
            )
        if self.groups and self.experts // self.groups.count * self.groups.keep < self.top_k:
            raise contradiction(f"the groups kept hold fewer than {self.top_k} experts", "groups", "top_k")
        if self.groups and self.groups.pair and self.experts // self.groups.count < 2:
            raise contradiction("a group of one expert has no two best", "groups", "experts")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        one: dict[str, Shape] = {"weight": (self.experts, width)}
        further = {"bias": self.bias, "correction": self.correction}
        return one | {name: (self.experts,) for name, there in further.items() if there}


class Experts(Component):
    """Several gated feed-forward networks of one shape, of which a router chooses a few for each token.

    Their tensors are stacked: [experts, out, in]. gated: as in FeedForward. clamp: another product of gate and up.
    shared: a network that sees every token (DeepSeekMoE, Dai et al. 2024, §3.2); shared_gate: times σ of a number
    that is linear in x. early: the router's weight multiplies what enters an expert and not what leaves it.
    """

    router: Router = choice()
    width: int = size()
    activation: str = choice()
    gated: bool = choice(default=True)
    bias: bool = choice(default=False)
    clamp: Clamp | None = choice(default=None)
    shared: FeedForward | None = choice(default=None)
    shared_gate: bool = choice(default=False)
    early: bool = choice(default=False)

    def check(self) -> None:
        check_activation(self.activation)
        if self.shared_gate and not self.shared:
            raise contradiction("shared_gate gates a shared expert, and there is none", "shared_gate", "shared")
        if self.clamp and not self.gated:
            raise contradiction("a clamp joins gate and up, and there is no gate", "clamp", "gated")
        if self.clamp and self.activation != "silu":
            raise contradiction("a clamp's product has an activation of its own, silu", "clamp", "activation")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        count, inner = self.router.experts, self.width
        names = ("gate", "up", "down") if self.gated else ("up", "down")
        shapes: dict[str, tuple[int, int]] = {
            name: (width, inner) if name == "down" else (inner, width) for name in names
        }
        found: dict[str, Shape] = {name: (count, *shape) for name, shape in shapes.items()}
        if self.bias:
            found |= {f"{name}_bias": (count, shape[0]) for name, shape in shapes.items()}
        return found | ({"shared_gate.weight": (1, width)} if self.shared_gate else {})
