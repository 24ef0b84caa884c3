"""Verifies a checkpoint larger than memory: both sides run with one module's weights in memory at a time.

Each module's parameters are fetched from the file when it is called and let go when it returns, in the reference's
own forward as in ours; a table at both ends is fetched twice. What is kept are activations of a short prompt; each
component is then replayed on the reference's input, again with its own weights alone. All in single precision,
whatever the file stores.
"""

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lineage.checkpoint.source import Access
from lineage.errors import TensorMismatch, UsageError
from lineage.modules.loading import to_torch
from lineage.modules.model import build
from lineage.operations import invert
from lineage.parity import levels, reference
from lineage.parity.activations import pairs
from lineage.parity.device import find, strict
from lineage.parity.probes import Probe, tokens, usable_length
from lineage.parity.repairs import told_lengths
from lineage.parity.replay import trace
from lineage.parity.report import Report, passed
from lineage.parity.session import Session
from lineage.parity.subject import Subject, subject
from lineage.parity.verification import report
from lineage.rules import fill

BLOCK_LIMIT = (
    2e-5  # relative, for one component in single precision; noise stands at 1e-6, wrong GELUs at 1e-4 and more
)
LENGTH = 16
LARGE = 1 << 22  # parameters of a module after which the heap is tidied
TABLE = "embed.tokens.weight"
Fetch = Callable[[str], Tensor]


def verify_blocks(
    model: str | Path, *, local_files_only: bool = False, allow_pickle: bool = False, device: str = "cpu"
) -> Report:
    """`verify` for what does not fit: bytes, then every component on the reference's own input, weights streamed.

    device: cpu, cuda or cuda:N. Raises ResourceError if it is not there, and the project's other errors.
    """
    device = find(device)
    made = subject(model, Access(local_files_only=local_files_only), allow_pickle)
    with made.material() as material, strict(device):
        session = Session(made, material, (), device=device)
        spec = made.spec
        if spec.encoder is not None:
            raise UsageError("--blocks goes through one stack, and this model has an encoder", hint="verify it whole")
        ours = build(spec)
        if spec.head is not None and spec.head.tied:  # as if it had a table of its own, there only while it runs
            ours.get_submodule("head").weight = nn.Parameter(torch.empty_like(ours.table), requires_grad=False)
        theirs = _skeleton(session)
        paths = [path for path, _ in ours.named_modules() if path]
        mapping = pairs(made.dialect, made.memory, made.base, paths)
        length = min(LENGTH, usable_length(spec))
        probe = Probe("blocks", tokens(spec, 1, length, torch.Generator().manual_seed(5)))
        own, given = probe.arguments(device), reference.accepted(theirs, probe.arguments(), device)
        with streamed(ours, _ours(made), device), streamed(theirs, _theirs(made, theirs), device):
            found = trace(ours, theirs, mapping, probe, given, BLOCK_LIMIT, own)
    local = [node.local for node in found.nodes if node.local is not None]
    worst = max((node.inherited for node in found.nodes), default=float("inf"))
    summary = f"{len(local)} components, worst {max(local, default=0.0):.1e} on the reference's input"
    level = passed(
        "replay", not found.guilty and bool(local), summary, [f"carried along: {worst:.1e}"], limit=BLOCK_LIMIT
    )
    return report(session, [levels.static(made), levels.stored(made), level], [found])


@contextlib.contextmanager
def streamed(model: nn.Module, fetch: Fetch, device: str = "cpu") -> Iterator[None]:
    """Within: each module's parameters are fetched to the device when it is called, and are gone when it returns."""
    hooks = []
    for path, module in model.named_modules():
        own = {name: p for name, p in module.named_parameters(recurse=False) if p.is_meta}
        if own:
            enter, leave = _hooks(path, own, lambda name: fetch(name).to(device, torch.float32))
            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(path: str, own: Mapping[str, nn.Parameter], fetch: Fetch) -> tuple[Callable[..., None], Callable[..., None]]:
    def enter(module: nn.Module, args: Any) -> None:
        for name in own:
            setattr(module, name, nn.Parameter(fetch(f"{path}.{name}"), requires_grad=False))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        for name, parameter in own.items():
            setattr(module, name, parameter)
        if sum(parameter.numel() for parameter in own.values()) > LARGE:
            _trim()

    return enter, leave


def _trim() -> None:
    """Give back what lies free among the activations: the C library's heap keeps it, up to all blocks' weights."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _ours(made: Subject) -> Fetch:
    """Fetch a parameter of ours; for a head without a table in the file, the tokens'."""

    def fetch(name: str) -> Tensor:
        stored = name if name in made.types else TABLE
        return to_torch(made.read(stored), made.types[stored])

    return fetch


def _theirs(made: Subject, model: nn.Module) -> Fetch:
    """Fetch a parameter of the reference: its tensor in the source, made from ours by the mapping undone."""
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

    return fetch


def _skeleton(session: Session) -> nn.Module:
    """The reference without weights: parameters on the meta device, buffers real."""
    import transformers
    from transformers.initialization import no_init_weights

    kind = getattr(transformers, session.reference.name)
    with reference.quiet(), no_init_weights(), _meta_parameters(), torch.device(session.device):
        config = session.material.config(session.repairs)
        model: nn.Module = kind._from_config(
            config, attn_implementation=session.attention, experts_implementation="eager", dtype=torch.float32
        )
    if session.reference.deaf:
        told_lengths(model, session.reference.deaf)
    return model.eval()


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
