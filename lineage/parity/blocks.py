"""Verifies a checkpoint larger than memory: both sides run with one module's weights in memory at a time.

A parameter is fetched from the file when something is computed with it, in the reference's own forward as in ours, and
let go with the rest of its module when that is done with another's; a table at both ends is fetched twice. What is kept
are activations of a short prompt; each component is then replayed on the reference's input, again with its own weights
alone. All in single precision, whatever the file stores.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lineage.checkpoint.source import Access
from lineage.errors import TensorMismatch
from lineage.modules.loading import to_torch
from lineage.modules.model import build
from lineage.operations import invert
from lineage.parity import levels, reference
from lineage.parity.activations import pairs
from lineage.parity.device import find, strict
from lineage.parity.probes import Probe, sources, tokens, usable_length
from lineage.parity.repairs import mended
from lineage.parity.replay import trace
from lineage.parity.report import Report, passed
from lineage.parity.routes import flips, listed, routed
from lineage.parity.session import Session
from lineage.parity.subject import Subject, subject
from lineage.parity.verification import report
from lineage.rules import fill

BLOCK_LIMIT = (
    2e-5  # relative, for one component in single precision; noise stands at 1e-6, wrong GELUs at 1e-4 and more
)
LENGTH = 16
LARGE = 1 << 22  # parameters of a module after which the heap is tidied
PLAIN = ("device", "dtype", "shape", "requires_grad", "grad_fn", "is_meta")  # of a parameter, without its numbers
Fetch = Callable[[str], Tensor]
Held = dict[tuple[tuple[int, str], str], Tensor]


def verify_blocks(
    model: str | Path, *, local_files_only: bool = False, allow_pickle: bool = False, drop_head: bool = False,
    device: str = "cpu",
) -> Report:  # fmt: skip
    """`verify` for what does not fit: bytes, then every component on the reference's own input, weights streamed.

    drop_head: of a checkpoint take the backbone alone. device: cpu, cuda or cuda:N. Raises ResourceError if it is not
    there, and the project's other errors.
    """
    device = find(device)
    made = subject(model, Access(local_files_only=local_files_only), allow_pickle, drop_head)
    with made.material() as material, strict(device):
        session = Session(made, material, (), device=device)
        spec = made.spec
        ours = build(spec)
        theirs = _skeleton(session)
        paths = [path for path, _ in ours.named_modules() if path]
        mapping = pairs(made.dialect, made.memory, made.base, paths)
        length = min(LENGTH, usable_length(spec))
        generator = torch.Generator().manual_seed(5)
        ids_BT = tokens(spec, 1, length, generator)
        probe = Probe("blocks", ids_BT, source_BS=sources(spec, 1, length, generator))
        own, given = probe.arguments(device), reference.accepted(theirs, probe.arguments(), device)
        held: Held = {}
        Store(ours, _ours(made), held, device)
        Store(theirs, _theirs(made, theirs, device), held, device)
        routers, others = session.routers(ours), session.routers(theirs)
        with routed(others, None) as ways, routed(routers, ways) as seen:
            found = trace(ours, theirs, mapping, probe, given, BLOCK_LIMIT, own)
        away = flips(routers, {probe.name: seen}, {probe.name: ways}, [probe])
        held.clear()
    local = [node.local for node in found.nodes if node.local is not None]
    worst = max((node.inherited for node in found.nodes), default=float("inf"))
    summary = f"{len(local)} components, worst {max(local, default=0.0):.1e} on the reference's input"
    good = not found.guilty and bool(local) and not any(flip.wrong for flip in away)
    details = [f"carried along: {worst:.1e}", *listed(away)]
    level = passed("replay", good, summary, details, limit=BLOCK_LIMIT)
    return report(session, [levels.static(made), levels.stored(made), level], [found])


class Streamed(nn.Parameter):
    """A parameter of which only shape, type and place are there; what is computed with it takes the store's."""

    key: str
    store: "Store"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = getattr(getattr(func, "__self__", None), "__name__", None) in PLAIN
        given = args, kwargs or {}
        args, kwargs = given if plain else tree_map_only(cls, lambda one: one.store.get(one.key), given)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


