"""The plan of a conversion: which tensors of the file make which tensors of the model, proved before a weight is read.

The model says which tensors it has, the rules say which names and shapes the file must then hold, and the file's
header says what it does hold. Both sides must be covered exactly: every tensor of the model is given once, every tensor
of the file is used once, is a copy of one that is, or is dropped by a rule. What does not fit is told in one message.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lineage import config, graph
from lineage.components import Model, Shape
from lineage.config import brief
from lineage.errors import ArchitectureError, FileDamaged, TensorMismatch
from lineage.misfits import Header, refuse, shown
from lineage.operations import Operations, Shapes, read_operation, spell, stages
from lineage.proofs import prove
from lineage.rules import Dialect, Find, fill, match
from lineage.values import Value

LAYERS_PER_TENSOR = 10  # at most, where some layers are one
NAMES, PER_TENSOR = 10_000, 100  # at most, to tell what is missing
HEAD = "a head, dropped as asked"


class Step(Value):
    """Some tensors of the file become some of the model. All names are the real ones."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operations: Operations
    source_shapes: Shapes
    target_shapes: Shapes


class Dropped(Value):
    """A tensor of the file that the model does not need. value: the constant that it should be."""

    name: str
    why: str
    value: str | None


class Copied(Value):
    """A tensor of the file that must equal another of the file."""

    name: str
    of: str


