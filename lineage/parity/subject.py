"""What is verified: a model of ours with the mapping that made it, from a directory, a checkpoint or a module."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lineage import catalog, graph
from lineage import components as c
from lineage.checkpoint.encoded import Encoded
from lineage.checkpoint.gguf import SUFFIX
from lineage.checkpoint.source import Access
from lineage.checkpoint.target import MANIFEST
from lineage.checkpoint.weights import Weights
from lineage.checkpoint.writer import digest_of
from lineage.conversion import Checkpoint, open_checkpoint
from lineage.errors import UsageError
from lineage.modules.fusing import part
from lineage.modules.loading import assembled, from_pretrained, to_torch
from lineage.modules.model import Model
from lineage.operations import Array, apply, invert
from lineage.parity import reference
from lineage.plan import Step, expected, step_from_json
from lineage.record import cast_text, converted_weights, read_manifest
from lineage.rules import Dialect
from lineage.values import Value

Read = Callable[[str], Array]


class Subject(Value):
    """A model and where its tensors came from.

    make: the model in a dtype. read: one of its stored tensors. types: their dtypes. source_digests: sha256 of the
    source's tensors; own_digests: of ours, as recorded. dropped: what the mapping leaves out, and why. cast: what was
    done to the numbers of the source, in words, if anything.
    """

    name: str
    spec: c.Model
    dialect: Dialect
    base: str
    steps: tuple[Step, ...]
    copies: Mapping[str, str]
    dropped: Mapping[str, str]
    read: Read
    types: Mapping[str, str]
    source_digests: Mapping[str, str]
    own_digests: Mapping[str, str]
    make: Callable[[torch.dtype], Model]
    material: Callable[[], contextlib.AbstractContextManager[reference.Material]]
    cast: str = ""

    @cached_property
    def memory(self) -> tuple[Step, ...]:
        """The mapping as the reference holds the tensors in memory, in today's names."""
        dialect = replace(self.dialect, tensors=(*self.dialect.memory, *self.dialect.tensors))
        return tuple(expected(dialect, self.spec, self.base))

    def undone(self, steps: Iterable[Step] | None = None) -> Iterator[tuple[str, Array, str]]:
        """The source's tensors, or those of other steps: ours, with the mapping undone. Name, elements, dtype."""
        for step in self.steps if steps is None else steps:
            back = invert(step.operations, [self.read(target) for target in step.targets])
            for name, array in zip(step.sources, back, strict=True):
                yield name, array, self.types[step.targets[0]]


def subject(model: str | Path | Model, access: Access, allow_pickle: bool = False, drop_head: bool = False) -> Subject:
    """Make anything that `verify` takes into a subject. Raises the project's errors. drop_head: of a checkpoint."""
    place = model.provenance.get("directory", "") if isinstance(model, Model) else model
    if drop_head and (Path(place) / MANIFEST).exists():
        raise UsageError(f"{place} is converted: its heads were kept or dropped then", hint="leave out --drop-head")
    if isinstance(model, Model):
        directory = model.provenance.get("directory")
        if directory is None:
            raise UsageError(
                "this module was not loaded from a converted directory", hint="verify the directory, or convert first"
            )
        return _converted(Path(directory), model)
    if (Path(model) / MANIFEST).exists():
        return _converted(Path(model))
    return _checkpoint(open_checkpoint(str(model), access, allow_pickle=allow_pickle, drop_head=drop_head))


