"""The classic mistakes of a port, each planted in a model in memory.

A bug is a function that changes a model and says which components are now wrong. `planted` lists them all.
N rows, D width, H heads, W width of a head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage.modules.feed_forward import Activation
from lineage.modules.model import Model
from lineage.parity.probes import default_probes
from tests.parity import wrong

Plant = Callable[[Model], set[str]]
ATTENTION, MLP = "blocks.1.attention.body", "blocks.1.mlp.body"


def turn(model: Model, path: str, kind: type[nn.Module]) -> set[str]:
    """Make one module behave as another class; copies of the model keep it."""
    model.get_submodule(path).__class__ = kind
    return {path}


def data(model: Model, name: str) -> Tensor:
    return model.get_parameter(name).data


def swap(model: Model, one: str, other: str) -> set[str]:
    """Exchange all tensors of two modules of one form."""
    a, b = (dict(model.get_submodule(path).named_parameters()) for path in (one, other))
    assert a.keys() == b.keys()
    for name in a:
        a[name].data, b[name].data = b[name].data, a[name].data
    return {one, other}


def whole(model: Model, path: str) -> set[str]:
    """The modules with tensors of their own that a module is made of."""
    inside = model.get_submodule(path).named_modules()
    return {f"{path}.{name}" for name, module in inside if list(module.parameters(recurse=False))}


def norms(model: Model) -> list[str]:
    return [path for path, module in model.named_modules() if type(module).__name__ == "LayerNorm"]


def acts(model: Model) -> list[str]:
    return [path for path, module in model.named_modules() if isinstance(module, Activation)]


def table_users(model: Model) -> set[str]:
    """A tied table stands at both ends."""
    return {"embed.tokens", "head"} if model.spec.head and model.spec.head.tied else {"embed.tokens"}


# Projections


def transposed(name: str) -> Plant:
    def plant(model: Model) -> set[str]:
        weight = model.get_parameter(f"{name}.weight")
        weight.data = weight.data.T.contiguous()
        return {name}

    return plant


def exchanged(one: str, other: str) -> Plant:
    return lambda model: swap(model, f"{ATTENTION}.{one}", f"{ATTENTION}.{other}")


def reordered(model: Model, path: str, order: Callable[[Tensor], Tensor]) -> None:
    """Put the rows [H W, ...] of a projection's tensors in another order. order: of [H, W, ...]."""
    heads = model.spec.blocks[1].attention.body.heads
    for parameter in model.get_submodule(path).parameters():
        rows = parameter.data
        parameter.data = order(rows.unflatten(0, (heads, -1))).reshape(rows.shape).contiguous()


def heads_rolled(*which: str) -> Plant:
    def plant(model: Model) -> set[str]:
        for x in which:
            reordered(model, f"{ATTENTION}.{x}", lambda rows_HWx: rows_HWx.roll(1, 0))
        return {f"{ATTENTION}.{x}" for x in which}

    return plant


def heads_rolled_in_o(model: Model) -> set[str]:
    weight = model.get_parameter(f"{ATTENTION}.o.weight")
    weight.data = weight.data.unflatten(1, (model.spec.blocks[1].attention.body.heads, -1)).roll(1, 1).flatten(1)
    return {f"{ATTENTION}.o"}


def rows_interleaved(model: Model) -> set[str]:
    """q's rows of a head as neighbours in place of halves."""
    reordered(
        model, f"{ATTENTION}.q", lambda rows_HWx: torch.stack(rows_HWx.unflatten(1, (2, -1)).unbind(1), 2).flatten(1, 2)
    )
    return {f"{ATTENTION}.q"}


def fused(order: Callable[[Tensor], Tensor]) -> Plant:
    """The fused [q; k; v] cut in another way. order: [3, H, W, ...] as it stands -> as it is taken to be."""

    def plant(model: Model) -> set[str]:
        paths, heads = [f"{ATTENTION}.{x}" for x in "qkv"], model.spec.blocks[1].attention.body.heads
        for kind in ("weight", "bias"):
            three = torch.stack([data(model, f"{path}.{kind}") for path in paths])
            taken = order(three.unflatten(1, (heads, -1))).reshape(three.shape)
            for path, part in zip(paths, taken, strict=True):
                model.get_parameter(f"{path}.{kind}").data = part.clone()
        return set(paths)

    return plant


def bias_lost(path: str) -> Plant:
    def plant(model: Model) -> set[str]:
        data(model, f"{path}.bias").zero_()
        return {path}

    return plant


def nudged(name: str) -> Plant:
    def plant(model: Model) -> set[str]:
        data(model, name).flatten()[-1] += 1e-3
        return {name.rpartition(".")[0]}

    return plant


