"""Finds specs and converters: ours in `lineage.specs` and `lineage.converters`, others' through entry points.

A package outside offers a family by the entry-point groups ``lineage.specs`` and ``lineage.converters``, each entry a
module of the same form as ours. Nobody imports a spec or a converter by name.
"""

import ast
import hashlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from lineage.components import Model
from lineage.errors import ArchitectureError, UsageError
from lineage.installed import offered
from lineage.values import Value

if TYPE_CHECKING:
    from lineage.rules import Dialect  # numpy comes with the rules, and a spec alone needs neither

Found = TypeVar("Found")
FORMS = ("", "gguf")


class Family(Value):
    """A spec's function with what its file says about it. published: a size's name -> the function's arguments.

    tiny: arguments for a model small enough to try everything on.
    """

    name: str
    function: Callable[..., Model]
    year: int
    paper: str
    parent: str | None
    published: Mapping[str, Mapping[str, Any]]
    tiny: Mapping[str, Any]
    about: str


def _modules(group: str) -> Iterator[tuple[str, ModuleType]]:
    package = import_module(group)
    for info in pkgutil.iter_modules(package.__path__):
        yield info.name, import_module(f"{group}.{info.name}")
    for entry in offered(group):
        yield entry.name, entry.load()


def _own(group: str, name: str) -> ModuleType | None:
    """Our module of a name, if there is one and no other package has a say: to read one takes less than to read all."""
    name = name.replace("-", "_")
    there = name.isidentifier() and not any(offered(group)) and find_spec(f"{group}.{name}")
    return import_module(f"{group}.{name}") if there else None


def _by_name(what: str, found: Iterable[tuple[str, Found]]) -> Mapping[str, Found]:
    """Raises UsageError if two things claim one name: which of them is meant would hang on the order of packages."""
    known: dict[str, Found] = {}
    for name, value in found:
        if known.setdefault(name, value) is not value:
            raise UsageError(f"two {what} are named {name!r}", hint="uninstall the package that brings the second")
    return known


def _family(name: str, module: ModuleType) -> Family:
    about = (module.__doc__ or "").strip().splitlines()[0]
    return Family(
        name, getattr(module, name), module.YEAR, module.PAPER, module.PARENT, module.PUBLISHED, module.TINY, about
    )


@cache
def families() -> Mapping[str, Family]:
    """Every spec, by name."""
    return _by_name("specs", ((name, _family(name, module)) for name, module in _modules("lineage.specs")))


def family(name: str) -> Family:
    """The spec of a name that is known."""
    module = _own("lineage.specs", name)
    return _family(name, module) if module else families()[name]


@cache
def dialects(form: str = "") -> Mapping[str, "Dialect"]:
    """Every converter of files of one form, by the model_type that it reads."""
    from lineage.rules import Dialect

    found = [
        value for _, m in _modules("lineage.converters") for value in vars(m).values() if isinstance(value, Dialect)
    ]
    named = ((kind, dialect) for dialect in found if dialect.form == form for kind in dialect.model_types)
    return _by_name("converters", named)


@cache
def published() -> Mapping[str, tuple[Family, Mapping[str, Any]]]:
    """Every published size, by name."""
    sizes = ((size, (family, given)) for family in families().values() for size, given in family.published.items())
    return _by_name("published sizes", sizes)


def sources(dialect: "Dialect") -> dict[str, dict[str, str]]:
    """The modules that say what a model of a dialect is and how it is spelled, each with the sha256 of its text and of
    the siblings that it takes from: the versions of the tables.
    """
    known = _registered(dialect.model_types[0], dialect.form)
    homes = [_texts(m) for m in _loaded("lineage.converters") if any(one is known for one in vars(m).values())]
    spec, found = inspect.getmodule(family(dialect.spec).function), {}
    for what, texts in (("spec", _texts(spec)), ("converter", min(homes, key=len, default={}))):  # others import it
        whole = "\0".join(texts[name] for name in sorted(texts))
        found[what] = {"module": next(iter(texts), ""), "sha256": hashlib.sha256(whole.encode()).hexdigest()}
    return found


