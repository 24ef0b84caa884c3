"""The whole model. B batch, T tokens, S keys, D width, V vocabulary, C classes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lineage import components as c
from lineage import graph
from lineage.errors import UsageError
from lineage.modules import attention, biases, block, embedding, experts, feed_forward, head, latent_attention, norm  # noqa: F401  (each declares what it runs)
from lineage.modules.cache import Cache
from lineage.modules.context import Context
from lineage.modules.registry import make, make_or_pass, runs


@dataclass
class Output:
    """hidden [B, T, D]; and if the model has such heads, logits [B, T, V], pooled [B, D], next_sentence [B, C].

    scores: of a classifier, [B, C] or for each token [B, T, C].
    """

    hidden: Tensor
    logits: Tensor | None = None
    pooled: Tensor | None = None
    next_sentence: Tensor | None = None
    scores: Tensor | None = None


@runs(c.Model)
class Model(nn.Module):
    """A stack of blocks between an embedding and its heads.

    spec: the architecture. provenance: where the weights came from, if they were loaded. attention: "sdpa", or "eager"
    for the product written out as the reference's eager path rounds it, or another of `backends.BACKENDS`.
    checkpointing: in training, a block's activations are computed again when they are needed (Chen et al. 2016).
    """

    def __init__(self, spec: c.Model, width: int = 0) -> None:
        super().__init__()
        width = spec.embed.stream
        self.spec = spec
        self.provenance: dict[str, Any] = {}
        self.attention, self.checkpointing = "sdpa", False
        self.encoder = Model(spec.encoder) if spec.encoder else None
        self.embed = make(spec.embed, width)
        self.blocks = nn.ModuleList([make(one, width) for one in spec.blocks])
        self.position_bias = make(spec.position_bias, width) if spec.position_bias else None
        self.distances = make(spec.distances, width) if spec.distances else None
        self.convolution = make(spec.convolution, width) if spec.convolution else None
        self.norm = make_or_pass(spec.norm, width)
        self.head = make(spec.head, width) if spec.head else None
        self.pooler = make(spec.pooler, width) if spec.pooler else None
        self.next_sentence = make(spec.next_sentence, width) if spec.next_sentence else None
        self.classifier = make(spec.classifier, width) if spec.classifier else None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        last: int | None = None,
    ) -> Output:
        """input_ids [B, T]; attention_mask [B, T], 0 for padding; position_ids, token_type_ids [B, T].

        With an encoder these are of the source, [B, S], and decoder_input_ids [B, T] with their mask of the target.
        cache: what earlier calls saw, to which this one adds; masks are then of all tokens so far, and an encoder runs
        in the first call alone. last: the result at so many positions at the end, None for all; with a cache the last
        block computes nothing but keys and values for the others.
        """
        memory = None
        if self.encoder is not None:
            if decoder_input_ids is None:
                raise UsageError("the model has an encoder: decoder_input_ids are missing")
            memory = cache.memory if cache else None
            if memory is None:
                self.encoder.attention, self.encoder.checkpointing = self.attention, self.checkpointing
                source_BSD = self.encoder(input_ids, attention_mask, position_ids, token_type_ids).hidden
                memory = self.context(input_ids, attention_mask, hidden_BSD=source_BSD)
            input_ids, attention_mask = decoder_input_ids, decoder_attention_mask
            position_ids = token_type_ids = None
        start = cache.begin(input_ids.shape[1], memory) if cache else 0
        context = self.context(input_ids, attention_mask, position_ids, memory=memory, cache=cache, start=start)
        if self.position_bias is not None:
            context.bias = self.position_bias(context.places_T, context.whole_S)
        shared_VD = self.table if self.spec.embed.tied else None
        x_BTD = self.embed(input_ids, position_ids, token_type_ids, context.keep_BS, shared_VD, start)
        if self.distances is not None:
            context.distances = self.distances(context.places_T, context.whole_S)
        order = self.spec.order or range(len(self.blocks))
        for context.layer, place in enumerate(order):
            read_BTD, one = x_BTD, self.blocks[place]
            if context.layer == len(order) - 1:
                context.ask(last, getattr(one, "alone", False) and self.convolution is None)
            again = self.checkpointing and torch.is_grad_enabled() and cache is None
            x_BTD = checkpoint(one, x_BTD, context, use_reentrant=False) if again else one(x_BTD, context)
            if context.layer == 0 and self.convolution is not None:
                x_BTD = self.convolution(read_BTD, x_BTD, context.keep_BS)
        if cache is not None:
            cache.advance(input_ids.shape[1])
        hidden_BTD = self.norm(x_BTD if last is None else x_BTD[:, -last:])
        pooled_BD, scores = self.pooler(hidden_BTD) if self.pooler is not None else None, None
        if self.spec.classifier is not None and self.classifier is not None:
            scores = self.classifier(head.read(self.spec.classifier.reads, hidden_BTD, pooled_BD, context.keep_BS))
        return Output(
            hidden=hidden_BTD,
            logits=self.head(hidden_BTD, self.table) if self.head is not None else None,
            pooled=pooled_BD,
            next_sentence=self.next_sentence(pooled_BD) if self.next_sentence is not None else None,
            scores=scores,
        )

    def generate(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
        """The tokens and how the model goes on, by the options of `lineage.modules.generation.stream`.

        tokens: at most; choice, stop (the tokens that end a text: the model knows none by itself), fill, start (of a
        target, with an encoder).
        """
        from lineage.modules.generation import generate

        return generate(self, input_ids, attention_mask, **options)

    def _apply(self, fn: Any, recurse: bool = True) -> "Model":
        """Matrices that lie the other way round, as their file has them, are put in order for low precision."""
        super()._apply(fn, recurse)
        for one in [one for one in self.parameters() if one.ndim == 2 and one.itemsize < 4]:
            one.data = one.data.contiguous()
        return self

    @property
    def table(self) -> Tensor:
        """The tokens' vectors, [V, D]; where they are shared, the encoder's."""
        shared = self.encoder if self.spec.embed.tied else None
        return shared.table if shared else self.embed.get_parameter("tokens.weight")

    def context(
        self, ids_BT: Tensor, mask_BT: Tensor | None, positions_BT: Tensor | None = None, **known: Any
    ) -> Context:
        """What all blocks share when they run on these tokens."""
        if positions_BT is None:
            positions_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device)[None] + known.get("start", 0)
        return Context(positions_BT, None if mask_BT is None else mask_BT.bool(), self.attention, **known)


def build(spec: c.Model, device: str = "meta", dtype: torch.dtype | None = None) -> Model:
    """An empty model, on the meta device unless told otherwise, in eval mode.

    Its parameters are exactly the spec's tensors: held by assertion, so that spec and modules cannot drift apart.
    """
    with torch.device(device):
        model = Model(spec).to(dtype)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    odd = set(shapes.items()) ^ set(graph.tensors(spec).items())
    assert not odd, f"spec and module differ: {odd}"
    return model.eval()
