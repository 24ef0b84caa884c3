"""The whole model. B batch, T tokens, S keys, D width, V vocabulary, C classes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lineage import components as c
from lineage import graph
from lineage.modules import attention, block, embedding, experts, feed_forward, head, latent_attention, norm  # noqa: F401  (each declares what it runs)
from lineage.modules.context import Context
from lineage.modules.registry import make, make_or_pass, runs


@dataclass
class Output:
    """hidden [B, T, D]; and if the model has such heads, logits [B, T, V], pooled [B, D], next_sentence [B, C]."""

    hidden: Tensor
    logits: Tensor | None = None
    pooled: Tensor | None = None
    next_sentence: Tensor | None = None


@runs(c.Model)
class Model(nn.Module):
    """A stack of blocks between an embedding and its heads.

    spec: the architecture. provenance: where the weights came from, if they were loaded. attention: "sdpa", or "eager"
    for the product written out as the reference's eager path rounds it.
    """

    def __init__(self, spec: c.Model, width: int = 0) -> None:
        super().__init__()
        width = spec.embed.stream
        self.spec = spec
        self.provenance: dict[str, Any] = {}
        self.attention = "sdpa"
        self.embed = make(spec.embed, width)
        self.blocks = nn.ModuleList([make(one, width) for one in spec.blocks])
        self.norm = make_or_pass(spec.norm, width)
        self.head = make(spec.head, width) if spec.head else None
        self.pooler = make(spec.pooler, width) if spec.pooler else None
        self.next_sentence = make(spec.next_sentence, width) if spec.next_sentence else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Output:
        """input_ids [B, T]; attention_mask [B, T], 0 for padding; position_ids, token_type_ids [B, T]."""
        keep_BS = None if attention_mask is None else attention_mask.bool()
        places_T = torch.arange(input_ids.shape[1], device=input_ids.device)
        context = Context(places_T[None] if position_ids is None else position_ids, keep_BS, self.attention)
        x_BTD = self.embed(input_ids, position_ids, token_type_ids, keep_BS)
        for one in self.blocks:
            x_BTD = one(x_BTD, context)
        hidden_BTD = self.norm(x_BTD)
        pooled_BD = self.pooler(hidden_BTD) if self.pooler is not None else None
        return Output(
            hidden=hidden_BTD,
            logits=self.head(hidden_BTD, self.embed.get_parameter("tokens.weight")) if self.head is not None else None,
            pooled=pooled_BD,
            next_sentence=self.next_sentence(pooled_BD) if self.next_sentence is not None else None,
        )


def build(spec: c.Model, device: str = "meta", dtype: torch.dtype | None = None) -> Model:
    """An empty model, on the meta device unless told otherwise, in eval mode.

    Its parameters are exactly the spec's tensors: held by assertion, so that spec and modules cannot drift apart.
    """
    with torch.device(device):
        model = Model(spec).to(dtype)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == graph.tensors(spec), (
        f"spec and module differ: {set(shapes.items()) ^ set(graph.tensors(spec).items())}"
    )
    return model.eval()
