"""A dialect: how one public format spells one architecture. Two tables, both reversible: config keys, tensor names.

Templates are typed: ``{i}`` a layer's number, ``{e}`` an expert's, ``{p}`` ``weight`` or ``bias``, ``{base}`` the
optional prefix of the dialect. The model says which indices there are; the rules say what the file must then hold.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

from lineage.components import Model
from lineage.config import Entry
from lineage.operations import Alternate, Operation, Operations, PerHead, Row, Split, Stack, Transpose, Unfold
from lineage.paired import Paired
from lineage.values import Value

__all__ = [
    "Alternate",
    "Copy",
    "Dialect",
    "Drop",
    "Fault",
    "Find",
    "Operation",
    "Paired",
    "PerHead",
    "Reference",
    "Row",
    "Rule",
    "Split",
    "Stack",
    "Tap",
    "Transpose",
    "Unfold",
    "fill",
    "match",
]

Binding = dict[str, str]

_HOLES = {"i": r"(?P<i>0|[1-9][0-9]{0,5})", "e": r"(?P<e>0|[1-9][0-9]{0,5})", "p": r"(?P<p>weight|bias)"}


@lru_cache(maxsize=65536)
def _pattern(template: str, base: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    seen: set[str] = set()
    text = ""
    for place, part in enumerate(parts):
        if place % 2 == 0:
            text += re.escape(part)
        elif part == "base":
            text += re.escape(base)
        else:
            text += f"(?P={part})" if part in seen else _HOLES[part]
            seen.add(part)
    return re.compile(text)


def match(template: str, name: str, base: str = "") -> Binding | None:
    """What the template's holes hold in this name; None if the name is not of this form."""
    found = _pattern(template, base).fullmatch(name)
    return found.groupdict() if found else None


def holes(template: str) -> list[str]:
    """The names of a template's holes."""
    return re.findall(r"{(.*?)}", template)


def fill(template: str, binding: Mapping[str, str], base: str = "") -> str:
    """The name that a template makes with these values in its holes."""
    return template.format(base=base, **binding)