class Plan(Value):
    """A proved conversion. base: the prefix that the file's names have."""

    model: Model
    base: str
    steps: tuple[Step, ...]
    dropped: tuple[Dropped, ...]
    copied: tuple[Copied, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as the manifest keeps it: enough to undo it without the converter."""
        return {
            "base": self.base,
            "steps": [
                {"from": list(s.sources), "to": list(s.targets)}
                | ({"operations": [spell(o) for o in s.operations]} if s.operations else {})
                for s in self.steps
            ],
            "copies": {c.name: c.of for c in self.copied},
        }


def step_from_json(data: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Step:
    """A step of a manifest; shapes: of the model's tensors. Raises FileDamaged if it is not one that we know."""
    lists = [data.get("from"), data.get("to"), data.get("operations", [])]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        raise FileDamaged(f"plan: a step is not three lists of names: {brief(data)}")
    sources, targets, names = (tuple(names or ()) for names in lists)
    known = [read_operation(name) for name in names]
    odd = [name for name in targets if name not in shapes] + [n for n, o in zip(names, known, strict=True) if o is None]
    if odd or not targets:
        raise FileDamaged(f"plan: no such tensor or operation: {brief(odd)}", hint="was it written by a newer version?")
    operations, after = tuple(o for o in known if o is not None), tuple(shapes[name] for name in targets)
    if not prove(operations, after):
        raise FileDamaged(f"plan: {brief(names)} cannot make {brief(targets)}")
    before = stages(operations, after)[0]
    if len(sources) != len(before):
        raise FileDamaged(f"plan: {len(before)} tensors make {brief(targets)}, and {len(sources)} are named")
    return Step(sources, targets, operations, before, after)


def expected(dialect: Dialect, model: Model, base: str, most: int = sys.maxsize) -> list[Step]:
    """What the file must hold for this model, in today's spelling.

    Raises TensorMismatch if the converter has no rule for a tensor of the model, or the file must hold over `most`.
    """
    pending = graph.tensors(model)
    parts = {node.path: node.component for node in graph.walk(model)}
    steps = []
    for rule in (rule for rule in dialect.tensors if rule.where is None or rule.where(model)):
        for name in list(pending):
            binding = match(rule.targets[0], name)
            if binding is None:
                continue
            targets = tuple(fill(target, binding) for target in rule.targets)
            if not all(target in pending for target in targets):
                continue
            after = tuple(pending.pop(target) for target in targets)
            most -= after[0][0] if any("{e}" in source for source in rule.sources) else 1
            if most < 0:
                raise TensorMismatch(f"{targets[0]}: the config describes far more tensors than the file holds")
            owner = next(parts[path] for path in _above(targets[0]) if path in parts)
            operations = tuple(operation.bound(owner) for operation in rule.operations)
            before = stages(operations, after)[0]
            each = [{**binding, "e": str(e)} for e in range(len(before))]  # {e}: a name for each expert
            names = [
                fill(source, place, base)
                for source in rule.sources
                for place in (each if "{e}" in source else each[:1])
            ]
            if operations:
                steps.append(Step(tuple(names), targets, operations, before, after))
            else:
                both = zip(names, targets, after, strict=True)
                steps += [Step((name,), (target,), (), (shape,), (shape,)) for name, target, shape in both]
    if pending:
        raise TensorMismatch(
            f"the converter has no rule for {len(pending)} tensors of the model",
            facts=shown(pending),
            hint="add a Rule for them",
        )
    return steps


def _above(name: str) -> Iterator[str]:
    """The paths that a tensor may belong to, the nearest first."""
    while name:
        name = name.rpartition(".")[0]
        yield name


class Resolved(Value):
    """What config and checkpoint together say. notes: for the report. place: of the config. bare: without heads."""

    arguments: dict[str, Any]
    base: str
    notes: tuple[str, ...]
    separate: frozenset[str]
    place: str = "config.json"
    bare: bool = False


def resolve(
    dialect: Dialect,
    arguments: Mapping[str, Any],
    header: Header,
    equal: Callable[[str, str], bool],
    constant: Callable[[str, str], bool] = lambda name, value: False,
    named: Collection[str] = (),
    bare: bool = False,
) -> Resolved:
    """Let the checkpoint decide what configs leave open: which heads are there, and whether a table is shared.

    equal: whether two tensors of the file hold the same bytes. constant: whether one holds a named constant. named: the
    classes that the config names. bare: the model without its heads is wanted. Raises ArchitectureError where no such
    is described, or where nothing tells which head some tensors are of.
    """
    actual = {dialect.today(name): name for name in header}
    base = dialect.base(actual)

    def there(find: Find) -> bool:
        starts = tuple(fill(source, {}, base) for source in find.sources)
        held = (real for name, real in actual.items() if name.startswith(starts))
        return any(find.unless is None or not constant(real, find.unless) for real in held)

    found = {find.argument: there(find) != find.absent for find in dialect.finds}
    if bare and not dialect.heads:
        raise ArchitectureError(
            f"model_type {dialect.model_types[0]!r} is described with its head alone: there is no backbone without it",
            hint="leave out --drop-head",
        )
    found |= dict.fromkeys(dialect.heads if bare else (), False)
    resolved = {**dialect.fixed, **arguments, **found, **({} if bare else _told(dialect, base, actual, named))}
    notes = []
    separate = set()
    for copy in dialect.copies:
        name, of = fill(copy.source, {}, base), fill(copy.of, {}, base)
        shared = copy.argument and resolved[copy.argument] and name in actual and of in actual
        if copy.argument and shared and not equal(actual[name], actual[of]):
            resolved[copy.argument] = False
            separate.add(name)
            notes.append(f"config.json says {copy.argument}, but {name} differs from {of}: taken as a table of its own")
    return Resolved(resolved, base, tuple(notes), frozenset(separate), bare=bare)


def _told(dialect: Dialect, base: str, names: Collection[str], named: Collection[str]) -> Mapping[str, object]:
    """The arguments that follow from the class whose head the file holds."""
    fit = [r for r in dialect.references if r.tells and any(n.startswith(fill(r.tells, {}, base)) for n in names)]
    chosen = [r for r in fit if r.name in named] if len(fit) > 1 else fit
    if len(chosen) != bool(fit):
        raise ArchitectureError(
            f"config.json: architectures names {brief(list(named))}, which does not tell what {fit[0].tells}… is",
            facts=[f"known     {', '.join(r.name for r in fit)}"],
            hint="name its class there, or convert the backbone alone with --drop-head",
        )
    return chosen[0].decides if chosen else {}


def make_plan(dialect: Dialect, resolved: Resolved, header: Header) -> Plan:
    """Fit a checkpoint's header to the model, and prove it. Raises TensorMismatch naming every tensor at fault."""
    layers = max(resolved.arguments.get(stack) or 0 for stack in ("layers", "decoder_layers"))
    if layers > LAYERS_PER_TENSOR * len(header):  # so that the file bounds the work, and not what a config claims
        said = f"{resolved.place} says {layers:,} layers"
        raise TensorMismatch(f"{said}, and the file holds {len(header):,} tensors in all")
    model = config.build(dialect.config, _function(dialect), resolved.arguments, resolved.place)
    actual = {dialect.today(name): name for name in header}
    twice = [f"two spellings of {dialect.today(n)}: {n}" for n in header if actual[dialect.today(n)] != n]
    steps = expected(dialect.stored(actual, resolved.base), model, resolved.base, NAMES + PER_TENSOR * len(header))
    steps, pairs = _standing_in(dialect, resolved, steps, actual)
    for step in steps:
        if len({header[actual[name]].dtype for name in step.sources if name in actual}) > 1:  # to be one in the model
            twice.append(f"type        {step.sources[0]} and others: of several types, and {step.targets[0]} has one")
    wanted = {name: shape for step in steps for name, shape in zip(step.sources, step.source_shapes, strict=True)}
    rest = [name for name in actual if name not in wanted]
    heads = dict.fromkeys(_beside(rest, wanted, resolved.base))
    dropped = [Dropped(name, HEAD, None) for name in heads if resolved.bare]
    rest = [name for name in rest if not resolved.bare or name not in heads]
    copied = {name: pairs[name] for name in rest if pairs.get(name) in wanted}
    dropped += [d for name in rest if name not in copied and (d := _drop(dialect, name, resolved.base, model, actual))]
    explained = copied.keys() | {d.name for d in dropped}
    extra = [name for name in rest if name not in explained]
    refuse(header, actual, wanted, extra, twice, heads if dialect.heads else ())
    return Plan(
        model,
        resolved.base,
        tuple(replace(step, sources=tuple(actual[name] for name in step.sources)) for step in steps),
        tuple(replace(d, name=actual[d.name]) for d in dropped),
        tuple(Copied(actual[name], actual[of]) for name, of in copied.items()),
    )


def _beside(names: Collection[str], wanted: Collection[str], base: str) -> list[str]:
    """Those of the names that lie in no part of the backbone, neither under its prefix nor without."""
    parts = {name.removeprefix(base).partition(".")[0] for name in wanted if name.startswith(base)}
    without = [name for name in names if not (base and name.startswith(base))]
    return [name for name in without if name.partition(".")[0] not in parts]


def _function(dialect: Dialect) -> Callable[..., Model]:
    from lineage.catalog import family  # the catalog knows specs and converters, and neither knows it

    return family(dialect.spec).function


def _standing_in(
    dialect: Dialect, resolved: Resolved, steps: list[Step], actual: Mapping[str, str]
) -> tuple[list[Step], dict[str, str]]:
    """The steps, with a shared tensor that the file lacks read from its copy; and each copy with what it repeats."""
    given = [(fill(copy.source, {}, resolved.base), fill(copy.of, {}, resolved.base)) for copy in dialect.copies]
    wanted = {name for step in steps for name in step.sources}
    pairs = {name: of for name, of in given if of in wanted}
    lent: dict[str, str] = {}
    for name, of in pairs.items():
        if of not in actual and name in actual and name not in wanted:
            lent.setdefault(of, name)
    steps = [replace(step, sources=tuple(lent.get(name, name) for name in step.sources)) for step in steps]
    return steps, {name: lent.get(of, of) for name, of in pairs.items() if name not in lent.values()}


def _drop(dialect: Dialect, name: str, base: str, model: Model, names: Mapping[str, str]) -> Dropped | None:
    for rule in dialect.drops:
        binding = match(rule.source, name, base)
        if binding is not None and rule.fits(binding, _deepest(model), names, base):
            return Dropped(name, rule.why, rule.value)
    return None


def _deepest(model: Model) -> int:
    return max(len(stack.depth) for stack in (model, model.encoder) if stack)


def unproved(plan: Plan) -> list[str]:
    """The steps that are not a bijection of elements (none, unless an operation is at fault)."""
    return [
        ", ".join(step.sources)
        for step in plan.steps
        if step.operations and not prove(step.operations, step.target_shapes)
    ]


def elements(plan: Plan) -> int:
    """How many numbers the plan moves."""
    return sum(math.prod(shape) for step in plan.steps for shape in step.target_shapes)
