"""The tables of config keys against transformers' own classes, so that a new release can't slip a key past us.

A class knows a key if it has a field for it, an alias, a property that can be set, or takes it from what is left over;
a model knows one if its code, or the code of masks and caches that it calls, reads it from the config.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, get_origin

import pytest
import transformers
from transformers import CONFIG_MAPPING, GenerationConfig, PretrainedConfig

from lineage import catalog, config
from lineage import components as c
from lineage.config import Entry, Key, Only, RotaryKeys, Within
from tests.published import JUDGED, keys, needed

ELSEWHERE = {
    "rope_scaling": "read by classes with rotary positions; others keep it as a note",
    "rope_theta": "the same",
    "allow_global_per_layer_attribute_access": "about per_layer_config, which is refused",
    "serialize_explicit_per_layer_config": "the same",
    "embedding_size": "lifts a check, that heads divide the width, which the specs keep",
    "classifier_dropout": "training only",
    "hidden_dropout": "training only",
    "summary_last_dropout": "training only",
    "text_config": "read of a model that has pictures too",
    "number_of_conv_states": "read for a layer_type that is refused",
}
BESIDE = {  # read by another model that stands in the same module
    "gemma3_text": {"vision_config", "image_token_id"},
}
SHARED = ("transformers.utils.generic", "transformers.utils.output_capturing")
DECODING = ("transformers.masking_utils", "transformers.cache_utils", "transformers.modeling_rope_utils")


def is_class_variable(annotation: Any) -> bool:
    return get_origin(annotation) is ClassVar or str(annotation).startswith(("ClassVar", "typing.ClassVar"))


def fields_of(kind: type) -> Iterator[str]:
    """Keys that the class lists: as fields, annotations, arguments of __init__, aliases and in its own JSON."""
    yield from (f.name for f in dataclasses.fields(kind))
    for base in kind.__mro__:
        yield from (name for name, hint in inspect.get_annotations(base).items() if not is_class_variable(hint))
    yield from (name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "args", "kwargs"))
    yield from kind.attribute_map
    yield from kind().to_dict()


def obeyed(kind: type) -> Iterator[str]:
    """Keys that it lists nowhere and obeys: properties that can be set, and what __post_init__ takes from the rest."""
    yield "attribute_map"
    for base in kind.__mro__:
        yield from (n for n, v in vars(base).items() if isinstance(v, property) and v.fset and not n.startswith("_"))
        yield from left_over(base)
    yield from GenerationConfig._get_default_generation_params()


def left_over(base: type) -> Iterator[str]:
    """What a class's own __post_init__ takes from the keys that are no fields."""
    if base in PretrainedConfig.__mro__[1:] or "__post_init__" not in vars(base):
        return
    for call in calls(textwrap.dedent(inspect.getsource(base.__post_init__))):
        if ast.unparse(call.func) in ("kwargs.pop", "kwargs.get") and isinstance(call.args[0], ast.Constant):
            yield call.args[0].value


