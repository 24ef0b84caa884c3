"""Both ends of a model, and the model itself, as a hasty port does them. See `wrong`.

B batch, T tokens, D width, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lineage.modules.embedding import Embed, LearnedPositions, Sinusoids
from lineage.modules.head import Head, Pooler, Transform
from lineage.modules.model import Model


class OneTokenOff(nn.Embedding):
    def forward(self, ids_BT: Tensor) -> Tensor:
        return super().forward((ids_BT + 1) % self.num_embeddings)


class ScaledByWidth(nn.Embedding):
    def forward(self, ids_BT: Tensor) -> Tensor:
        return super().forward(ids_BT) * self.embedding_dim**0.5


class FromPad(LearnedPositions):
    """Counting starts one too early: at the padding's own id, not after it."""

    def position_ids(self, *given: Any) -> Tensor:
        return super().position_ids(*given) - 1


class PadCounted(LearnedPositions):
    """Padding moves the tokens behind it, as if it were one of them."""

    def position_ids(self, ids_BT: Tensor, *rest: Any) -> Tensor:
        return torch.arange(ids_BT.shape[1])[None] + self.ids.offset


class SinesOneLater(Sinusoids):
    """The first token at place 1."""

    def rows(self, positions_BT: Tensor, *rest: Any) -> Tensor:
        return super().rows(positions_BT + 1, *rest)


class SinesTheOtherWay(Sinusoids):
    """Sines and cosines apart where they take turns, and the reverse."""

    def rows(self, positions_BT: Tensor, *rest: Any) -> Tensor:
        spec = self.spec
        self.spec = replace(spec, apart=not spec.apart)
        try:
            return super().rows(positions_BT, *rest)
        finally:
            self.spec = spec


class FirstSegmentOnly(Embed):
    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None, segments_BT: Tensor | None, *rest: Any) -> Tensor:
        return super().forward(ids_BT, positions_BT, None, *rest)


class NormFirst(Embed):
    """Positions and segments added to the normed tokens."""

    def forward(self, *given: Any) -> Tensor:
        tokens, norm = self.tokens, self.norm
        self.tokens, self.norm = nn.Sequential(tokens, norm), nn.Identity()
        try:
            return super().forward(*given)
        finally:
            self.tokens, self.norm = tokens, norm


class AddsBeforeProjection(Embed):
    """The narrow tokens with the first channels of what is added, then widened."""

    def forward(self, ids_BT: Tensor, positions_BT: Any, segments_BT: Any, keep_BT: Any, *rest: Any) -> Tensor:
        narrow_BTN = self.tokens(ids_BT)
        added_BTD = self.positions(ids_BT, positions_BT, keep_BT)[..., : narrow_BTN.shape[-1]]
        return self.projection(narrow_BTN + added_BTD)


class ScaledHead(Head):
    """A tied head divided by √D, as T5's is."""

    def forward(self, x_BTD: Tensor, tokens_VD: Tensor) -> Tensor:
        return super().forward(x_BTD * x_BTD.shape[-1] ** -0.5, tokens_VD)


class ScalesTwice(Head):
    def forward(self, x_BTD: Tensor, tokens_VD: Tensor) -> Tensor:
        return super().forward(x_BTD, tokens_VD) * (self.scale or self.scale_input)


class ActAfterNorm(Transform):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.act(self.norm(self.dense(x_BTD)))


class NoTanh(Pooler):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.dense(x_BTD[:, 0])


class LastToken(Pooler):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_BTD[:, -1]))


class LayersBackwards(Model):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> object:
        self.blocks[0], self.blocks[1] = self.blocks[1], self.blocks[0]
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.blocks[0], self.blocks[1] = self.blocks[1], self.blocks[0]


class NormedTwice(Model):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> object:
        once = self.norm
        self.norm = nn.Sequential(once, once)
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.norm = once