def _loaded(group: str) -> list[ModuleType]:
    """The modules of a group of which something is at hand."""
    ours = [module for name, module in sorted(sys.modules.items()) if name.startswith(f"{group}.")]
    return [*ours, *(entry.load() for entry in offered(group))]


def _texts(module: ModuleType | None) -> dict[str, str]:
    """The source of a module, and of those beside it from which it imports, by name."""
    found: dict[str, str] = {}
    pending = [module] if module else []
    while pending:
        one = pending.pop()
        found[one.__name__] = inspect.getsource(one)
        nodes = [node for node in ast.walk(ast.parse(found[one.__name__])) if isinstance(node, ast.ImportFrom)]
        beside = {
            f"{one.__name__.rpartition('.')[0]}.{node.module}" for node in nodes if node.level == 1 and node.module
        }
        pending += [import_module(name) for name in sorted(beside - found.keys())]
    return found


@cache
def named() -> Mapping[str, tuple[Family, Mapping[str, Any]]]:
    """Every published size, and every family as its defaults make it where no size has its name."""
    return {**{name: (family, {}) for name, family in families().items()}, **published()}


def spec(name: str, **arguments: Any) -> Model:
    """The architecture of a family or of one of its published sizes, with some arguments changed.

    Raises UsageError for a name or an argument that is not known, ArchitectureError for arguments that contradict each
    other.
    """
    if name not in named():
        raise unknown(name, named())
    family, given = named()[name]
    known = defaults(family)
    for odd in [argument for argument in arguments if argument not in known]:
        raise UsageError(
            f"spec {name!r} has no argument {odd!r}.{_nearest(odd, known)}", facts=[f"known  {', '.join(known)}"]
        )
    try:
        return family.function(**{**given, **arguments})
    except TypeError as error:  # a value of another kind, met before a component could refuse it
        raise UsageError(f"spec {name!r}: {error}") from error


def unknown(name: str, known: Iterable[str]) -> UsageError:
    """The refusal of a spec's name, with the nearest known one."""
    return UsageError(
        f"no spec or model {name[:80]!r}.{_nearest(name, known)}", hint="lineage families lists what is known"
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def dialect(model_type: object, architectures: object = None, form: str = "") -> "Dialect":
    """The converter for a config's model_type, in files of one form. Raises ArchitectureError if there is none."""
    if not isinstance(model_type, str):
        raise ArchitectureError(
            "config.json: no model_type"
            if model_type is None
            else f"config.json: model_type is {model_type!r}, not a name",
            hint="is this a transformers checkpoint? its config.json names its model_type",
        )
    if found := _registered(model_type, form):
        return found
    known = dialects(form)
    raise ArchitectureError(
        f"model_type {model_type[:80]!r} has no converter{f' from {form}' if form else ''}."
        + _nearest(model_type, known),
        facts=[f"known     {', '.join(sorted(known))}"],
        hint="describe it in two short files: docs/add-a-family.md",
        context={"model_type": model_type[:80], "architectures": architectures},
    )


def _registered(model_type: str, form: str) -> "Dialect | None":
    from lineage.rules import Dialect

    for one in vars(_own("lineage.converters", model_type) or object).values():  # mostly it is named as its type
        if isinstance(one, Dialect) and one.form == form and model_type in one.model_types:
            return one
    return dialects(form).get(model_type)


def summary(name: str | None = None) -> list[dict[str, Any]]:
    """What is known of each family, or of one, oldest first."""
    return [
        {
            "name": family.name,
            "year": family.year,
            "paper": family.paper,
            "parent": family.parent,
            "about": family.about,
            "sizes": list(family.published),
            "model_types": [
                kind + f" ({form})" * bool(form)
                for form in FORMS
                for kind, dialect in dialects(form).items()
                if dialect.spec == family.name
            ],
        }
        for family in sorted(families().values(), key=lambda one: one.year)
        if name in (None, family.name)
    ]


def defaults(family: Family) -> dict[str, Any]:
    """Every argument of a family's function with its default; what it passes on (``**arguments``) is its parent's."""
    parameters = inspect.signature(family.function).parameters.values()
    passed_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
    inherited = defaults(families()[str(family.parent)]) if passed_on and family.parent in families() else {}
    return inherited | {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
