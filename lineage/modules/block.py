"""One layer: residual branches with norms in any of three places. B batch, T tokens, D width."""

from torch import Tensor, nn

from lineage import components as c
from lineage import graph
from lineage.modules.context import Context
from lineage.modules.registry import make, make_or_pass, runs


@runs(c.Residual)
class Residual(nn.Module):
    """norm_sum(x + scale · norm_branch(body(norm_input(x)))); an empty slot passes on (Xiong et al. 2020, fig. 1)."""

    def __init__(self, spec: c.Residual, width: int) -> None:
        super().__init__()
        self.norm_input = make_or_pass(spec.norm_input, width)
        self.body = make(spec.body, width)
        self.norm_branch = make_or_pass(spec.norm_branch, width)
        self.norm_sum = make_or_pass(spec.norm_sum, width)
        self.scale, self.normed = spec.scale, spec.normed

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        read_BTD = self.norm_input(x_BTD)
        stream_BTD = context.wanted(read_BTD if self.normed else x_BTD)
        out: Tensor = self.norm_sum(stream_BTD + self.branch(read_BTD, context))
        return out

    def branch(self, read_BTD: Tensor, context: Context) -> Tensor:
        """What is added to the stream. read_BTD: the stream after norm_input."""
        out: Tensor = self.norm_branch(context.wanted(self.body(read_BTD, context)))
        return out if self.scale is None else out * self.scale


@runs(c.Block)
class Block(nn.Module):
    """Attention, that to the encoder, then the feed-forward network; or the sum of both on the same input.

    alone: a token's result hangs on others by attention only, not by experts that take no more than so many of a text.
    """

    def __init__(self, spec: c.Block, width: int) -> None:
        super().__init__()
        self.attention = Residual(spec.attention, width)
        self.cross = Residual(spec.cross, width) if spec.cross else None
        self.mlp = Residual(spec.mlp, width)
        self.norm_input = make_or_pass(spec.norm_input, width)
        self.parallel, self.stream_first = spec.parallel, spec.stream_first
        routers = (node.component for node in graph.walk(spec.mlp) if isinstance(node.component, c.Router))
        self.alone = all(router.capacity is None for router in routers)

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        if self.parallel:
            read_BTD, x_BTD = self.norm_input(x_BTD), context.wanted(x_BTD)
            first_BTD = self.attention.branch(self.attention.norm_input(read_BTD), context)
            second_BTD = self.mlp.branch(self.mlp.norm_input(context.wanted(read_BTD)), context)
            if self.stream_first:
                return (x_BTD + first_BTD) + second_BTD
            return x_BTD + (first_BTD + second_BTD)
        x_BTD = self.attention(x_BTD, context)
        if self.cross is not None:
            x_BTD = self.cross(x_BTD, context)
        out: Tensor = self.mlp(x_BTD, context)
        return out