def table_nudged(model: Model) -> set[str]:
    """In the row of a token that is read: a row that no prompt holds moves nothing but its own logit."""
    used = default_probes(model.spec)[-1].ids_BT[-1, -1]
    data(model, "embed.tokens.weight")[used, 3] += 1e-3
    return table_users(model)


# The product


def product(kind: type[nn.Module]) -> Plant:
    return lambda model: turn(model, f"{ATTENTION}.product", kind)


def scaled(factor: Callable[[c.Model], float]) -> Plant:
    def plant(model: Model) -> set[str]:
        model.get_submodule(f"{ATTENTION}.product").scale *= factor(model.spec)
        return {f"{ATTENTION}.product"}

    return plant


def head_width(spec: c.Model) -> int:
    return spec.blocks[1].attention.body.head_width


def twice_the_heads(model: Model) -> set[str]:
    one = model.get_submodule(f"{ATTENTION}.product")
    one.head_width //= 2
    one.scale *= 2**0.5
    return {f"{ATTENTION}.product"}


def mask_turned(model: Model) -> set[str]:
    one = model.get_submodule(f"{ATTENTION}.product")
    one.causal = not one.causal
    return {f"{ATTENTION}.product"}


# The embedding


def rows(name: str, order: Callable[[Tensor], Tensor]) -> Plant:
    def plant(model: Model) -> set[str]:
        table = model.get_parameter(name)
        table.data = order(table.data).contiguous()
        path = name.rpartition(".")[0]
        return table_users(model) if path == "embed.tokens" else {path}

    return plant


def two_rows_swapped(rows_ND: Tensor) -> Tensor:
    return rows_ND[[0, 1, 2, 4, 3, *range(5, len(rows_ND))]]


def without_segments(model: Model) -> set[str]:
    model.embed.segments = None
    return {"embed"}


def positions_by_place(model: Model) -> set[str]:
    model.embed.positions.pad = None
    return {"embed.positions"}


def gone(path: str) -> Plant:
    def plant(model: Model) -> set[str]:
        owner, _, name = path.rpartition(".")
        setattr(model.get_submodule(owner), name, nn.Identity())
        return {path}

    return plant


# Norms, activations


def eps_of(*paths: str) -> Plant:
    """1e-5 more, which is GPT-2's; of all norms where none are named."""

    def plant(model: Model) -> set[str]:
        chosen = paths or norms(model)
        for path in chosen:
            model.get_submodule(path).eps += 1e-5
        return set(chosen)

    return plant


def eps_outside_root(model: Model) -> set[str]:
    return set().union(*(turn(model, path, wrong.EpsOutsideRoot) for path in norms(model)))


def first_norm(kind: type[nn.Module]) -> Plant:
    return lambda model: turn(model, norms(model)[0], kind)


def first_norm_loses(name: str) -> Plant:
    def plant(model: Model) -> set[str]:
        path = norms(model)[0]
        data(model, f"{path}.{name}").fill_(1.0 if name == "weight" else 0.0)
        return {path}

    return plant


def acts_are(function: Callable[[Tensor], Tensor], *paths: str) -> Plant:
    def plant(model: Model) -> set[str]:
        chosen = paths or acts(model)
        for path in chosen:
            model.get_submodule(path).function = function
        return set(chosen)

    return plant


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def exact_for_tanh(*paths: str) -> Plant:
    """The other GELU: the exact one for tanh's, tanh's for the exact one."""

    def plant(model: Model) -> set[str]:
        exact = model.get_submodule(f"{MLP}.act").name == "gelu"
        return acts_are((lambda x: F.gelu(x, approximate="tanh")) if exact else F.gelu, *paths)(model)

    return plant


# Blocks


def layers_swapped(model: Model) -> set[str]:
    swap(model, "blocks.0", "blocks.1")
    return whole(model, "blocks.0") | whole(model, "blocks.1")


def norm_moved(branch: str, to: str) -> Plant:
    def plant(model: Model) -> set[str]:
        residual = model.get_submodule(f"blocks.1.{branch}")
        at = next(slot for slot in wrong.SLOTS if not isinstance(getattr(residual, slot), nn.Identity))
        norm = getattr(residual, at)
        setattr(residual, at, nn.Identity())
        setattr(residual, to, norm)
        return {f"blocks.1.{branch}.{at}"}

    return plant


def two_norms_swapped(model: Model) -> set[str]:
    return swap(model, norms(model)[0], norms(model)[1])


# Heads


def own_head(model: Model) -> set[str]:
    """A head that was tied, and has drifted from the table."""
    table = data(model, "embed.tokens.weight")
    drift = torch.randn(table.shape, generator=torch.Generator().manual_seed(3), dtype=table.dtype)
    model.head.weight = nn.Parameter(table + 1e-3 * drift)
    return {"head"}


def head_bias_lost(model: Model) -> set[str]:
    model.head.bias = None
    return {"head"}
