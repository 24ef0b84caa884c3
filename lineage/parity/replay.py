"""Local replay: each component, fed the reference's own recorded input, must give the reference's output.

An ordinary comparison of activations flags everything behind the first fault. Fed the reference's input, a component
is judged by itself: those that fail are at fault, those that only pass an error on are not.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from lineage.modules.context import Context
from lineage.parity.activations import Node, Pair, Recorder, find, kept, record, tensor_of, their_value, upright
from lineage.parity.figures import distance
from lineage.parity.probes import Probe
from lineage.values import Value

MEMORY = "encoder"  # the path of what cross attention reads


class Trace(Value):
    """Every pair compared, in the order of execution. guilty: those at fault by themselves."""

    nodes: tuple[Node, ...]
    guilty: tuple[Node, ...]
    first: Node | None
    unpaired: tuple[str, ...]


def trace(
    ours: nn.Module,
    theirs: nn.Module,
    mapping: Sequence[Pair],
    probe: Probe,
    their_arguments: Mapping[str, Tensor],
    limit: float,
    our_arguments: Mapping[str, Tensor] | Sequence[Tensor] = (),
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Trace:
    """Run both sides once, the reference first, compare every pair in the order of our run, and replay every component.

    limit: on the relative distance. our_arguments: by name or place, where they are not the probe's on the CPU.
    within: what the reference is run in.
    """
    with within():
        reference = record(theirs, their_arguments)
    own = record(ours, our_arguments or probe.arguments())
    prefix = getattr(theirs, "base_model_prefix", "")
    values = {
        pair.ours: upright(value, mine.output)
        for pair in mapping
        if (value := their_value(pair, reference, prefix)) is not None
        and (mine := own.calls.get(pair.ours)) is not None
        and mine.output is not None
    }
    places = {path: place for place, path in enumerate(own.order)}
    mapping = sorted(mapping, key=lambda pair: places.get(pair.ours, len(places)))
    nodes = []
    for pair in mapping:
        if pair.ours not in values:
            continue
        whole = values[pair.ours]
        want = kept(whole, probe)
        channels = slice(want.shape[-1] if pair.at == "logits" else None)  # a router of ours gives more
        have = kept(_broad(own.calls[pair.ours].output[..., channels], whole), probe)  # type: ignore[index]
        fed = () if pair.given else _fed(pair, values, reference, prefix)
        module = ours.get_submodule(pair.ours)
        again = _replay(module, own, pair.ours, fed, values.get(MEMORY)) if fed else have if pair.given else None
        local = distance(kept(_broad(again[..., channels], whole), probe), want) if again is not None else None
        nodes.append(Node(pair.ours, pair.theirs, distance(have, want), local))
    wrong = [node for node in nodes if node.local is not None and not node.local <= limit]
    return Trace(
        tuple(nodes),
        tuple(node for node in wrong if not any(_inside(other.ours, node.ours) for other in wrong)),
        next((node for node in nodes if not node.inherited <= limit), None),
        tuple(pair.ours for pair in mapping if pair.ours not in {node.ours for node in nodes}),
    )


def _attending(context: Context, memory_BSD: Tensor | None) -> Context:
    if context.memory is None or memory_BSD is None:
        return context
    return replace(context, memory=replace(context.memory, hidden_BSD=memory_BSD))


def _broad(value: Tensor, like: Tensor) -> Tensor:
    """What is the same for every row, for as many rows as the other has."""
    same = value.dim() == like.dim() and value.shape[:1] == (1,) and value.shape[1:] == like.shape[1:]
    return value.expand_as(like) if same else value


def _inside(path: str, whole: str) -> bool:
    return path.startswith(whole + ".") if whole else path != ""


def _fed(pair: Pair, values: Mapping[str, Tensor], reference: Recorder, prefix: str) -> tuple[Tensor, ...]:
    """The reference's values for a component's inputs; empty if it has none."""
    if pair.feeds:
        return tuple(values[feed] for feed in pair.feeds) if all(feed in values for feed in pair.feeds) else ()
    calls = (find(reference, entry, prefix) for entry in pair.entry or (pair.theirs,))
    call = next((call for call in calls if call), None)
    return tuple(pair.turned(value) for value in call.inputs[:1]) if call else ()


def _replay(
    module: nn.Module, own: Recorder, path: str, fed: Iterable[Tensor], memory_BSD: Tensor | None
) -> Tensor | None:
    """Our component on other inputs: its first tensors are replaced, all else stays as in our own run.

    memory_BSD: what the encoder gave, for those that attend to it.
    """
    args, kwargs = own.calls[path].arguments
    waiting = list(fed)
    given = [upright(waiting.pop(0), arg) if waiting and isinstance(arg, Tensor) else arg for arg in args]
    given = [_attending(arg, memory_BSD) if isinstance(arg, Context) else arg for arg in given]
    with torch.no_grad():
        output = module(*given, **kwargs)
    return tensor_of(output)
