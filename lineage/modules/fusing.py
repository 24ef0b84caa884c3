"""Projections of the same vectors as one product: an option of loading, undone without loss. E experts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lineage.modules.attention import Attention
from lineage.modules.experts import Experts
from lineage.modules.feed_forward import FeedForward
from lineage.modules.linear import Linear
from lineage.modules.model import Model
from lineage.values import Value


class Fusion(Value):
    """The rule: `whole` holds the rows of `parts`, one after the other; sizes: how many of each, by the module."""

    whole: str
    parts: tuple[str, ...]
    sizes: Callable[[Any], list[int]]


FUSIONS: dict[type[nn.Module], Fusion] = {
    Attention: Fusion("qkv", ("q", "k", "v"), lambda module: module.sizes),
    FeedForward: Fusion("gate_up", ("gate", "up"), lambda module: [module.down.in_features] * 2),
    Experts: Fusion("gate_up", ("gate", "up"), lambda module: [module.spec.width] * 2),
}


def fuse(model: Model) -> Model:
    """The same model with fewer and larger products, in place; only tensors' names and arrangement change."""
    for module, rule in _found(model):
        held = [getattr(module, part) for part in rule.parts]
        cross = isinstance(module, Attention) and module.spec.cross  # whose queries read other vectors
        if cross or any(one is None for one in held):
            continue
        if isinstance(module, Experts):
            module.gate_up = _one(held, 1)
            biases = [bias for bias in (module.gate_bias, module.up_bias) if bias is not None]
            module.gate_up_bias = _one(biases, 1) if biases else None
            module.gate_bias = module.up_bias = None
        else:
            whole = Linear(held[0].in_features, 1, held[0].bias is not None, device="meta")
            whole.weight, whole.out_features = _one([one.weight for one in held]), sum(rule.sizes(module))
            whole.bias = None if held[0].bias is None else _one([one.bias for one in held])  # type: ignore[assignment]
            setattr(module, rule.whole, whole)
        for part in rule.parts:
            setattr(module, part, None)
    return model


def part(model: Model) -> Model:
    """What `fuse` undoes, in place: every tensor as the spec names it, of the same numbers."""
    for module, rule in _found(model):
        whole = getattr(module, rule.whole)
        if whole is None:
            continue
        if isinstance(module, Experts):
            module.gate, module.up = _several(whole, rule.sizes(module), 1)
            if module.gate_up_bias is not None:
                module.gate_bias, module.up_bias = _several(module.gate_up_bias, rule.sizes(module), 1)
            module.gate_up_bias = None
        else:
            weights = _several(whole.weight, rule.sizes(module))
            biases = [None] * len(weights) if whole.bias is None else _several(whole.bias, rule.sizes(module))
            for name, weight, bias in zip(rule.parts, weights, biases, strict=True):
                one = Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
                one.weight, one.bias = weight, bias  # type: ignore[assignment]
                setattr(module, name, one)
        setattr(module, rule.whole, None)
    return model


def _found(model: Model) -> Iterator[tuple[Any, Fusion]]:
    for module in list(model.modules()):
        yield from ((module, rule) for kind, rule in FUSIONS.items() if isinstance(module, kind))


def _one(parts: Sequence[Tensor], axis: int = 0) -> nn.Parameter:
    """The parts as one tensor, which lies in memory the way round that they do."""
    held = [one.detach() for one in parts]
    turned = axis == 0 and all(one.ndim == 2 and one.stride(0) == 1 for one in held)
    whole = torch.cat([one.T for one in held], 1).T if turned else torch.cat(held, axis)
    return nn.Parameter(whole, parts[0].requires_grad)


def _several(whole: Tensor, sizes: list[int], axis: int = 0) -> list[nn.Parameter]:
    cut = whole.detach().split(sizes, axis)
    return [nn.Parameter(one.clone(memory_format=torch.contiguous_format), whole.requires_grad) for one in cut]
