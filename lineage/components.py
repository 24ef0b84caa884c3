"""The vocabulary: what a transformer is made of, as frozen values.

A component says everything about its part of the model; nothing is decided later. Each field is a *size* (a
dimension: two sizes of one family differ in sizes alone) or a *choice* (a design decision). A component also
knows the tensors it owns, as shapes, so that counts, plans and modules all follow from the one value.

Widths: the residual stream's width is the embedding's; every component is told the width it works on.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from lineage.attention import Alibi as Alibi
from lineage.attention import Attention as Attention
from lineage.attention import Bidirectional as Bidirectional
from lineage.attention import Causal as Causal
from lineage.attention import Chunked as Chunked
from lineage.attention import Disentangled as Disentangled
from lineage.attention import Distances as Distances
from lineage.attention import LatentAttention as LatentAttention
from lineage.attention import Mask as Mask
from lineage.attention import RelativeBias as RelativeBias
from lineage.attention import Temperature as Temperature
from lineage.embedding import Consecutive as Consecutive
from lineage.embedding import Embed as Embed
from lineage.embedding import LearnedPositions as LearnedPositions
from lineage.embedding import Projection as Projection
from lineage.embedding import Segments as Segments
from lineage.embedding import Sinusoids as Sinusoids
from lineage.embedding import SkipMasked as SkipMasked
from lineage.embedding import SkipPadding as SkipPadding
from lineage.feed_forward import Clamp as Clamp
from lineage.feed_forward import Experts as Experts
from lineage.feed_forward import FeedForward as FeedForward
from lineage.feed_forward import Groups as Groups
from lineage.feed_forward import Router as Router
from lineage.fields import ACTIVATIONS as ACTIVATIONS
from lineage.fields import Component as Component
from lineage.fields import Shape as Shape
from lineage.fields import check_activation, check_positive, choice, size
from lineage.fields import contradiction as contradiction
from lineage.heads import Classifier as Classifier
from lineage.heads import Head as Head
from lineage.heads import Pooler as Pooler
from lineage.heads import Transform as Transform
from lineage.heads import scorer as scorer
from lineage.norms import LayerNorm as LayerNorm
from lineage.norms import Norm as Norm
from lineage.norms import RMSNorm as RMSNorm
from lineage.norms import check_tables
from lineage.rotary import Banded as Banded
from lineage.rotary import Dynamic as Dynamic
from lineage.rotary import Linear as Linear
from lineage.rotary import LongRope as LongRope
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


def layer_names(
    pattern: Sequence[str] | None, usual: Sequence[str], known: Iterable[str], argument: str = "pattern"
) -> tuple[str, ...]:
    """What each layer is called: as the pattern, of this argument, says, or as usual where there is none.

    Raises ArchitectureError if the pattern has not as many layers, or a name that is not known.
    """
    names, allowed = tuple(usual if pattern is None else pattern), tuple(known)
    if len(names) != len(usual):
        raise contradiction(f"{argument} is of {len(names)} layers, and there are {len(usual)}", argument, "layers")
    if odd := [name for name in names if name not in allowed]:
        raise contradiction(f"{argument} has {odd[0]!r:.20}, not one of {', '.join(allowed)}", argument)
    return names


class Residual(Component):
    """norm_sum(x + scale · norm_branch(body(norm_input(x)))): each norm is a slot that may be empty.

    norm_sum alone is the 2017 post-norm, norm_input alone the pre-norm of GPT-2 (Xiong et al. 2020, fig. 1). scale:
    None is 1. normed: the branch is added to norm_input(x) and not to x.
    """

    body: Attention | LatentAttention | FeedForward | Experts = choice()
    norm_input: Norm | None = choice(default=None)
    norm_branch: Norm | None = choice(default=None)
    norm_sum: Norm | None = choice(default=None)
    scale: float | None = choice(default=None)
    normed: bool = choice(default=False)

    def check(self) -> None:
        check_positive(self, "scale")
        if self.normed and not self.norm_input:
            raise contradiction("normed: the branch is added to norm_input(x), and there is no such norm", "normed")
        check_tables(self)


class Block(Component):
    """One layer: branches named by role, in order; or, if parallel, both on the layer's input, and summed.

    stream_first: parallel branches are added to the stream one after the other, and not to each other first: the same
    but for rounding. norm_input: one norm that both of them read (Wang & Komatsuzaki 2021), in place of one each.
    cross: between the two, attention to the encoder's result (Vaswani et al. 2017, §3.2.3).
    """

    attention: Residual = choice()
    mlp: Residual = choice()
    cross: Residual | None = choice(default=None)
    parallel: bool = choice(default=False)
    norm_input: Norm | None = choice(default=None)
    stream_first: bool = choice(default=False)

    def check(self) -> None:
        branches = (self.attention, self.mlp)
        if self.parallel and any(branch.norm_sum or branch.normed for branch in branches):
            raise contradiction(
                "parallel branches have one sum, of the stream itself, which no norm follows", "parallel"
            )
        crosses = [part is not None and getattr(part.body, "cross", False) for part in (*branches, self.cross)]
        if crosses != [False, False, self.cross is not None] or (self.cross and self.parallel):
            raise contradiction("cross attends to the encoder, after attention and before mlp", "cross", "parallel")
        if (self.norm_input or self.stream_first) and not self.parallel:
            raise contradiction("norm_input and stream_first are of parallel branches", "norm_input", "parallel")
        check_tables(self)


def each(change: Callable[..., Block], blocks: Iterable[Block], *more: Iterable[Hashable]) -> tuple[Block, ...]:
    """Every layer as `change` makes it of the old one and of what `more` has for it; what is one object stays one."""
    layers = list(zip(blocks, *more, strict=True))
    keys = [(id(old), *given) for old, *given in layers]
    made = {key: change(*layer) for key, layer in dict(zip(keys, layers, strict=True)).items()}
    return tuple(made[key] for key in keys)


class Convolution(Component):
    """After the first block: norm(its result + activation(convolution of what it read)), over neighbouring tokens.

    (He et al. 2020, the released code of version 2.) kernel: how many tokens, an odd number; padding counts as zero.
    groups: of channels that are mixed with each other alone.
    """

    kernel: int = size()
    activation: str = choice()
    norm: Norm = choice()
    groups: int = size(default=1)

    def check(self) -> None:
        check_activation(self.activation)
        check_tables(self)
        if self.kernel % 2 == 0:
            raise contradiction(f"a kernel of {self.kernel} tokens has no middle", "kernel")

    def tensors(self, width: int) -> Mapping[str, Shape]:
        return {"weight": (width, width // self.groups, self.kernel), "bias": (width,)}


class Model(Component):
    """A stack of blocks between an embedding and its heads.

    encoder: another stack, on the source's tokens, to whose result the blocks' cross attention attends. order: which
    block runs at each depth, where some run more than once (Lan et al. 2019, §3.1). position_bias: added to the scores
    of every block's own attention. distances: what its disentangled scores read.
    """

    encoder: "Model | None" = choice(default=None)
    embed: Embed = choice()
    blocks: tuple[Block, ...] = choice()
    order: tuple[int, ...] | None = size(default=None)
    position_bias: RelativeBias | None = choice(default=None)
    distances: Distances | None = choice(default=None)
    convolution: Convolution | None = choice(default=None)
    norm: Norm | None = choice(default=None)
    head: Head | None = choice(default=None)
    pooler: Pooler | None = choice(default=None)
    next_sentence: Classifier | None = choice(default=None)
    classifier: Classifier | None = choice(default=None)

    def check(self) -> None:
        if not self.blocks:
            raise contradiction("a model has at least one block", "layers")
        if self.order is not None and set(self.order) != set(range(len(self.blocks))):
            raise contradiction("order names blocks that there are not, or leaves some out", "order", "layers")
        if any((block.cross is None) != (self.encoder is None) for block in self.blocks):
            raise contradiction("cross attention in every block goes with an encoder, and only with one", "cross")
        if self.encoder and (self.encoder.head or self.encoder.pooler or self.encoder.classifier):
            raise contradiction("an encoder gives its result to the decoder, and has no head of its own", "head")
        shared = (self.encoder or self).embed
        if self.embed.tied and (
            not self.encoder or (shared.vocab, shared.width) != (self.embed.vocab, self.embed.width)
        ):
            raise contradiction("a tied embedding shares an encoder's table, of its vocabulary and width", "tied")
        if self.encoder and self.encoder.embed.stream != self.embed.stream:
            raise contradiction("encoder and decoder are not of one width", "width")
        if self.head and self.head.tied and self.head.vocab != self.embed.vocab:
            raise contradiction(f"a tied head of {self.head.vocab} tokens over a table of {self.embed.vocab}")
        if self.head and self.head.tied and self.head.table_width(self.embed.stream) != self.embed.width:
            raise contradiction(f"a tied head meets a table of width {self.embed.width}, not its own", "tied", "width")
        if self.next_sentence and self.next_sentence.reads != "pooled":
            raise contradiction("next_sentence classifies the pooled vector")
        reading = [one.reads for one in (self.next_sentence, self.classifier) if one]
        if "pooled" in reading and not self.pooler:
            raise contradiction("a classifier reads the pooled vector, and there is no pooler")
        if self.convolution and self.embed.stream % self.convolution.groups:
            raise contradiction(f"{self.convolution.groups} groups do not divide the width", "conv_groups", "width")
        read = [getattr(block.attention.body, "disentangled", None) is not None for block in self.blocks]
        if set(read) != {self.distances is not None}:
            raise contradiction("disentangled attention in every block goes with distances", "relative")
        bias, bodies = self.position_bias, [block.attention.body for block in self.blocks]
        own = any(
            not isinstance(one, Attention) or one.position_bias or one.heads != bias.heads for one in bodies if bias
        )
        if own:
            raise contradiction("position_bias is of as many heads as each block has, without its own", "position_bias")
        check_tables(self)

    @property
    def depth(self) -> tuple[Block, ...]:
        """The blocks as they run."""
        return self.blocks if self.order is None else tuple(self.blocks[place] for place in self.order)

    def child_width(self, child: str, width: int) -> int:
        return self.embed.stream