class Store:
    """A model's parameters. fetch: one of them, by its name. held: those in memory, of one module of all stores."""

    def __init__(self, model: nn.Module, fetch: Fetch, held: Held, device: str = "cpu") -> None:
        self.held, self._fetch, self._device = held, fetch, device
        for path, module in model.named_modules():
            for name, parameter in [one for one in module.named_parameters(recurse=False) if one[1].is_meta]:
                only = Streamed(torch.zeros((), device=device).expand(parameter.shape), requires_grad=False)
                only.key, only.store = f"{path}.{name}".lstrip("."), self
                setattr(module, name, only)

    def get(self, name: str) -> Tensor:
        """A parameter; those of other modules are let go."""
        owner = id(self), name.rpartition(".")[0]
        if any(place != owner for place, _ in self.held):
            large = sum(tensor.numel() for tensor in self.held.values()) > LARGE
            self.held.clear()
            if large:
                _trim()
        if (owner, name) not in self.held:
            self.held[owner, name] = self._fetch(name).to(self._device, torch.float32)
        return self.held[owner, name]


def _trim() -> None:
    """Give back what lies free among the activations: the C library's heap keeps it, up to all blocks' weights."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _ours(made: Subject) -> Fetch:
    return lambda name: to_torch(made.read(name), made.types[name])


def _theirs(made: Subject, model: nn.Module, device: str) -> Fetch:
    """Fetch a parameter of the reference: its tensor in the source, made from ours by the mapping undone.

    What the file gives and the reference keeps as a buffer is put there at once, and so is what it computes itself.
    """
    steps = {source: (step, place) for step in made.memory for place, source in enumerate(step.sources)}
    for copy in made.dialect.copies:  # a second name of a tensor, which the file need not hold
        name, of = (fill(template, {}, made.base) for template in (copy.source, copy.of))
        if name not in steps and of in steps:
            steps[name] = steps[of]
    names = {memory: file for file, memory in reference.parameter_names(model, list(steps)).items()}

    def fetch(name: str) -> Tensor:
        if name not in names:
            raise TensorMismatch(f"{name}: a parameter of the reference that the file does not give", code="reference")
        step, place = steps[names[name]]
        back = invert(step.operations, [made.read(target) for target in step.targets])
        return to_torch(back[place], made.types[step.targets[0]])

    for name, buffer in model.named_buffers():
        if name in names:
            buffer.copy_(fetch(name))
    for path, module in model.named_modules():
        for name in dict(module.named_parameters(recurse=False)):
            if f"{path}.{name}" not in names and (values := _computed(model, module, name, device)) is not None:
                setattr(module, name, values)
    return fetch


def _computed(model: nn.Module, module: nn.Module, name: str, device: str) -> nn.Parameter | None:
    """A parameter that the reference's initialisation makes without drawing numbers; None for any other."""
    usual, made = module.get_parameter(name), []
    for _ in range(2):
        unset = torch.full(usual.shape, torch.nan, device=device)  # unlike itself
        setattr(module, name, nn.Parameter(unset, requires_grad=False))
        model._init_weights(module)  # type: ignore[operator]
        made.append(module.get_parameter(name))
    setattr(module, name, usual)
    return made[0] if torch.equal(made[0], made[1]) else None


def _skeleton(session: Session) -> nn.Module:
    """The reference without weights: parameters on the meta device, buffers real."""
    import transformers
    from transformers.initialization import no_init_weights

    if session.reference.build is not None:
        with _meta_parameters(), torch.device(session.device):
            return reference.build_other(session.reference, session.material).eval()
    kind = getattr(transformers, session.reference.name)
    with reference.quiet(), no_init_weights(), _meta_parameters(), torch.device(session.device):
        config = session.material.config({**session.repairs, **session.reference.settings})
        model: nn.Module = kind._from_config(
            config, attn_implementation=session.attention, experts_implementation="eager", dtype=torch.float32
        )
    return mended(model, session.reference)


@contextlib.contextmanager
def _meta_parameters() -> Iterator[None]:
    """Within: every parameter that a module registers loses its storage at once."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
