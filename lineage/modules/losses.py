"""The losses that the families were trained with. B batch, T tokens, V vocabulary, E experts."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a label that does not count


def causal_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it (Radford et al. 2018, eq. 1); labels are the tokens."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)


def masked_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy of the tokens that were masked (Devlin et al. 2018, §3.1); all other labels are -100."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED)


def smoothed_loss(logits_BTV: Tensor, labels_BT: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy against targets of which each token of the vocabulary has smoothing / V, the label the rest.

    (Vaswani et al. 2017, §5.4; Szegedy et al. 2016, eq. 7.) Labels of -100 do not count.
    """
    counted_BT = labels_BT != IGNORED
    logs_NV = logits_BTV.log_softmax(-1)[counted_BT]
    right_N = logs_NV.gather(-1, labels_BT[counted_BT][:, None])[:, 0]
    return -((1 - smoothing) * right_N + smoothing * logs_NV.mean(-1)).mean()


def balance_loss(logits: Sequence[Tensor], top_k: int, keep_BT: Tensor | None = None) -> Tensor:
    """Experts · Σ (share of tokens that chose an expert · its mean probability) (Fedus et al. 2021, eq. 4 to 6).

    logits: of each router, [B · T, E], as `experts.routed` collects them; all of them are pooled. keep_BT: false for
    padding. With even loads it is top_k, since so many experts are chosen by each token.
    """
    together_xE = torch.cat(list(logits))
    probabilities_xE = together_xE.softmax(-1)
    chosen_xE = torch.zeros_like(probabilities_xE).scatter(-1, probabilities_xE.topk(top_k, -1).indices, 1.0)
    if keep_BT is not None:
        keep_x = keep_BT.flatten().bool().repeat(len(logits))
        probabilities_xE, chosen_xE = probabilities_xE[keep_x], chosen_xE[keep_x]
    return together_xE.shape[-1] * (chosen_xE.mean(0) * probabilities_xE.mean(0)).sum()


def class_loss(scores_BC: Tensor, labels: Tensor, problem: str) -> Tensor:
    """How far scores of texts are from their labels (Devlin et al. 2018, §4.1).

    problem: "regression", mean squared error of numbers [B] or [B, C]; "single_label_classification", mean
    cross-entropy of classes [B]; "multi_label_classification", binary cross-entropy of 0 or 1 for each class, [B, C].
    """
    if problem == "single_label_classification":
        return F.cross_entropy(scores_BC, labels)
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(scores_BC, labels)
    return F.mse_loss(scores_BC.reshape(labels.shape), labels)


def span_loss(scores_BT2: Tensor, first_B: Tensor, last_B: Tensor) -> Tensor:
    """Mean cross-entropy of an answer's first and last token (Devlin et al. 2018, §4.2)."""
    return (F.cross_entropy(scores_BT2[..., 0], first_B) + F.cross_entropy(scores_BT2[..., 1], last_B)) / 2
