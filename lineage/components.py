"""The vocabulary: what a transformer is made of, as frozen values.

A component says everything about its part of the model; nothing is decided later. Each field is a *size* (a
dimension: two sizes of one family differ in sizes alone) or a *choice* (a design decision). A component also
knows the tensors it owns, as shapes, so that counts, plans and modules all follow from the one value.

Widths: the residual stream's width is the embedding's; every component is told the width it works on.
"""

from collections.abc import Mapping

from lineage.experts import Experts as Experts
from lineage.experts import Router as Router
from lineage.fields import ACTIVATIONS as ACTIVATIONS
from lineage.fields import Component as Component
from lineage.fields import Shape as Shape
from lineage.fields import check_activation, check_positive, choice, contradiction, dense, size
from lineage.rotary import Banded as Banded
from lineage.rotary import Dynamic as Dynamic
from lineage.rotary import Linear as Linear
from lineage.rotary import Rotary as Rotary
from lineage.rotary import Scaling as Scaling
from lineage.rotary import Yarn as Yarn


def head_width(width: int, heads: int) -> int:
    """The width of one head when the heads share the model's width evenly.

    Raises ArchitectureError when they do not.
    """
    if type(heads) is not int or type(width) is not int or heads < 1 or width % heads:
        raise contradiction(f"heads {heads} does not divide width {width}", "heads", "width")
    return width // heads


class LayerNorm(Component):
    """(x - mean) / √(variance + eps) · weight + bias, over the last axis (Ba et al. 2016, eq. 4)."""

    eps: float = choice()
    bias: bool = choice(default=True)

    def check(self) -> None:
        if self.eps < 0:
            raise contradiction(f"LayerNorm: eps {self.eps!r} is negative", "eps")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (width,)} | ({"bias": (width,)} if self.bias else {})


class RMSNorm(Component):
    """x / √(mean(x²) + eps) · weight, over the last axis (Zhang & Sennrich 2019, eq. 4).

    plus_one: the stored weight is one less than what is multiplied. late: the result is rounded to the model's type
    after the weight and not before it.
    """

    eps: float = choice()
    plus_one: bool = choice(default=False)
    late: bool = choice(default=False)

    def check(self) -> None:
        if self.eps < 0:
            raise contradiction(f"RMSNorm: eps {self.eps!r} is negative", "eps")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (width,)}


Norm = LayerNorm | RMSNorm


class Causal(Component):
    """A token attends to itself and to those before it; with a window, to the nearest `window` of these."""

    window: int | None = size(default=None)


class Bidirectional(Component):
    """A token attends to all tokens."""


class Consecutive(Component):
    """Position ids 0, 1, 2, … by place, padding or not."""


class SkipPadding(Component):
    """Position ids that count tokens other than `pad`, from pad + 1 on; every `pad` itself has id `pad` (fairseq)."""

    pad: int = choice()

    def check(self) -> None:
        if self.pad < 0:
            raise contradiction(f"pad {self.pad} is not a token", "pad")


class LearnedPositions(Component):
    """A table of position vectors, added to the token's (Gehring et al. 2017)."""

    length: int = size()
    ids: Consecutive | SkipPadding = choice(default_factory=Consecutive)

    def check(self) -> None:
        if self.reach < 1:
            raise contradiction(f"{self.length} positions leave no token a place", "pad", "context")

    @property
    def reach(self) -> int:
        """How many tokens have a place."""
        return self.length - (self.ids.pad + 1 if isinstance(self.ids, SkipPadding) else 0)

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.length, width)}


class Segments(Component):
    """A table of segment vectors: which of the sentences a token belongs to (Devlin et al. 2018, fig. 2)."""

    count: int = size()

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.count, width)}


class Embed(Component):
    """Tokens to vectors: token + segment + position, then a norm.

    scale: what the token's vector is multiplied by. padding: the token whose row is not trained by looking it up (a
    tied head still trains it).
    """

    vocab: int = size()
    width: int = size()
    padding: int | None = choice(default=None)
    positions: LearnedPositions | None = choice(default=None)
    segments: Segments | None = choice(default=None)
    norm: Norm | None = choice(default=None)
    scale: float | None = choice(default=None)

    def check(self) -> None:
        if self.padding is not None and not 0 <= self.padding < self.vocab:
            raise contradiction(f"padding token {self.padding} is not one of {self.vocab}", "padding", "vocab")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"tokens.weight": (self.vocab, self.width)}


