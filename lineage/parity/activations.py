"""The same activations on both sides: recorded, paired along the mapping, compared, and replayed.

The rules that map weights map activations too: the module that owns ``h.3.ln_1.weight`` is the component that owns
``blocks.3.attention.norm_input.weight``, and where one tensor holds three (a fused projection), so does its output.
Taps name the pairs that own no tensor.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lineage.modules.model import Output
from lineage.operations import apply
from lineage.parity.probes import Probe
from lineage.plan import Step
from lineage.rules import Dialect, Tap, fill, match
from lineage.values import Value


class Pair(Value):
    """One activation under both names. part: which channels of a fused output, None for all.

    given: its input is what the model itself was given, so that it inherits nothing. heads_first: see `rules.Tap`.
    """

    ours: str
    theirs: str
    at: str = "output"
    entry: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    part: tuple[int, ...] | None = None
    given: bool = False
    heads_first: bool = False

    def turned(self, value: Tensor) -> Tensor:
        """A value of the reference with its axes in our order."""
        return value.transpose(1, 2) if self.heads_first else value


def pairs(dialect: Dialect, steps: Iterable[Step], base: str, paths: Sequence[str]) -> list[Pair]:
    """The mapping of activations, in the order of `paths` (our modules, as they finish).

    Of several taps of one component that is there that counts whose feeds the model has.
    """
    found: dict[str, Pair] = {}
    steps = list(steps)
    names = [target.split(".") for step in steps for target in step.targets]
    owners = {".".join(parts[:n]) for parts in names for n in range(1, len(parts))}  # a slot left empty has no tensors
    for step in steps:
        if all(operation.rows_only or type(operation).__name__ == "Transpose" for operation in step.operations):
            found |= {pair.ours: pair for pair in _owned(step)}
    for tap in dialect.taps:
        for path in paths:
            binding = match(tap.target, path)
            if binding is not None and all(fill(feed, binding) in owners for feed in tap.feeds):
                found[path] = _tapped(tap, binding, base, path)
    return [found[path] for path in paths if path in found and found[path].at != "nothing"]


def _owned(step: Step) -> Iterable[Pair]:
    """The pairs that follow from who owns the tensors of one step."""
    theirs = step.sources[0].rpartition(".")[0]
    rows = [np.arange(0) for _ in step.targets]
    moves = tuple(operation for operation in step.operations if operation.rows_only)
    if moves:
        count = sum(shape[0] for shape in step.target_shapes)
        rows = apply(moves, [np.arange(count)], tuple((shape[0],) for shape in step.target_shapes))
    for target, part in zip(step.targets, rows, strict=True):
        yield Pair(target.rpartition(".")[0], theirs, part=tuple(part.tolist()) if moves else None)


def _tapped(tap: Tap, binding: Mapping[str, str], base: str, path: str) -> Pair:
    def full(name: str) -> str:
        return fill(name, binding, base)

    feeds = tuple(full(feed) for feed in tap.feeds)
    entries = tuple(map(full, tap.entries))
    return Pair(path, full(tap.source), tap.at, entries, feeds, given=tap.given, heads_first=tap.heads_first)


@dataclass
class Call:
    """One call of a module: its tensors in and out, and our own module's arguments. several: all of those out."""

    inputs: tuple[Tensor, ...]
    output: Tensor | None
    several: tuple[Tensor | None, ...]
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


