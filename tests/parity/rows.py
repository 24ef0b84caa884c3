"""Bugs of projections, experts and the product: rows in a wrong order, numbers that are not the model's.

H heads, W width of a head.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lineage import components as c
from lineage.modules.model import Model
from tests.parity import wrong_parts
from tests.parity.bugs import ATTENTION, MLP, PRODUCT, Plant, altered, products, respec


def heads_of(model: Model, x: str) -> int:
    spec = model.spec.blocks[1].attention.body
    return spec.heads if x == "q" else spec.kv_heads


def reordered(order: Callable[[Tensor], Tensor], *which: str) -> Plant:
    """Put the rows of projections in another order. order: of [H, W, ...]."""

    def plant(model: Model) -> set[str]:
        for x in which:
            for parameter in model.get_submodule(f"{ATTENTION}.{x}").parameters():
                rows = parameter.data
                parameter.data = order(rows.unflatten(0, (heads_of(model, x), -1))).reshape(rows.shape).contiguous()
        return {f"{ATTENTION}.{x}" for x in which}

    return plant


def rolled(rows_HWx: Tensor) -> Tensor:
    return rows_HWx.roll(1, 0)


def interleaved(rows_HWx: Tensor) -> Tensor:
    """A head's two halves taken for neighbours."""
    return torch.stack(rows_HWx.unflatten(1, (2, -1)).unbind(1), 2).flatten(1, 2)


def heads_rolled_in_o(model: Model) -> set[str]:
    heads = heads_of(model, "q")
    return altered(f"{ATTENTION}.o.weight", lambda rows: rows.unflatten(1, (heads, -1)).roll(1, 1).flatten(1))(model)


def fused(order: Callable[[Tensor], Tensor]) -> Plant:
    """The fused [q; k; v] cut in another way. order: [3, H, W, ...] as it stands -> as it is taken to be."""

    def plant(model: Model) -> set[str]:
        paths = [f"{ATTENTION}.{x}" for x in "qkv"]
        for kind in dict(model.get_submodule(paths[0]).named_parameters()):
            three = [model.get_parameter(f"{path}.{kind}") for path in paths]
            stacked = torch.stack([parameter.data for parameter in three])
            taken = order(stacked.unflatten(1, (heads_of(model, "q"), -1))).reshape(stacked.shape)
            for parameter, part in zip(three, taken, strict=True):
                parameter.data = part.clone()
        return set(paths)

    return plant


def gate_and_up_interleaved(model: Model) -> set[str]:
    gate, up = (model.get_parameter(f"{MLP}.{name}.weight") for name in ("gate", "up"))
    taken = torch.stack([gate.data, up.data], 1).flatten(0, 1).chunk(2)
    gate.data, up.data = (part.clone() for part in taken)
    return {f"{MLP}.gate", f"{MLP}.up"}


def experts_swapped(model: Model) -> set[str]:
    gate, up = (model.get_parameter(f"{MLP}.{name}") for name in ("gate", "up"))
    gate.data, up.data = up.data, gate.data
    return {MLP}


def scaled(factor: Callable[[Model], float]) -> Plant:
    def plant(model: Model) -> set[str]:
        one = model.get_submodule(PRODUCT)
        scale = one.spec.head_width**-0.5 if one.spec.scale is None else one.spec.scale
        one.spec = replace(one.spec, scale=scale * factor(model))
        return {PRODUCT}

    return plant


def head_width(model: Model) -> int:
    return model.spec.blocks[1].attention.body.head_width


def twice_the_heads(model: Model) -> set[str]:
    one = model.get_submodule(PRODUCT)
    spec = one.spec
    rotary = spec.rotary and replace(spec.rotary, width=spec.rotary.width // 2)
    one.spec = replace(
        spec, heads=2 * spec.heads, kv_heads=2 * spec.kv_heads, head_width=spec.head_width // 2, rotary=rotary
    )
    return {PRODUCT}


def rotary(**changes: object) -> Plant:
    """A change may be a function of the old value."""

    def changed(old: c.Rotary) -> c.Rotary:
        return replace(old, **{n: new(getattr(old, n)) if callable(new) else new for n, new in changes.items()})

    return respec(PRODUCT, rotary=changed)


def the_whole_head_turned(model: Model) -> set[str]:
    return rotary(width=head_width(model), scaling=None)(model)


def turned_anyway(model: Model) -> set[str]:
    """A layer without rotation turned as the one before it."""
    before = model.get_submodule("blocks.0.attention.body.product").spec.rotary
    return respec(PRODUCT, rotary=before)(model)


def distances(plant: Plant) -> Plant:
    """A bug of the learned bias, which every layer's product reads."""

    def planted(model: Model) -> set[str]:
        return plant(model) | products(model)

    return planted


def short_for_long(model: Model) -> set[str]:
    return rotary(scaling=lambda old: replace(old, long=old.short))(model)


def attention_factor_lost(model: Model) -> set[str]:
    factors = {"attention": 1.0, "long_attention": 1.0}
    return rotary(scaling=lambda old: replace(old, **{n: v for n, v in factors.items() if hasattr(old, n)}))(model)


def scaled_by_plain(model: Model) -> set[str]:
    product = model.get_submodule(PRODUCT)
    product.inner = replace(product.inner, scale=product.spec.plain**-0.5)
    return {PRODUCT}


def experts_permuted(model: Model) -> set[str]:
    body = model.get_submodule(MLP)
    for name in ("gate", "up", "down"):
        if getattr(body, name) is not None:
            altered(f"{MLP}.{name}", lambda w: w.roll(1, 0))(model)
    return {MLP}


def norms_each_head(model: Model) -> set[str]:
    norm = model.get_submodule(f"{ATTENTION}.query_norm")
    norm.heads = model.get_submodule(ATTENTION).spec.heads
    norm.__class__ = wrong_parts.NormsEachHead
    return {f"{ATTENTION}.query_norm"}


def clips_before_norms(model: Model) -> set[str]:
    product = model.get_submodule(PRODUCT)
    norms = {f"{ATTENTION}.{name}" for name in ("query_norm", "key_norm")}
    for path in norms:
        norm = model.get_submodule(path)
        norm.__class__, norm.clip = wrong_parts.ClipsFirst, product.spec.clip
    product.spec = replace(product.spec, clip=None)
    return {*norms, PRODUCT}


def experts_nudged(name: str) -> Plant:
    def nudge(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[:, -1, -1] += 1e-3
        return tensor

    return altered(f"{MLP}.{name}", nudge)


def windows_in_the_other_layers(model: Model) -> set[str]:
    one, other = (model.get_submodule(f"blocks.{i}.attention.body.product") for i in (0, 1))
    one.spec, other.spec = replace(one.spec, mask=other.spec.mask), replace(other.spec, mask=one.spec.mask)
    return {f"blocks.{i}.attention.body.product" for i in (0, 1)}