class Attention(Component):
    """Multi-head attention, softmax(q kᵀ · scale + mask) v (Vaswani et al. 2017, eq. 1).

    scale: None is 1/√head_width. bias: of q, k and v; output_bias: of o. rotary: turns queries and keys. query_norm,
    key_norm: over each head's channels, before that. softcap: scores are bent to c · tanh(scores / c).
    """

    heads: int = size()
    kv_heads: int = size()
    head_width: int = size()
    mask: Causal | Bidirectional = choice()
    bias: bool = choice()
    output_bias: bool = choice()
    scale: float | None = choice(default=None)
    rotary: Rotary | None = choice(default=None)
    query_norm: Norm | None = choice(default=None)
    key_norm: Norm | None = choice(default=None)
    softcap: float | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "softcap")
        if self.rotary and self.rotary.width > self.head_width:
            raise contradiction(f"no {self.rotary.width} of {self.head_width} channels turn", "rotary", "head_width")
        if self.heads % self.kv_heads:
            raise contradiction(f"kv_heads {self.kv_heads} does not divide heads {self.heads}", "kv_heads", "heads")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        return (
            dense("q", queries, width, self.bias)
            | dense("k", keys, width, self.bias)
            | dense("v", keys, width, self.bias)
            | dense("o", width, queries, self.output_bias)
        )

    def child_width(self, child: str, width: int) -> int:
        return self.head_width


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


class Residual(Component):
    """norm_sum(x + norm_branch(body(norm_input(x)))): each norm is a slot that may be empty.

    norm_sum alone is the 2017 post-norm, norm_input alone the pre-norm of GPT-2 (Xiong et al. 2020, fig. 1).
    """

    body: Attention | FeedForward | Experts = choice()
    norm_input: Norm | None = choice(default=None)
    norm_branch: Norm | None = choice(default=None)
    norm_sum: Norm | None = choice(default=None)


class Block(Component):
    """One layer: branches named by role, in order; or, if parallel, both on the layer's input, and summed."""

    attention: Residual = choice()
    mlp: Residual = choice()
    parallel: bool = choice(default=False)

    def check(self) -> None:
        if self.parallel and (self.attention.norm_sum or self.mlp.norm_sum):
            raise contradiction("parallel branches have one sum, which no norm_sum follows", "parallel")


class Transform(Component):
    """norm(activation(dense(x))) before the vocabulary (Devlin et al. 2018, the released code)."""

    activation: str = choice()
    norm: Norm = choice()

    def check(self) -> None:
        check_activation(self.activation)

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return dense("dense", width, width, True)


class Head(Component):
    """Vectors to logits over the vocabulary. tied: by the token table itself (Press & Wolf 2017).

    softcap: logits are bent to c · tanh(logits / c) (Gemma 2, §2).
    """

    vocab: int = size()
    tied: bool = choice()
    bias: bool = choice(default=False)
    transform: Transform | None = choice(default=None)
    softcap: float | None = choice(default=None)

    def check(self) -> None:
        check_positive(self, "softcap")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        weight: dict[str, Shape] = {} if self.tied else {"weight": (self.vocab, width)}
        return weight | ({"bias": (self.vocab,)} if self.bias else {})


class Pooler(Component):
    """tanh(dense(x)) of the first token (Devlin et al. 2018, §3.1)."""

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return dense("dense", width, width, True)


class Classifier(Component):
    """A linear map from the pooled vector to scores of classes."""

    classes: int = size()

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (self.classes, width), "bias": (self.classes,)}


class Model(Component):
    """A stack of blocks between an embedding and its heads."""

    embed: Embed = choice()
    blocks: tuple[Block, ...] = choice()
    norm: Norm | None = choice(default=None)
    head: Head | None = choice(default=None)
    pooler: Pooler | None = choice(default=None)
    next_sentence: Classifier | None = choice(default=None)

    def check(self) -> None:
        if not self.blocks:
            raise contradiction("a model has at least one block", "layers")
        if self.head and self.head.tied and self.head.vocab != self.embed.vocab:
            raise contradiction(f"a tied head of {self.head.vocab} tokens over a table of {self.embed.vocab}")
        if self.next_sentence and not self.pooler:
            raise contradiction("next_sentence classifies the pooled vector, and there is no pooler")

    def child_width(self, child: str, width: int) -> int:
        return self.embed.width
