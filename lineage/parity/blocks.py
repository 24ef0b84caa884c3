"""Verifies a checkpoint larger than memory: both sides run with one module's weights in memory at a time.

Each module's parameters are fetched from the file when it is called and let go when it returns, in the reference's
own forward as in ours. What is kept are activations of a short prompt; each component is then replayed on the
reference's input, again with its own weights alone. All in single precision, whatever the file stores.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lineage.checkpoint.source import Access
from lineage.errors import TensorMismatch
from lineage.modules.loading import to_torch
from lineage.modules.model import build
from lineage.operations import invert
from lineage.parity import levels, reference
from lineage.parity.activations import pairs
from lineage.parity.probes import Probe, tokens, usable_length
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
Fetch = Callable[[str], Tensor]


def verify_blocks(model: str | Path, *, local_files_only: bool = False, allow_pickle: bool = False) -> Report:
    """`verify` for what does not fit: bytes, then every component on the reference's own input, weights streamed."""
    made = subject(model, Access(local_files_only=local_files_only), allow_pickle)
    with made.material() as material:
        session = Session(made, material, ())
        spec = made.spec
        ours = build(spec)
        if spec.head is not None and spec.head.tied:  # the head reads it from outside its module
            ours.embed.tokens.weight = nn.Parameter(_ours(made)("embed.tokens.weight"), requires_grad=False)  # type: ignore[union-attr]
        theirs = _skeleton(session)
        paths = [path for path, _ in ours.named_modules() if path]
        mapping = pairs(made.dialect, made.memory, made.base, paths)
        length = min(LENGTH, usable_length(spec))
        probe = Probe("blocks", tokens(spec, 1, length, torch.Generator().manual_seed(5)))
        given = reference.accepted(theirs, probe.arguments())
        with streamed(ours, _ours(made)), streamed(theirs, _theirs(made, theirs)):
            found = trace(ours, theirs, mapping, probe, given, BLOCK_LIMIT)
    local = [node.local for node in found.nodes if node.local is not None]
    worst = max((node.inherited for node in found.nodes), default=float("inf"))
    summary = f"{len(local)} components, worst {max(local, default=0.0):.1e} on the reference's input"
    level = passed(
        "replay", not found.guilty and bool(local), summary, [f"carried along: {worst:.1e}"], limit=BLOCK_LIMIT
    )
    return report(session, [levels.static(made), levels.stored(made), level], [found])


@contextlib.contextmanager
def streamed(model: nn.Module, fetch: Fetch) -> Iterator[None]:
    """Within: each module's parameters are fetched when it is called, and are gone when it returns."""
    hooks = []
    for path, module in model.named_modules():
        own = {name: p for name, p in module.named_parameters(recurse=False) if p.is_meta}
        if own:
            enter, leave = _hooks(path, own, fetch)
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

    return enter, leave


def _ours(made: Subject) -> Fetch:
    return lambda name: to_torch(made.read(name), made.types[name]).float()


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
        return to_torch(back[place], made.types[step.targets[0]]).float()

    return fetch


def _skeleton(session: Session) -> nn.Module:
    """The reference without weights: parameters on the meta device, buffers real."""
    import transformers
    from transformers.initialization import no_init_weights

    kind = getattr(transformers, session.reference.name)
    with reference.quiet(), no_init_weights(), _meta_parameters():
        config = session.material.config(session.repairs)
        model: nn.Module = kind._from_config(
            config, attn_implementation=session.attention, experts_implementation="eager", dtype=torch.float32
        )
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