def calls(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


@cache
def read_from_config(source: str) -> frozenset[str]:
    """Names that code asks of a config: ``self.config.NAME``, ``getattr(config, "NAME", …)``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            found.add(node.attr)
        asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        if asks and is_config(node.args[0]) and isinstance(node.args[1], ast.Constant):
            found.add(node.args[1].value)
    return frozenset(found)


def is_config(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.endswith("config")


def code_of(model_type: str) -> Iterator[str]:
    """The model's module, what wraps every model, and if this one decodes what it imports for that."""
    dialect = catalog.dialects()[model_type]
    own = without_pictures(inspect.getsource(inspect.getmodule(getattr(transformers, dialect.references[0].name))))
    decodes = isinstance(
        catalog.families()[dialect.spec].function().blocks[0].attention.body.mask, c.Causal | c.Chunked
    )
    imported = [name for name in DECODING if decodes and name.rpartition(".")[2] in own]
    yield from (own, *(inspect.getsource(importlib.import_module(name)) for name in (*SHARED, *imported)))


def without_pictures(source: str) -> str:
    """A module's code but for classes that read another config, of a tower for pictures or of what joins the two."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (
            isinstance(node, ast.ClassDef)
            and re.search("Vision|MultiModal|Convolution|ConditionalGeneration", node.name)
        )
    ]
    return ast.unparse(tree)


def table(model_type: str) -> set[str]:
    return {"model_type"} | set(spelled(catalog.dialects()[model_type].config))


def spelled(entries: tuple[Entry, ...]) -> Iterator[str]:
    """Every key, and those of objects within."""
    for entry in entries:
        yield from entry.spellings()
        if isinstance(entry, Within):
            yield from spelled(entry.entries)


@pytest.mark.parametrize("model_type", JUDGED)
def test_every_key_of_the_class_is_in_the_table(model_type: str) -> None:
    kind = CONFIG_MAPPING[model_type]
    assert set(fields_of(kind)) - table(model_type) == set()
    assert set(obeyed(kind)) - table(model_type) - set(ELSEWHERE) == set()


@pytest.mark.parametrize("model_type", JUDGED)
def test_every_key_that_the_code_reads_is_in_the_table(model_type: str) -> None:
    kind = CONFIG_MAPPING[model_type]
    found = {name for source in code_of(model_type) for name in read_from_config(source)}
    methods = {name for name in found if callable(getattr(kind, name, None)) or name.startswith("__")}
    assert len(found) > 15
    assert found - methods - table(model_type) - set(ELSEWHERE) == BESIDE.get(model_type, set())


def test_no_exception_is_idle() -> None:
    used = {name for model_type in JUDGED for name in obeyed(CONFIG_MAPPING[model_type])}
    used |= {name for model_type in JUDGED for source in code_of(model_type) for name in read_from_config(source)}
    assert set(ELSEWHERE) - used == set()


def described(model_type: str, said: dict[str, Any]) -> c.Model:
    """The model of a config: arguments that follow from others (a head's width) are told there alike or not at all."""
    dialect = catalog.dialects()[model_type]
    arguments = config.read(dialect.config, needed(dialect) | said, strict=True).arguments
    return config.build(dialect.config, catalog.families()[dialect.spec].function, {**arguments, **dialect.fixed})


@pytest.mark.parametrize("model_type", JUDGED)
def test_missing_key_means_what_the_class_takes(model_type: str) -> None:
    usual = CONFIG_MAPPING[model_type]().to_dict()
    for entry in catalog.dialects()[model_type].config:
        if isinstance(entry, Key) and not entry.quiet:
            said = {entry.key: usual[entry.key]} if entry.key in usual or entry.default is not None else {}
            assert entry.default is None or entry.absent() == entry.read(said[entry.key])
            assert described(model_type, said) == described(model_type, {}), entry.key
        elif isinstance(entry, Only) and entry.key in usual:
            assert entry.wrong(usual[entry.key]) is None
        elif isinstance(entry, RotaryKeys):
            assert entry.consume(usual) == entry.consume({})


@pytest.mark.parametrize("model_type", JUDGED)
def test_aliases_are_the_class_own(model_type: str) -> None:
    """But for older names of a field, which the class takes from what is left over."""
    kind = CONFIG_MAPPING[model_type]
    ours = {alias: key.key for key in keys(catalog.dialects()[model_type]) for alias in key.also}
    older = {alias: ours[alias] for alias in left_over(kind) if alias in ours}
    carried = {key.key for key in keys(catalog.dialects()[model_type])}
    assert ours == {alias: key for alias, key in kind.attribute_map.items() if key in carried} | older


@pytest.mark.parametrize("model_type", JUDGED)
def test_config_that_the_class_writes_is_read(model_type: str) -> None:
    assert described(model_type, CONFIG_MAPPING[model_type]().to_dict()) == described(model_type, {})


@pytest.mark.parametrize("model_type", JUDGED)
def test_config_that_we_write_is_what_the_class_holds(model_type: str) -> None:
    """But for a null of ours where the class has no such field: its code asks for it, and null is nothing there."""
    entries = catalog.dialects()[model_type].config
    written = config.write(entries, config.read(entries, {}).arguments)
    usual = CONFIG_MAPPING[model_type]().to_dict()
    held = CONFIG_MAPPING[model_type](**written).to_dict()
    assert {name: value for name, value in held.items() if name in usual or value is not None} == usual
