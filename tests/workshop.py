"""Makes tiny checkpoints and converts them, each once a session; and the way back, by the manifest alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lineage
from lineage import constants, graph, operations
from lineage.plan import step_from_json
from tests import aged, tiny
from tests.tiny import Case

CORE = ("static", "bytes", "reference", "replay", "fp64")
WITH_FP32 = (*CORE, "fp32")
"""Levels that compare bytes and results; a whole verification adds behaviour, training and bf16."""


class Workshop:
    """age: one of `aged.AGES`, "native", or "faint": native with faint tables."""

    def __init__(self, root: Path) -> None:
        self.sources, self.outputs = root / "sources", root / "outputs"
        for folder in (self.sources, self.outputs):
            folder.mkdir(parents=True, exist_ok=True)
        self.reports: dict[tuple[Path, tuple[str, ...]], Any] = {}

    def source(self, case: Case, age: str = "native") -> Path:
        if age in ("native", "faint"):
            return tiny.native(case, self.sources, faint=age == "faint")
        return aged.aged(case, age, self.sources)

    def converted(self, case: Case, age: str = "native") -> Path:
        """Converted from a copy that is gone when this returns: nothing later can lean on it."""
        source = self.source(case, age)
        output = self.outputs / source.name
        if not output.exists():
            copy = self.outputs / f"{source.name}-source"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            lineage.convert(str(copy), output, verify=False, hashes=True, allow_pickle=True)
            shutil.rmtree(copy)
        return output

    def report(self, case: Case, age: str, levels: tuple[str, ...]) -> Any:
        """The converted directory against its source."""
        output, source = self.converted(case, age), self.source(case, age)
        if (output, levels) not in self.reports:
            self.reports[output, levels] = lineage.verify(output, against=source, only=levels, allow_pickle=True)
        return self.reports[output, levels]

    def manifest(self, case: Case, age: str = "native") -> dict[str, Any]:
        return json.loads((self.converted(case, age) / "lineage.json").read_text())


def restored(directory: Path) -> dict[str, Tensor]:
    """The source's tensors, from a converted directory and its manifest alone."""
    manifest = json.loads((directory / "lineage.json").read_text())
    have, plan = aged.stored(directory), manifest["plan"]
    shapes = graph.tensors(graph.model_from_json(manifest["spec"]))
    found: dict[str, Tensor] = {}
    for entry in plan["steps"]:
        step = step_from_json(entry, shapes)
        arrays = operations.invert(step.operations, [bits(have[name]) for name in step.targets])
        dtype = have[step.targets[0]].dtype
        found |= {name: as_type(array, dtype) for name, array in zip(step.sources, arrays, strict=True)}
    found |= {name: found[of] for name, of in plan["copies"].items()}
    for drop in plan["dropped"]:
        constant = constants.CONSTANTS[drop["value"]](tuple(drop["shape"]))
        found[drop["name"]] = torch.from_numpy(np.array(constant, constants.NUMPY[drop["dtype"]]))
    return found


WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> np.ndarray:
    """The elements as whole numbers, so that equal means equal to the bit."""
    return tensor.contiguous().view(WHOLE[tensor.element_size()]).numpy()


def as_type(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).view(dtype)


def check_same_tensors(back: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    """Same names, types, shapes, bits."""
    assert back.keys() == source.keys()
    for name, tensor in source.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape), name
        assert np.array_equal(bits(back[name]), bits(tensor)), name
