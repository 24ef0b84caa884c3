"""Linear maps. B batch, T tokens, I width in, O width out."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

FEW, LARGE, TALL = 32, 2**20, 16
"""Where another kernel reads a matrix sooner: texts at most; elements at least; in one thread, rows for each column."""


class Linear(nn.Linear):
    """y = x Wᵀ + b; W is [O, I].

    What asks for `nn.Linear` by its exact type, as torch's quantize_dynamic does, must be told of this class.
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def linear(x_BTI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, [B, T, O].

    The product of one token of each text is bound by reading W. In single precision on a CPU, in several threads (in
    one: if W is tall) and without gradients, it goes to oneDNN, which reads a large matrix 1.1 to 1.8 times as fast as
    what F.linear calls; sums are then rounded in another order.
    """
    if reads(x_BTI, weight_OI) and (torch.get_num_threads() > 1 or weight_OI.shape[0] >= TALL * weight_OI.shape[1]):
        kernel = _kernel()
        if kernel is not None and (bias_O is None or (bias_O.is_contiguous() and _plain(bias_O))):
            return kernel(x_BTI, weight_OI, bias_O, "none", [], "")
    return F.linear(x_BTI, weight_OI, bias_O)


def reads(x_BTI: Tensor, weight_OI: Tensor) -> bool:
    """Whether it is a product of one token of each of a few texts, whose time is that of reading a large matrix."""
    if weight_OI.numel() < LARGE or x_BTI.ndim != 3 or x_BTI.shape[1] != 1 or len(x_BTI) > FEW:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not torch.backends.mkldnn.enabled:  # type: ignore[attr-defined]
        return False
    differentiated = torch.is_grad_enabled() or getattr(forward_ad, "_current_level", -1) >= 0
    if differentiated or torch.is_autocast_enabled("cpu"):
        return False
    whole = weight_OI.is_contiguous() or weight_OI.mT.is_contiguous()  # a part is read a hundred times slower
    return whole and _plain(x_BTI) and _plain(weight_OI)


def _plain(x: Tensor) -> bool:
    return type(x) in (Tensor, nn.Parameter) and x.dtype == torch.float32 and x.is_cpu


@cache
def _kernel() -> Callable[..., Tensor] | None:
    """oneDNN's product, if this build of torch has it; as it is no public function, it is tried first."""
    try:
        kernel: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        x, weight, bias = (torch.ones(*shape, dtype=torch.float32, device="cpu") for shape in ((1, 1, 3), (2, 3), (2,)))
        alike = torch.equal(kernel(x, weight, bias, "none", [], ""), F.linear(x, weight, bias))
    except (AttributeError, RuntimeError, TypeError):
        return None
    return kernel if alike else None
