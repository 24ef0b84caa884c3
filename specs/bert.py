"""BERT (Devlin et al., 2018): the encoder of the 2017 Transformer alone, with segments and a masked-token head."""

from lineage.components import (
    Attention,
    Bidirectional,
    Block,
    Classifier,
    Consecutive,
    Embed,
    FeedForward,
    Head,
    LayerNorm,
    LearnedPositions,
    Model,
    Pooler,
    Residual,
    Segments,
    SkipPadding,
    Transform,
    head_width,
    scorer,
)

YEAR, PARENT = 2018, "transformer"
PAPER = "Devlin et al. 2018, BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"


def bert(
    *,
    vocab: int = 30522,
    context: int = 512,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    mlp_width: int = 3072,
    segments: int | None = 2,
    activation: str = "gelu",
    head_activation: str | None = None,
    eps: float = 1e-12,
    padding: int | None = 0,
    pad: int | None = None,
    head: bool = True,
    tied: bool = True,
    pooler: bool = False,
    next_sentence: bool = False,
    task: str | None = None,
    classes: int = 2,
    summary: str | None = None,
) -> Model:
    """head_activation: None is the body's. padding: see Embed. pad: position ids skip this token, which is the
    padding then; None counts every token.

    head, pooler, next_sentence: which of the heads there are; next_sentence reads what the pooler gives. task: what a
    classifier scores, see Classifier. summary: the activation of a map of its own before it scores a text, in place of
    the pooler.
    """
    norm = LayerNorm(eps=eps)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_width=head_width(width, heads),
        mask=Bidirectional(),
        bias=True,
        output_bias=True,
    )
    mlp = FeedForward(width=mlp_width, activation=activation, bias=True)
    block = Block(attention=Residual(body=attention, norm_sum=norm), mlp=Residual(body=mlp, norm_sum=norm))
    ids = Consecutive() if pad is None else SkipPadding(pad=pad)
    transform = Transform(activation=activation if head_activation is None else head_activation, norm=norm)
    first = Transform(activation=summary) if summary and task in ("text", "choice") else None
    classifier = scorer(task, classes, "first" if summary else "pooled", first)
    pooled = next_sentence or (classifier is not None and classifier.reads == "pooled")
    return Model(
        embed=Embed(
            vocab=vocab,
            width=width,
            padding=padding if pad is None else pad,
            positions=LearnedPositions(length=context, ids=ids),
            segments=Segments(count=segments) if segments is not None else None,
            norm=norm,
        ),
        blocks=(block,) * layers,
        head=Head(vocab=vocab, tied=tied, bias=True, transform=transform) if head else None,
        pooler=Pooler() if pooler or pooled else None,
        next_sentence=Classifier(classes=2) if next_sentence else None,
        classifier=classifier,
    )


LARGE = {"width": 1024, "layers": 24, "heads": 16, "mlp_width": 4096}

TINY = {"vocab": 101, "context": 160, "width": 24, "layers": 3, "heads": 3, "mlp_width": 40}
PUBLISHED = {
    "bert": {},
    "bert-large": LARGE,
    "bert-encoder": {"head": False, "pooler": True},
    "bert-large-encoder": LARGE | {"head": False, "pooler": True},
    "distilbert": {"layers": 6, "segments": None},
}
