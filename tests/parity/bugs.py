"""The classic mistakes of a port, each planted in a model in memory.

A bug is a function that changes a model and says which components are now wrong. `planted` lists them all.
N rows, D width, H heads, W width of a head, E experts.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage.modules.experts import Experts
from lineage.modules.feed_forward import Activation
from lineage.modules.model import Model
from lineage.modules.norm import LayerNorm, RMSNorm
from lineage.parity.probes import default_probes
from tests.parity import wrong

Plant = Callable[[Model], set[str]]
ATTENTION, MLP = "blocks.1.attention.body", "blocks.1.mlp.body"
PRODUCT, ROUTER = f"{ATTENTION}.product", f"{MLP}.router"


def turn(path: str, kind: type[nn.Module]) -> Plant:
    """Make one module behave as another class; copies of the model keep it."""

    def plant(model: Model) -> set[str]:
        model.get_submodule(path).__class__ = kind
        return {path}

    return plant


def respec(path: str, **changes: object) -> Plant:
    """Change the spec that a module reads in its forward. A change may be a function of the old value."""

    def plant(model: Model) -> set[str]:
        module = model.get_submodule(path)
        values = {name: new(getattr(module.spec, name)) if callable(new) else new for name, new in changes.items()}
        module.spec = replace(module.spec, **values)
        return {path}

    return plant


def gone(path: str) -> Plant:
    def plant(model: Model) -> set[str]:
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, nn.Identity())
        return {path}

    return plant


def altered(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change one tensor."""

    def plant(model: Model) -> set[str]:
        parameter = model.get_parameter(name)
        parameter.data = change(parameter.data).contiguous()
        return table_users(model) if name == "embed.tokens.weight" else {name.rpartition(".")[0]}

    return plant


def both(*plants: Plant) -> Plant:
    return lambda model: innermost(set().union(*(plant(model) for plant in plants)))


def innermost(paths: set[str]) -> set[str]:
    """Those that contain no other: a component can't be judged apart from what it is made of."""
    return {path for path in paths if not any(other.startswith(path + ".") for other in paths)}


def swap(model: Model, one: str, other: str) -> set[str]:
    """Exchange all tensors of two modules of one form."""
    a, b = (dict(model.get_submodule(path).named_parameters()) for path in (one, other))
    assert a.keys() == b.keys()
    for name in a:
        a[name].data, b[name].data = b[name].data, a[name].data
    return {one, other}


def swapped(one: str, other: str) -> Plant:
    return lambda model: swap(model, one, other)


def owners(model: Model, path: str) -> set[str]:
    """The modules with tensors of their own that a module is made of."""
    inside = model.get_submodule(path).named_modules()
    return {f"{path}.{name}" for name, module in inside if list(module.parameters(recurse=False))}


def norms(model: Model, *kinds: type) -> list[str]:
    return [path for path, module in model.named_modules() if isinstance(module, kinds or (LayerNorm, RMSNorm))]


def table(model: Model) -> str:
    """Where the table is compared: scaled, its rows are an inner matter of the reference's."""
    return "embed" if model.spec.embed.scale is not None else "embed.tokens"


def table_users(model: Model) -> set[str]:
    """A tied table stands at both ends."""
    return {table(model), "head"} if model.spec.head and model.spec.head.tied else {table(model)}


# Projections and experts


def turned_matrix(name: str) -> Plant:
    return altered(f"{name}.weight", lambda weight: weight.T)


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


def bias_lost(path: str) -> Plant:
    return altered(f"{path}.bias", torch.zeros_like)


def nudged(name: str) -> Plant:
    def nudge(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] += 1e-3
        return tensor

    return altered(name, nudge)


def table_nudged(model: Model) -> set[str]:
    """In the row of a token that is read: a row that no prompt holds moves nothing but its own logit."""
    model.get_parameter("embed.tokens.weight").data[default_probes(model.spec)[-1].ids_BT[-1, -1], 3] += 1e-3
    return table_users(model)


# The product


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
    return respec(PRODUCT, rotary=lambda old: replace(old, **changes))


def windows_in_the_other_layers(model: Model) -> set[str]:
    one, other = (model.get_submodule(f"blocks.{i}.attention.body.product") for i in (0, 1))
    one.spec, other.spec = replace(one.spec, mask=other.spec.mask), replace(other.spec, mask=one.spec.mask)
    return {f"blocks.{i}.attention.body.product" for i in (0, 1)}


# The embedding and the head


def two_rows_swapped(rows_ND: Tensor) -> Tensor:
    return rows_ND[[0, 1, 2, 4, 3, *range(5, len(rows_ND))]]


def changed(path: str, attribute: str, value: object) -> Plant:
    """Change a number that a module keeps beside its tensors."""

    def plant(model: Model) -> set[str]:
        setattr(model.get_submodule(path), attribute, value)
        return {path}

    return plant


def own_head(model: Model) -> set[str]:
    """A head that was tied, and has drifted from the table."""
    rows = model.get_parameter("embed.tokens.weight").data
    drift = torch.randn(rows.shape, generator=torch.Generator().manual_seed(3), dtype=rows.dtype)
    model.head.weight = nn.Parameter(rows + 1e-3 * drift)
    return {"head"}


# Norms and activations


def eps_of(*paths: str) -> Plant:
    """1e-5 more; of all norms where none are named."""

    def plant(model: Model) -> set[str]:
        chosen = paths or norms(model)
        for path in chosen:
            norm = model.get_submodule(path)
            norm.spec = replace(norm.spec, eps=norm.spec.eps + 1e-5)
        return set(chosen)

    return plant


def eps_outside_root(model: Model) -> set[str]:
    return set().union(*(turn(path, wrong.EpsOutsideRoot)(model) for path in norms(model, LayerNorm)))


def first_norm(*plants: Callable[[str], Plant]) -> Plant:
    return lambda model: set().union(*(plant(norms(model)[0])(model) for plant in plants))


def two_norms_swapped(model: Model) -> set[str]:
    of_stream = [p for p in norms(model) if len(model.get_parameter(f"{p}.weight")) == model.spec.embed.width]
    return swap(model, *of_stream[:2])


def acts_are(function: Callable[[Tensor], Tensor], *paths: str) -> Plant:
    def plant(model: Model) -> set[str]:
        chosen = paths or [path for path, module in model.named_modules() if isinstance(module, Activation)]
        for path in chosen:
            model.get_submodule(path).function = function
        return {judged(model, path) for path in chosen}

    return plant


def judged(model: Model, path: str) -> str:
    """Inside experts an activation is called once an expert: what is compared is their sum."""
    owner = path.rpartition(".")[0]
    return owner if isinstance(model.get_submodule(owner), Experts) else path


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def other_gelu(*paths: str) -> Plant:
    """The exact GELU for tanh's, tanh's for the exact one."""

    def plant(model: Model) -> set[str]:
        exact = model.get_submodule(paths[0] if paths else f"{MLP}.act").name == "gelu"
        return acts_are(tanh_gelu if exact else F.gelu, *paths)(model)

    return plant


# Blocks


def layers_swapped(model: Model) -> set[str]:
    swap(model, "blocks.0", "blocks.1")
    return innermost(owners(model, "blocks.0") | owners(model, "blocks.1"))


def norm_moved(branch: str, at: str, to: str) -> Plant:
    def plant(model: Model) -> set[str]:
        residual = model.get_submodule(f"blocks.1.{branch}")
        norm = getattr(residual, at)
        setattr(residual, at, nn.Identity())
        setattr(residual, to, norm)
        return {f"blocks.1.{branch}.{at}"}

    return plant
