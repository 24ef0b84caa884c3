"""Vectors to answers. B batch, T tokens, D width, V vocabulary, C classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.feed_forward import Activation
from lineage.modules.registry import make, make_or_pass, runs


@runs(c.Transform)
class Transform(nn.Module):
    """norm(act(dense(x)))."""

    def __init__(self, spec: c.Transform, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, spec.width or width, bias=spec.bias)
        self.act = Activation(spec.activation)
        self.norm = make(spec.norm, spec.width or width)

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
        logits_BTV = F.linear(read_BTD, table_VD, None if self.late else self.bias)
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
        self.dense = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_BTD[:, 0]))


@runs(c.Classifier)
class Classifier(nn.Module):
    """Scores of classes from a pooled vector."""

    def __init__(self, spec: c.Classifier, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.classes, width))
        self.bias = nn.Parameter(torch.zeros(spec.classes))

    def forward(self, x_BD: Tensor) -> Tensor:
        return F.linear(x_BD, self.weight, self.bias)