def _converted(directory: Path, module: Model | None = None) -> Subject:
    manifest = read_manifest(directory)
    weights = converted_weights(directory, manifest)
    spec = graph.model_from_json(manifest["spec"])
    shapes, plan = graph.tensors(spec), manifest["plan"]
    steps = tuple(step_from_json(step, shapes) for step in plan["steps"])
    whole = next((name for name in manifest["source"]["weights"] if name.endswith(SUFFIX)), None)

    def make(dtype: torch.dtype) -> Model:
        return _as(module, dtype) if module is not None else from_pretrained(directory, dtype=dtype)

    @contextlib.contextmanager
    def material() -> Iterator[reference.Material]:
        found = reference.Material(directory / "source", lambda: _state(made, plan["copies"], made.steps))
        if whole:  # its kept keys speak for it, and its names for tensors are not the reference's
            found.gguf, found.tensors = whole, lambda: _state(made, {}, made.memory)
            found.settings = {"tie_word_embeddings": spec.head is None or spec.head.tied}
        yield found

    made = Subject(
        name=str(directory),
        spec=spec,
        dialect=catalog.dialect(manifest["source"]["model_type"], form="gguf" if whole else "").suited(spec),
        base=plan["base"],
        steps=steps,
        copies=plan["copies"],
        dropped={drop["name"]: drop["why"] for drop in plan["dropped"]},
        read=weights.array,
        types={name: entry["dtype"] for name, entry in manifest["tensors"].items()},
        source_digests=_recorded(manifest["source"]["tensors"]),
        own_digests=_recorded(manifest["tensors"]),
        make=make,
        material=material,
        cast=cast_text(manifest.get("cast")),
    )
    return made


def _as(module: Model, dtype: torch.dtype) -> Model:
    from copy import deepcopy

    return part(deepcopy(module)).to(dtype)


def _state(made: Subject, copies: Mapping[str, str], steps: Iterable[Step]) -> dict[str, Tensor]:
    state = {name: to_torch(array, dtype) for name, array, dtype in made.undone(steps)}
    return state | {name: state[of] for name, of in copies.items()}


def _checkpoint(checkpoint: Checkpoint) -> Subject:
    plan, weights = checkpoint.plan, checkpoint.weights
    places = {target: (step, place) for step in plan.steps for place, target in enumerate(step.targets)}

    def read(name: str) -> Array:
        step, place = places[name]
        return apply(step.operations, [weights.array(source) for source in step.sources], step.target_shapes)[place]

    encoded = {name: entry for name, entry in weights.items() if isinstance(entry, Encoded) and entry.dtype == "BF16"}
    uneven = [name for name, entry in encoded.items() if not entry.even]

    @contextlib.contextmanager
    def material() -> Iterator[reference.Material]:
        with reference.staged(checkpoint.source, weights) as found:
            if reference.choose(made.dialect, made.spec).build is not None:  # it reads no files: they are read for it
                found.tensors = lambda: {n: to_torch(weights.array(n), one.dtype) for n, one in weights.items()}
            told = {target for step in plan.steps if encoded.keys() & step.sources for target in step.targets}
            found.rounded = tuple(name for step in made.memory if told & set(step.targets) for name in step.sources)
            if uneven:  # the reference guesses blocks from the number of scales: an error, or other numbers
                found.tensors = lambda: _state(made, made.copies, made.steps)
                found.notes = (f"{uneven[0]}: blocks that transformers does not decode; it was given ours, decoded",)
            yield found

    made = Subject(
        name=checkpoint.source.origin,
        spec=plan.model,
        dialect=checkpoint.dialect.suited(plan.model),
        base=plan.base,
        steps=plan.steps,
        copies={copy.name: copy.of for copy in plan.copied},
        dropped={drop.name: drop.why for drop in plan.dropped},
        read=read,
        types={target: weights[step.sources[0]].dtype for target, (step, _) in places.items()},
        source_digests=_digests(weights, plan.steps),
        own_digests={},
        make=lambda dtype: assembled(checkpoint).to(dtype),
        material=material,
    )
    return made


def _recorded(tensors: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The sha256 of those tensors of a record that have one."""
    return {name: entry["sha256"] for name, entry in tensors.items() if "sha256" in entry}


def _digests(weights: Weights, steps: tuple[Step, ...]) -> dict[str, str]:
    return {name: digest_of(weights.array(name)) for step in steps for name in step.sources}
