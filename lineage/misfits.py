"""What does not fit between a file and a model, told in one message that names every offender."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from lineage.components import Shape
from lineage.errors import TensorMismatch
from lineage.keys import brief

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
SHOWN = 40  # offenders of one kind named in the text; the context of the error holds more


class Info(Protocol):
    """What a header says of a tensor."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Shape: ...


Header = Mapping[str, Info]


def refuse(
    header: Header, actual: Mapping[str, str], wanted: Mapping[str, Shape], extra: Collection[str],
    twice: Iterable[str], heads: Collection[str] = (),
) -> None:  # fmt: skip
    """Raise TensorMismatch if a tensor is missing, extra, twice there, or of another shape or type.

    actual: names of today -> the file's own. wanted: shapes by name. extra: what nothing explains. heads: names beside
    the backbone, which can do without them.
    """
    missing = {name: f"missing     {name}  {list(shape)}" for name, shape in wanted.items() if name not in actual}
    shape, dtype = [], []
    for name, want in wanted.items():
        if name not in actual:
            continue
        info = header[actual[name]]
        if tuple(info.shape) != want:
            turned = "  (transposed?)" if tuple(info.shape) == want[::-1] else ""
            shape.append(f"shape       {actual[name]}  {brief(list(info.shape))}, expected {list(want)}{turned}")
        elif info.dtype not in FLOATS:
            dtype.append(f"type        {actual[name]}  {info.dtype}, and no quantisation is declared; expected a float")
    near = list(wanted)
    unexpected = [
        f"unexpected  {brief(actual[name], 200)[1:-1]}  {_shape(header[actual[name]])}{_nearest(name, near, place)}"
        for place, name in enumerate(extra)
    ]
    problems = [*missing.values(), *unexpected, *shape, *dtype, *twice]
    if problems:
        fit = len(wanted) - len(missing) - len(shape) - len(dtype)
        facts = [
            line for kind in (list(missing.values()), unexpected, shape, dtype, list(twice)) for line in shown(kind)
        ]
        raise TensorMismatch(
            "the checkpoint does not fill the model",
            facts=[*facts, f"{fit} of {len(wanted)} tensors fit; nothing was written"],
            hint="a head that is not described: --drop-head converts the backbone alone"
            if problems == unexpected and set(extra) <= set(heads)
            else "re-save the checkpoint, or see what was expected: lineage show MODEL --tensors",
            context={"problems": problems[:1000], "problem_count": len(problems)},
        )


def _shape(info: Info) -> str:
    return brief(list(info.shape))


def _nearest(name: str, known: list[str], place: int) -> str:
    import difflib  # most checkpoints fit

    near = difflib.get_close_matches(name, known[:5000], n=1, cutoff=0.8) if place < 5 and len(name) < 200 else []
    return f"  (nearest known name: {near[0]})" if near else ""


def shown(lines: Iterable[str], limit: int = SHOWN) -> list[str]:
    """The first of many lines, and how many more there are."""
    every = list(lines)
    return every[:limit] + ([f"… and {len(every) - limit:,} more"] if len(every) > limit else [])
