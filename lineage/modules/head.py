"""Vectors to answers. B batch, T tokens, D width, V vocabulary, C classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.feed_forward import Activation
from lineage.modules.linear import Linear, linear
from lineage.modules.registry import make_or_pass, runs


@runs(c.Transform)
class Transform(nn.Module):
    """norm(act(dense(x)))."""

    def __init__(self, spec: c.Transform, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, spec.width or width, bias=spec.bias)
        self.act = Activation(spec.activation)
        self.norm = make_or_pass(spec.norm, spec.width or width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.norm(self.act(self.dense(x_BTD)))
        return out


@runs(c.Head)
class Head(nn.Module):
    """Logits over the vocabulary, by a table of its own or by the tokens' (Press & Wolf 2017)."""

    def __init__(self, spec: c.Head, width: int) -> None:
        super().__init__()
        self.softcap, self.late = spec.softcap, spec.late
        self.scale_input = spec.scale if spec.early else None
        self.scale = None if spec.early else spec.scale
        self.transform = make_or_pass(spec.transform, width)
        self.projection = make_or_pass(spec.projection, width)
        self.weight = None if spec.tied else nn.Parameter(torch.empty(spec.vocab, spec.table_width(width)))
        self.bias = nn.Parameter(torch.zeros(spec.vocab)) if spec.bias else None

    def forward(self, x_BTD: Tensor, tokens_VD: Tensor) -> Tensor:
        read_BTD = self.projection(self.transform(x_BTD))
        if self.scale_input is not None:
            read_BTD = read_BTD * self.scale_input
        table_VD = tokens_VD if self.weight is None else self.weight
        logits_BTV = linear(read_BTD, table_VD, None if self.late else self.bias)
        if self.late and self.bias is not None:
            logits_BTV = logits_BTV + self.bias
        if self.scale is not None:
            logits_BTV = logits_BTV * self.scale
        return logits_BTV if self.softcap is None else torch.tanh(logits_BTV / self.softcap) * self.softcap


@runs(c.Pooler)
class Pooler(nn.Module):
    """tanh(dense(x)) of the first token (Devlin et al. 2018, §3.1)."""

    def __init__(self, spec: c.Pooler, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_BTD[:, 0]))


@runs(c.Classifier)
class Classifier(nn.Module):
    """Scores of classes from a vector of each text or of each token."""

    def __init__(self, spec: c.Classifier, width: int) -> None:
        super().__init__()
        self.transform = make_or_pass(spec.transform, width)
        self.weight = nn.Parameter(torch.empty(spec.tensors(width)["weight"]))
        self.bias = nn.Parameter(torch.zeros(spec.classes))

    def forward(self, x_xD: Tensor) -> Tensor:
        return F.linear(self.transform(x_xD), self.weight, self.bias)


def read(reads: str, hidden_BTD: Tensor, pooled_BD: Tensor | None, keep_BT: Tensor | None) -> Tensor:
    """What a classifier scores, of what the model has: [B, D] or [B, T, D]. keep_BT: false for padding."""
    if reads == "pooled" and pooled_BD is not None:
        return pooled_BD
    if reads == "each" or (reads == "mean" and keep_BT is None):
        return hidden_BTD if reads == "each" else hidden_BTD.mean(1)
    if reads == "first" or keep_BT is None:
        return hidden_BTD[:, 0]
    if reads == "start":
        return hidden_BTD[torch.arange(len(hidden_BTD), device=hidden_BTD.device), keep_BT.long().argmax(-1)]
    return (hidden_BTD * keep_BT[..., None]).sum(1) / keep_BT.sum(1, keepdim=True)
