"""ModernBERT (Warner et al., 2024): BERT with pre-norms, rotary positions, a gated MLP, and windows in most layers."""

from lineage.components import (
    Attention,
    Bidirectional,
    Block,
    Embed,
    FeedForward,
    Head,
    LayerNorm,
    Model,
    Residual,
    Rotary,
    Scaling,
    Transform,
    head_width,
    layer_names,
    scorer,
)

YEAR, PARENT = 2024, "bert"
PAPER = "Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder"


def modernbert(
    *,
    vocab: int = 50368,
    width: int = 768,
    layers: int = 22,
    heads: int = 12,
    mlp_width: int = 1152,
    activation: str = "gelu",
    head_activation: str = "gelu",
    eps: float = 1e-5,
    norm_bias: bool = False,
    bias: bool = False,
    mlp_bias: bool = False,
    head_bias: bool = True,
    transform_bias: bool = False,
    span: int = 128,
    pattern: tuple[str, ...] | None = None,
    period: int = 3,
    theta: float = 160000.0,
    scaling: Scaling | None = None,
    local_theta: float = 10000.0,
    local_scaling: Scaling | None = None,
    padding: int | None = 50283,
    head: bool = True,
    tied: bool = True,
    task: str | None = None,
    classes: int = 2,
    pooling: str = "first",
) -> Model:
    """pattern: "window" or "full" for each layer; None is a full one at the beginning of each period. span: tokens of a
    window, half of them on either side. theta, scaling: of the full layers; local_theta, local_scaling: of the others.
    task: what a classifier scores, see Classifier. pooling: of texts, the "first" token or the "mean".
    """
    norm, across = LayerNorm(eps=eps, bias=norm_bias), head_width(width, heads)
    usual = ["window" if place % period else "full" for place in range(layers)]

    def block(place: int, kind: str) -> Block:
        full = kind == "full"
        angle, stretch = (theta, scaling) if full else (local_theta, local_scaling)
        turn = Rotary(theta=angle, width=across, scaling=stretch, rounded="both")
        attention = Attention(
            heads=heads, kv_heads=heads, head_width=across, bias=bias, output_bias=bias, rotary=turn,
            mask=Bidirectional(reach=None if full else span // 2),
        )  # fmt: skip
        mlp = FeedForward(width=mlp_width, activation=activation, bias=mlp_bias, gated=True)
        first = Residual(body=attention, norm_input=norm if place else None)  # the embedding's norm comes just before
        return Block(attention=first, mlp=Residual(body=mlp, norm_input=norm))

    kinds = layer_names(pattern, usual, ("window", "full"))
    transform = Transform(activation=head_activation, norm=norm, bias=transform_bias)
    reads = "start" if (task, pooling) == ("choice", "first") else pooling
    return Model(
        embed=Embed(vocab=vocab, width=width, padding=padding, norm=norm),
        blocks=tuple(block(place, kind) for place, kind in enumerate(kinds)),
        norm=norm,
        head=Head(vocab=vocab, tied=tied, bias=head_bias, transform=transform) if head else None,
        classifier=scorer(task, classes, reads, transform),
    )


TINY = {"vocab": 101, "width": 24, "layers": 4, "heads": 3, "mlp_width": 40, "span": 14, "padding": 3}
PUBLISHED: dict[str, dict[str, int]] = {
    "modernbert-base": {},
    "modernbert-large": {"width": 1024, "layers": 28, "heads": 16, "mlp_width": 2624},
}
