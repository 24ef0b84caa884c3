"""Loads models: from a converted directory, or straight from a public checkpoint by the same plan."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lineage import components, graph
from lineage.checkpoint.files import open_regular
from lineage.checkpoint.safetensors import Tensor as Stored
from lineage.checkpoint.source import Access
from lineage.checkpoint.target import MANIFEST
from lineage.checkpoint.weights import Weights
from lineage.conversion import Checkpoint, open_checkpoint
from lineage.errors import UsageError
from lineage.modules.fusing import fuse
from lineage.modules.model import Model, build
from lineage.operations import Array, apply
from lineage.record import converted_weights, read_manifest

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def from_pretrained(
    model: str | Path,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype = "keep",
    device: str | torch.device = "cpu",
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    allow_pickle: bool = False,
    drop_head: bool = False,
    fused: bool = False,
) -> Model:
    """A model in eval mode, every tensor accounted for.

    model: a directory made by `convert`, or anything that `convert` takes. dtype: "keep" (as stored), "fp32", "fp64",
    "bf16", "fp16" or a torch dtype. drop_head: of a public checkpoint take the backbone alone. fused: queries, keys and
    values, and gate and up, as one product each; `fusing.part` undoes it. Weights that a file holds as the model does
    are not copied: they lie in the file, mapped, and changing them in memory does not change it. Of a public checkpoint
    such are also matrices that it holds the other way round and experts that it holds one by one, so that some are not
    contiguous (`safetensors.torch.save_model` writes them, `save_file` does not). Raises the project's errors.
    """
    if (Path(model) / MANIFEST).exists():
        loaded = _converted(Path(model))
    else:
        access = Access(revision, token, Path(cache_dir) if cache_dir else None, local_files_only)
        loaded = assembled(open_checkpoint(str(model), access, allow_pickle=allow_pickle, drop_head=drop_head))
    loaded = loaded.to(device=torch.device(device), dtype=_dtype(dtype))
    return fuse(loaded) if fused else loaded


def _dtype(name: str | torch.dtype) -> torch.dtype | None:
    if isinstance(name, torch.dtype) or name == "keep":
        return None if isinstance(name, str) else name
    if name not in DTYPES:
        raise UsageError(f"dtype {name!r} is not one of keep, {', '.join(DTYPES)}")
    return DTYPES[name]


def _converted(directory: Path) -> Model:
    manifest = read_manifest(directory)
    weights = converted_weights(directory, manifest)
    elements = _Mapped(weights)
    state = {name: to_torch(elements(name), weights[name].dtype) for name in weights}
    provenance = {key: manifest["source"][key] for key in ("origin", "revision", "model_type")}
    return _filled(graph.model_from_json(manifest["spec"]), state, {"directory": str(directory), **provenance})


def assembled(checkpoint: Checkpoint) -> Model:
    """A public checkpoint as a model, without writing anything."""
    source = checkpoint.source
    provenance = {"origin": source.origin, "revision": source.revision, "model_type": checkpoint.model_type}
    return _filled(checkpoint.plan.model, dict(tensors(checkpoint)), provenance)


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's tensors, made from the file's."""
    weights, elements = checkpoint.weights, _Mapped(checkpoint.weights)
    for step in checkpoint.plan.steps:
        made = apply(step.operations, [elements(name) for name in step.sources], step.target_shapes)
        for name, array in zip(step.targets, made, strict=True):
            yield name, to_torch(array, weights[step.sources[0]].dtype)
        if not any(map(_ready, made)):  # all were copied
            elements.forget(*step.sources)


class _Mapped:
    """The elements of tensors where they lie in their files, copied when written to; read, where they are encoded."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._files: dict[Path, tuple[mmap.mmap, Array]] = {}

    def __call__(self, name: str) -> Array:
        entry = self._weights[name]
        width = STORED[entry.dtype].itemsize if entry.dtype in STORED else 0
        if not isinstance(entry, Stored) or not entry.size or not width or entry.start % width:
            return self._weights.array(name)
        if entry.path not in self._files:
            with open_regular(entry.path) as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._files[entry.path] = mapped, np.frombuffer(mapped, np.uint8)
        bytes_N = self._files[entry.path][1][entry.start : entry.start + entry.size]
        return bytes_N.view(f"<u{width}").reshape(entry.shape)

    def forget(self, *names: str) -> None:
        """Let go of the memory that holds what was read of tensors; it is read again if need be."""
        for entry in (self._weights[name] for name in names):
            if isinstance(entry, Stored) and entry.path in self._files:
                first, end = -(-entry.start // mmap.PAGESIZE), (entry.start + entry.size) // mmap.PAGESIZE
                if first < end and hasattr(mmap, "MADV_DONTNEED"):
                    whole = self._files[entry.path][0]
                    whole.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE)


def to_torch(array: Array, dtype: str) -> torch.Tensor:
    """Raw elements as a tensor of their type; the same memory, where it may be written to and a product can read it."""
    signed = (array if _ready(array) else np.array(array, order="C")).view(f"i{array.dtype.itemsize}")
    return torch.from_numpy(signed).view(STORED[dtype])


def _ready(array: Array) -> bool:
    return array.flags.writeable and (array.flags.c_contiguous or _readable(array))


def _readable(array: Array) -> bool:
    """Whether matrices lie apart, but each in order; or one lies the other way round, and gains by it.

    With one token a product by such a matrix takes 0.8 of the time where rows are the more, 1.3 where columns are; in
    low precision ten times as long on a processor that does not know it (`Model._apply`).
    """
    if array.ndim == 3:
        return array[0].flags.c_contiguous and array.strides[0] >= array[0].nbytes
    step, wide = array.itemsize, array.itemsize > 2 and array.shape[0] >= array.shape[-1]
    return array.ndim == 2 and wide and array.strides[0] == step and array.strides[1] >= array.shape[0] * step


def _filled(spec: components.Model, state: dict[str, torch.Tensor], provenance: dict[str, Any]) -> Model:
    model = build(spec)
    model.load_state_dict(state, strict=True, assign=True)
    model.provenance = provenance
    return model
