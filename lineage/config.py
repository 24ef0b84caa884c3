"""config.json <-> a spec's arguments: each key is understood, known to change nothing, or refused.

A table lists every key that the reference's config class knows. Most carry an argument each (Size, Index, Number, Flag,
Choice; the kinds further down are for keys that say several things, or one thing together); `Only` allows one value;
`Inert` has no say in the result, and tells why. Keys that the reference does not know either cannot move its logits:
they are listed, and refused only when asked to be strict.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lineage.coded_keys import After as After
from lineage.coded_keys import Coded as Coded
from lineage.coded_keys import Counted as Counted
from lineage.coded_keys import Parts as Parts
from lineage.coded_keys import Steps as Steps
from lineage.errors import ArchitectureError
from lineage.further_keys import HeatedKeys as HeatedKeys
from lineage.further_keys import Labels as Labels
from lineage.further_keys import Numbers as Numbers
from lineage.further_keys import PairedKeys as PairedKeys
from lineage.further_keys import Present as Present
from lineage.further_keys import Same as Same
from lineage.further_keys import Spare as Spare
from lineage.further_keys import ThetaWithin as ThetaWithin
from lineage.further_keys import Twin as Twin
from lineage.further_keys import Under as Under
from lineage.further_keys import UsualKeys as UsualKeys
from lineage.further_keys import Within as Within
from lineage.keys import Choice as Choice
from lineage.keys import Entry as Entry
from lineage.keys import Flag as Flag
from lineage.keys import Index as Index
from lineage.keys import Inert as Inert
from lineage.keys import Island as Island
from lineage.keys import Key as Key
from lineage.keys import Number as Number
from lineage.keys import Only as Only
from lineage.keys import Pattern as Pattern
from lineage.keys import Size as Size
from lineage.keys import brief as brief
from lineage.keys import inert as inert
from lineage.layer_keys import Toggle as Toggle
from lineage.pattern_keys import Repeats as Repeats
from lineage.rotary_keys import RotaryKeys as RotaryKeys
from lineage.rotary_keys import RotaryKinds as RotaryKinds
from lineage.storage_keys import StorageKeys as StorageKeys
from lineage.values import Value


class Reading(Value):
    """What a config says. arguments: for the spec's function. unknown: keys that no one reads.

    storage: how the file's tensors are encoded, as the config says it. named: the classes that it names.
    """

    arguments: dict[str, Any]
    unknown: tuple[str, ...]
    storage: Mapping[str, Any] | None = None
    named: tuple[str, ...] = ()


def read(
    entries: Iterable[Entry], config: Mapping[str, Any], strict: bool = False, place: str = "config.json"
) -> Reading:
    """Consume a config, or refuse it naming every key at fault at once.

    Raises ArchitectureError. strict: keys that the reference does not know are refused too. place: where it stands.
    """
    arguments: dict[str, Any] = {}
    problems: list[str] = []
    storage = None
    known = {"model_type"}
    for entry in entries:
        known.update(entry.spellings())
        found, wrong = entry.consume(config)
        arguments |= found
        problems += wrong
        storage = config.get(entry.key) if isinstance(entry, StorageKeys) else storage
    unknown = tuple(sorted(set(config) - known))
    if strict:
        problems += [f"{brief(key)} is not a key that the reference knows" for key in unknown]
    if problems:
        raise ArchitectureError(
            f"{place}: {problems[0]}" if len(problems) == 1 else f"{place}: {len(problems)} keys are not understood",
            facts=problems if len(problems) > 1 else (),
            hint="an option that is not described is refused rather than ignored; see docs/add-a-family.md",
            context={"problems": problems},
        )
    named = config.get("architectures")
    return Reading(arguments, unknown, storage, tuple(named) if isinstance(named, list) else ())


def write(entries: Iterable[Entry], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `read`: the keys of a config that says these arguments."""
    return {key: value for entry in entries for key, value in entry.write(arguments).items()}


def build(
    entries: Iterable[Entry], function: Callable[..., Any], arguments: Mapping[str, Any], place: str = "config.json"
) -> Any:
    """Call a spec's function; a contradiction between its arguments is told in the config's own keys."""
    try:
        return function(**arguments)
    except ArchitectureError as error:
        spelling = {e.argument: e.key for e in entries if isinstance(e, Key)}
        keys = [
            f"{a} is {spelling[a]} = {brief(arguments[a])}" for a in error.context.get("arguments", ()) if a in spelling
        ]
        raise ArchitectureError(
            f"{place}: {error.message}", facts=keys, context={"problems": [error.message]}
        ) from error