class Rule(Value):
    """Tensors of a file <-> tensors of the model: names by template, contents by invertible operations.

    where: whether a model has its tensors under these names, if not every model has.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operations: Operations
    where: Callable[[Model], bool] | None

    def __init__(
        self,
        source: str | tuple[str, ...],
        target: str | tuple[str, ...],
        *operations: Operation,
        where: Callable[[Model], bool] | None = None,
    ) -> None:
        object.__setattr__(self, "sources", (source,) if isinstance(source, str) else source)
        object.__setattr__(self, "targets", (target,) if isinstance(target, str) else target)
        object.__setattr__(self, "operations", operations)
        object.__setattr__(self, "where", where)


class Drop(Value):
    """A tensor that files carry and the model does not need. why: the reason. value: the constant that it should be.

    A tensor that is that constant is restored when the original is written back; any other value is lost, and said so.
    beyond: of layers after the model's last: a tensor that such a layer has beside it, and no layer of the model.
    """

    source: str
    why: str
    value: str | None
    beyond: str | None = None

    def fits(self, binding: Binding, layers: int, names: Collection[str], base: str) -> bool:
        """Whether a tensor that the template matched is in a layer that it is about. names: of the whole file."""
        within = int(binding.get("i", 0)) < layers
        return within if self.beyond is None else not within and fill(self.beyond, binding, base) in names


class Copy(Value):
    """A second copy of another tensor of the file: present in some files, absent in others.

    argument: the spec's flag that says the two are one; a copy that differs turns it off. None: a copy that differs
    is refused. key: of the config, which says so where there is no file; with one, the file alone decides.
    """

    source: str
    of: str
    argument: str | None = None
    key: str | None = None


class Find(Value):
    """An argument that the checkpoint decides: true if this tensor is in the file; absent: if it is not.

    source: its name, or the beginning of it; of several names, any. unless: a constant; a tensor that is it does not
    count. usual: what it is where only a config is known, unless a class of the reference has such a part.
    """

    source: str | tuple[str, ...]
    argument: str
    absent: bool = False
    unless: str | None = None
    usual: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source


class Tap(Value):
    """The same activation under both names: a module of the reference <-> a component's path.

    at: whether it is the module's "output" or its "input"; "nothing" where the two hold one tensor and do not compute
    the same; "logits" where the reference's router gives its scores alone, or last; "first" of several outputs. entry:
    the module whose input is the component's, if not the source itself; of several, the first that there is. feeds: the
    component's inputs as other paths of the model, where no one module has them.
    heads_first: the reference has [B, heads, T, …] where we have [B, T, heads, …]. given: it follows from the call
    alone, so that what our own run gives is compared. where: which models it is for, if not all.
    Modules with tensors of their own need no Tap unless one of these is special: the rules pair them.
    """

    source: str
    target: str
    at: str = "output"
    entry: str | tuple[str, ...] | None = None
    feeds: tuple[str, ...] = ()
    heads_first: bool = False
    given: bool = False
    where: Callable[[Model], bool] | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        return (self.entry,) if isinstance(self.entry, str) else self.entry or ()


class Reference(Value):
    """The reference's class for a model with these parts, and where it puts the outputs (ours -> its own).

    Several of its own are stacked along a new last axis. deaf: a module of it that should know how long a call is and
    is not told; it is, before we are compared with it. where: which models with these parts it is for, if not all.
    tells: the beginning of tensors that only its files have: there, `decides` gives arguments of the spec; of several
    such classes that one is meant that the config's architectures name. settings: keys that its config must have.

    module: where the class is. build: what makes it, if it is not transformers': a function of that module and of what
    config.json says. It returns a torch module that is called as transformers' are (token ids and masks by keyword,
    outputs by attribute) and takes the file's tensors under the file's names.
    """

    name: str
    parts: tuple[str, ...]
    outputs: Mapping[str, str | tuple[str, ...]]
    deaf: str = ""
    where: Callable[[Model], bool] | None = None
    tells: str = ""
    decides: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    module: str = "transformers"
    build: Callable[[Any, Mapping[str, Any]], Any] | None = None

    @property
    def library(self) -> str:
        """The package that it is of."""
        return self.module.partition(".")[0]

    def fits(self, model: Model) -> bool:
        """Whether it is for this model: asks for no part that is missing."""
        parts = all(getattr(model, part) is not None for part in self.parts)
        return parts and (self.where is None or self.where(model))


class Fault(Value):
    """One of the reference's ways to attend, "eager" or "sdpa", is wrong where a component of this kind stands.

    We are compared with the other, and the report says how far the two are apart. why: what the wrong one does.
    """

    attention: str
    component: str
    why: str


class Dialect(Value, kw_only=True):
    """One public spelling of one spec. base prefixes are tried in order; spellings: old endings -> today's.

    memory: where the reference holds tensors under other names than its files do. form: of the files that are so
    spelled: "" has config.json beside the tensors, "gguf" both in one. faults: known ones of the reference.
    """

    spec: str
    model_types: tuple[str, ...]
    config: tuple[Entry, ...]
    tensors: tuple[Rule, ...]
    references: tuple[Reference, ...]
    prefixes: tuple[str, ...] = ("",)
    fixed: Mapping[str, object] = field(default_factory=dict)
    finds: tuple[Find, ...] = ()
    copies: tuple[Copy, ...] = ()
    drops: tuple[Drop, ...] = ()
    taps: tuple[Tap, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    memory: tuple[Rule, ...] = ()
    faults: tuple[Fault, ...] = ()
    form: str = ""

    @property
    def heads(self) -> list[str]:
        """The arguments that say which heads are beside the backbone, where a checkpoint may have none."""
        found = [find for find in self.finds if hasattr(Model, find.argument)]
        return [find.argument for find in found if not find.sources[0].startswith("{base}")]

    def base(self, names: Iterable[str]) -> str:
        """The prefix that this file uses: the first under which a tensor is found that is one of a kind."""
        present = set(names)
        once = [source for rule in self.tensors for source in rule.sources if holes(source) == ["base"]]
        found = [prefix for prefix in self.prefixes if any(fill(source, {}, prefix) in present for source in once)]
        return (found or list(self.prefixes))[0]

    def stored(self, names: Iterable[str], base: str) -> "Dialect":
        """The dialect of a file with these names: if some are names that only memory has, memory's rules come first."""
        usual = {source for rule in self.tensors for source in rule.sources}
        held = [source for rule in self.memory for source in rule.sources if source not in usual]
        if any(match(source, name, base) for name in names for source in held):
            return replace(self, tensors=(*self.memory, *self.tensors))
        return self

    def suited(self, model: Model) -> "Dialect":
        """The dialect with those taps that are for this model."""
        return replace(self, taps=tuple(tap for tap in self.taps if tap.where is None or tap.where(model)))

    def today(self, name: str) -> str:
        """A tensor's name in the dialect's present spelling."""
        for old, new in self.spellings.items():
            if name.endswith(old):
                return name[: -len(old)] + new
        return name
