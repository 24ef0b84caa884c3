"""Golden results: what a model gave once, small enough for a repository, checked without transformers or a network.

A safetensors file: for each probe its tokens, and for each position of each result the sixteen largest entries with
their places, the logarithm of the sum of the exponentials of all, and a sum of all with signs, which any other entry
would move. The header holds the record of how it was made.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lineage.errors import FileDamaged, UsageError
from lineage.modules.loading import from_pretrained
from lineage.modules.model import Model
from lineage.parity.device import find, strict
from lineage.parity.probes import Probe, default_probes
from lineage.parity.report import Level, Report, passed
from lineage.parity.verification import conditions
from lineage.values import Value

SCHEMA = "lineage.golden/1"
TOP = 16
TOLERANCE = 2e-5  # times max(1, std of the result): an honest change of machine stays below, see levels.FP32_LIMIT
OUTPUTS = ("logits", "hidden", "pooled", "next_sentence", "scores")


class Sketch(Value):
    """What is kept of one result [.., V]: the largest entries, their places, log Σ exp, Σ ± / √V, the spread of all."""

    values: Tensor
    places: Tensor
    total: Tensor
    signed: Tensor
    spread: Tensor


def sketch(result: Tensor) -> Sketch:
    """The small form of a result."""
    result, wide = result.float(), result.shape[-1]
    top = result.topk(min(TOP, wide), dim=-1)
    signs_V = torch.arange(wide, dtype=torch.float64).cos().sign()  # as good as random, and the same everywhere
    signed = (result.double() * signs_V).sum(-1) / wide**0.5
    return Sketch(
        top.values, top.indices.int(), result.logsumexp(-1), signed.float(), result.std(correction=0).reshape(1)
    )


def save_golden(
    model: Model | str | Path, file: str | Path, probes: list[Probe] | None = None, device: str = "cpu"
) -> Path:
    """Run a model in fp32, where it is or, loaded, on the device, and write its golden file. Returns the path."""
    from safetensors.torch import save

    loaded = _loaded(model, device)
    tensors: dict[str, Tensor] = {}
    for probe in probes or default_probes(loaded.spec):
        tensors |= {f"{probe.name}/{name}": value for name, value in probe.arguments().items()}
        for output, result in _results(loaded, probe):
            kept = sketch(result)
            tensors |= {f"{probe.name}/{output}/{name}": value.contiguous() for name, value in vars(kept).items()}
    record = {"schema": SCHEMA, "source": loaded.provenance, "conditions": conditions(_device(loaded))}
    path = Path(file)
    partial = path.with_name(f".{path.name}.new")
    partial.write_bytes(save(tensors, metadata={"lineage": json.dumps(record, default=str)}))
    partial.replace(path)
    return path


def check_golden(model: Model | str | Path, file: str | Path, device: str = "cpu") -> Report:
    """Compare what a model gives in fp32 with a golden file. Raises FileDamaged if it is not one."""
    loaded, path = _loaded(model, device), Path(file)
    record, tensors = _read(path)
    levels = []
    for name in dict.fromkeys(key.split("/")[0] for key in tensors):
        given = {
            key.split("/")[1]: value
            for key, value in tensors.items()
            if key.count("/") == 1 and key.startswith(name + "/")
        }
        keep = given.get("attention_mask")
        probe = Probe(name, given["input_ids"], None if keep is None else keep.bool(), given.get("token_type_ids"))
        for output, result in _results(loaded, probe):
            levels.append(_compare(f"{name}/{output}", sketch(result), tensors, probe))
    made = record.get("conditions", {})
    note = (
        f"golden file made with lineage {made.get('lineage')}, torch {made.get('torch')}, {made.get('threads')} threads"
    )
    name = str(loaded.provenance.get("directory", "the model"))
    found = conditions(_device(loaded))
    where = [] if found["device"] == "cpu" else [f"run on {found['device']}"]
    return Report(name, str(path), tuple(levels), found, notes=(note, *where))


def _loaded(model: Model | str | Path, device: str) -> Model:
    return model.float() if isinstance(model, Model) else from_pretrained(model, dtype="fp32", device=find(device))


def _device(model: Model) -> str:
    return str(next(model.parameters()).device)


def _results(model: Model, probe: Probe) -> Iterator[tuple[str, Tensor]]:
    with torch.no_grad(), strict(_device(model)):
        outputs = model(**probe.arguments(_device(model)))
    found = ((name, getattr(outputs, name)) for name in OUTPUTS)
    first = "logits" if outputs.logits is not None else "hidden"
    yield from ((name, value.cpu()) for name, value in found if value is not None and name in (first, *OUTPUTS[2:]))


def _read(path: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UsageError(
            f"no golden file {path}", hint="make it with lineage verify --save-golden, or pytest --update-golden"
        )
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {}).get("lineage", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, ValueError) as error:
        raise FileDamaged(f"{path}: not a golden file ({str(error)[:80]})") from None
    if record.get("schema") != SCHEMA:
        raise FileDamaged(f"{path}: schema is not {SCHEMA}")
    return record, tensors


def _compare(name: str, have: Sketch, tensors: Mapping[str, Tensor], probe: Probe) -> Level:
    try:
        want = Sketch(*(tensors[f"{name}/{part.name}"] for part in fields(Sketch)))
    except KeyError:
        return passed(name, False, "not in the golden file", ["the model has another kind of result"])
    keep = probe.keep_BT if probe.keep_BT is not None and want.total.shape == probe.keep_BT.shape else ...
    if have.values.shape != want.values.shape:
        return passed(name, False, f"{list(have.values.shape)} values, {list(want.values.shape)} in the golden file")
    gap = max(_gap(getattr(have, part)[keep], getattr(want, part)[keep]) for part in ("values", "total", "signed"))
    limit = TOLERANCE * max(1.0, want.spread.item())
    top1 = (have.places[keep][..., 0] == want.places[keep][..., 0]).float().mean().item()
    figures = ({"max_abs": gap, "limit": limit, "top1": top1},)
    return passed(
        name, gap <= limit, f"max |Δ| {gap:.1e}, limit {limit:.1e}, top-1 {top1:.1%}", figures=figures, limit=limit
    )


def _gap(have: Tensor, want: Tensor) -> float:
    gap = (have - want).abs().max().item() if want.numel() else 0.0
    return gap if gap < float("inf") else float("inf")