class Recorder:
    """Records every call of every module of a model while it is open. order: paths as they finished."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: dict[str, Call] = {}
        self.order: list[str] = []
        self._paths: dict[int, list[str]] = defaultdict(list)
        self._modules = {id(module): module for _, module in model.named_modules()}
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths[id(module)].append(path)

    def __enter__(self) -> "Recorder":
        self._hooks = [
            module.register_forward_hook(self._record, with_kwargs=True) for module in self._modules.values()
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _record(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        waiting = self._paths[id(module)]
        path = next(
            (path for path in waiting if path not in self.calls), waiting[0]
        )  # a shared module is called in turn
        tensors = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        value = tensor_of(output)  # a copy: some code clips or sums in place what a module gave
        value = None if value is None else value.clone()
        several = output if isinstance(output, tuple) and all(isinstance(one, Tensor) for one in output) else (value,)
        self.calls[path] = Call(tensors, value, several, (args, kwargs))
        self.order.append(path)


def record(model: nn.Module, arguments: Mapping[str, Tensor] | Sequence[Tensor]) -> Recorder:
    """Run a model once, on arguments by name or by place, and keep what passed through every module, where it is."""
    recorder = Recorder(model)
    with torch.no_grad(), recorder:
        model(**arguments) if isinstance(arguments, Mapping) else model(*arguments)
    return recorder


def tensor_of(output: Any) -> Tensor | None:
    """What of an output is compared: itself, a record's logits or hidden states, the first tensor of several.

    Tensors that differ in their last axis alone are one result (a router's logits and the weights of those chosen: in
    the order of the numbers that follow them, since the order in which they were chosen says nothing).
    """
    if isinstance(output, Output):
        found = (value for value in (output.logits, output.scores) if value is not None)
        return next(found, output.hidden)
    several = isinstance(output, tuple) and all(isinstance(value, Tensor) for value in output)
    if several and len({value.shape[:-1] for value in output}) == 1:
        return torch.cat([*_sorted(output)] or [*output], -1)
    values = output if isinstance(output, tuple | list) else output.values() if isinstance(output, dict) else [output]
    return next((value for value in values if isinstance(value, Tensor)), None)


def _sorted(values: Sequence[Tensor]) -> Iterator[Tensor]:
    """Those that are no whole numbers; what whole numbers of its shape follow, in their order."""
    for value, after in zip_longest(values, values[1:]):
        if value.is_floating_point():
            numbers = after is not None and not after.is_floating_point() and after.shape == value.shape
            yield value.gather(-1, after.argsort(-1)) if numbers else value


def their_value(pair: Pair, theirs: Recorder, prefix: str) -> Tensor | None:
    """The reference's value of a pair, cut as ours is; None if the reference has no such module."""
    call = find(theirs, pair.theirs, prefix)
    if call is None:
        return None
    values = {"output": call.output, "logits": call.several[-1], "first": call.several[0]}
    value = values.get(pair.at, next(iter(call.inputs), None))
    if value is None or pair.part is None:
        return value if value is None else pair.turned(value)
    return value[..., list(pair.part)]


def find(recorder: Recorder, path: str, prefix: str) -> Call | None:
    """A call by the path in the file's spelling, with or without the class's own prefix."""
    return next((recorder.calls[name] for name in spellings(path, prefix) if name in recorder.calls), None)


def spellings(path: str, prefix: str) -> tuple[str, str, str]:
    """A path in the file's spelling as the reference may have it."""
    return path, f"{prefix}.{path}", path.removeprefix(f"{prefix}.")


class Node(Value):
    """One pair compared. inherited: our own run against the reference's. local: fed the reference's own input."""

    ours: str
    theirs: str
    inherited: float
    local: float | None

    def worse(self, other: "Node | None") -> "Node":
        """The same pair in two runs: the larger of each figure."""
        if other is None:
            return self
        local = [figure for figure in (self.local, other.local) if figure is not None]
        return replace(self, inherited=max(self.inherited, other.inherited), local=max(local, default=None))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def kept(value: Tensor, probe: Probe) -> Tensor:
    """The positions that count, of the source or of the target; a value without them whole. On the CPU."""
    value = value.cpu()
    for keep in (probe.keep_BT, probe.source_keep_BS):
        if keep is not None and value.shape[: keep.dim()] == keep.shape:
            return value[keep]
        if keep is not None and value.shape[0] == keep.numel():
            return value[keep.flatten()]
    return value


def upright(value: Tensor, like: Tensor) -> Tensor:
    """A value in the arrangement of ours: its first two axes turned, its axes before the last joined or parted.

    Of pairs of tokens, what the reference has last, the heads, comes first.
    """
    if value.shape == like.shape or value.dim() < 2:
        return value
    if value.dim() == 3 and value.permute(2, 0, 1)[None].shape == like.shape:
        return value.permute(2, 0, 1)[None]
    if value.dim() == like.dim() and value.transpose(0, 1).shape[:2] == like.shape[:2]:
        return value.transpose(0, 1)
    same = like.dim() > 1 and value.shape[-1] == like.shape[-1] and value.numel() == like.numel()
    return value.reshape(like.shape) if same else value
