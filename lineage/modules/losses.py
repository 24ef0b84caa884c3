"""The losses that the families were trained with. B batch, T tokens, V vocabulary."""

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a label that does not count


def causal_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it (Radford et al. 2018, eq. 1); labels are the tokens."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)


def masked_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean cross-entropy of the tokens that were masked (Devlin et al. 2018, §3.1); all other labels are -100."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED)
