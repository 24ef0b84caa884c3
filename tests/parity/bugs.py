"""The classic mistakes of a port, each planted in a model in memory.

A plant is a function that changes a model and says which components are now wrong. `planted` lists the bugs.
N rows, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lineage import components as c
from lineage import graph
from lineage.modules.experts import Experts
from lineage.modules.feed_forward import Activation
from lineage.modules.model import Model
from lineage.parity.probes import default_probes

Plant = Callable[[Model], set[str]]
Fits = Callable[[c.Model], object]
SEEN, BEHAVES = ("replay", "fp64"), ("replay", "fp64", "behaviour")
ATTENTION, MLP = "blocks.1.attention.body", "blocks.1.mlp.body"
PRODUCT, ROUTER = f"{ATTENTION}.product", f"{MLP}.router"
WEIGHTS = f"{ROUTER}.weights"  # what a router gives besides its logits


@dataclass(frozen=True)
class Bug:
    """fits: the specs that can have it. claims: levels that must fail. silent: levels that cannot see it and must pass.

    faint: on a faint stream.
    """

    name: str
    plant: Plant
    fits: Fits
    claims: tuple[str, ...] = SEEN
    silent: tuple[str, ...] = ()
    faint: bool = False

    def __str__(self) -> str:
        return self.name


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


def blamed(path: str, plant: Plant) -> Plant:
    """A plant in what is no component of the reference's: what reads it is wrong."""

    def planted(model: Model) -> set[str]:
        plant(model)
        return {path}

    return planted


def both(*plants: Plant) -> Plant:
    return lambda model: innermost(set().union(*(plant(model) for plant in plants)))


def turned_matrix(name: str) -> Plant:
    return altered(f"{name}.weight", lambda weight: weight.T)


def innermost(paths: set[str]) -> set[str]:
    """Those that contain no other: a component can't be judged apart from what it is made of."""
    return {
        path for path in paths if not any(other.startswith(f"{path}." if path else path) for other in paths - {path})
    }


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


def norms(spec: c.Model, *kinds: type[c.Component]) -> list[str]:
    """Every norm's path, in the order of the fields."""
    return [node.path for node in graph.walk(spec) if isinstance(node.component, kinds or (c.LayerNorm, c.RMSNorm))]


def stream_norms(spec: c.Model) -> list[str]:
    """Those of the stream that have a weight."""
    whole = ("norm", "norm_input", "norm_sum", "norm_branch")
    found = [
        path for path in norms(spec) if path.rpartition(".")[2] in whole and f"{path}.weight" in graph.tensors(spec)
    ]
    return [path for path in found if not path.endswith("embed.norm")]


def table_users(model: Model) -> set[str]:
    """A tied table stands at both ends, a shared one in front of both stacks."""
    first = {"encoder.embed.tokens", "embed"} if model.spec.embed.tied else {"embed.tokens"}
    return first | {"head"} if model.spec.head and model.spec.head.tied else first


def bias_lost(path: str) -> Plant:
    return altered(f"{path}.bias", torch.zeros_like)


def nudged(name: str) -> Plant:
    def nudge(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] += 1e-3
        return tensor

    return altered(name, nudge)


def products(model: Model, stack: str = "") -> set[str]:
    """Of a stack's own attention. stack: the path before its blocks."""
    blocks = model.get_submodule(f"{stack}blocks")
    return {f"{stack}blocks.{i}.attention.body.product" for i in range(len(blocks))}


def all_rolled(model: Model) -> set[str]:
    """Every tensor with its last axis one on; products read sinks, and the biases of distances."""
    for parameter in model.parameters():
        parameter.data = parameter.data.roll(1, -1).contiguous()
    names = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    read = {f"{name[:-6]}.product" for name, _ in model.named_parameters() if name.endswith(".sinks")}
    for stack in [name.removesuffix("position_bias") for name in names if name.endswith("position_bias")]:
        read |= products(model, stack)
    return names | read | table_users(model)


def table_nudged(model: Model) -> set[str]:
    """In the row of a token that is read: a row that no prompt holds moves nothing but its own logit."""
    model.get_parameter("embed.tokens.weight").data[default_probes(model.spec)[-1].ids_BT[-1, -1], 3] += 1e-3
    return table_users(model)


# The embedding and the head


def two_rows_swapped(rows_ND: Tensor) -> Tensor:
    return rows_ND[[0, 1, 2, 4, 3, *range(5, len(rows_ND))]]


def changed(path: str, attribute: str, value: object) -> Plant:
    """Change a number that a module keeps beside its tensors."""

    def plant(model: Model) -> set[str]:
        setattr(model.get_submodule(path), attribute, value)
        return {path}

    return plant


def positions_from_zero(model: Model) -> set[str]:
    positions = model.get_submodule("embed.positions")
    positions.pad, positions.ids = None, c.Consecutive()
    return {"embed.positions"}


def scale_lost(model: Model) -> set[str]:
    model.head.scale = model.head.scale_input = None
    return {"head"}


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
        chosen = paths or norms(model.spec)
        for path in chosen:
            norm = model.get_submodule(path)
            norm.spec = replace(norm.spec, eps=norm.spec.eps + 1e-5)
        read = products(model) if "distances.norm" in chosen else set()  # every layer's product reads these
        return {*chosen, *read}

    return plant


def first_norm(plant: Callable[[str], Plant]) -> Plant:
    return lambda model: plant(stream_norms(model.spec)[0])(model)


def two_norms_swapped(model: Model) -> set[str]:
    return swap(model, *stream_norms(model.spec)[:2])


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
