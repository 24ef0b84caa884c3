"""Writes a plan's tensors as safetensors: headers first, then the data in one pass, a tensor at a time."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np

from lineage.checkpoint.safetensors import BITS
from lineage.checkpoint.weights import CHUNK, Weights
from lineage.operations import Array, apply
from lineage.plan import Plan, Step

HEADER_METADATA = {"format": "pt"}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Written:
    """files: name -> sha256; tensors, sources: a tensor's name, in our spelling and in the source's -> what it is."""

    files: dict[str, str]
    tensors: dict[str, dict[str, object]]
    sources: dict[str, dict[str, object]]


def write_weights(directory: Path, plan: Plan, weights: Weights) -> Written:
    """Write model.safetensors, or as many shards as the source had with their index."""
    shards = _shards(plan, weights)
    files: dict[str, str] = {}
    written = Written(files, {}, {})
    places: dict[str, str] = {}
    for number, steps in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        files[name] = _write_file(directory / name, steps, weights, written)
        places |= {target: name for step in steps for target in step.targets}
    if len(shards) > 1:
        total = sum(_size(step, weights) for step in plan.steps)
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2) + "\n"
        (directory / INDEX).write_text(text)
        files[INDEX] = hashlib.sha256(text.encode()).hexdigest()
    return written


def size(plan: Plan, weights: Weights) -> int:
    """How many bytes the tensors of a plan will take."""
    return sum(_size(step, weights) for step in plan.steps)


def _size(step: Step, weights: Weights) -> int:
    return sum(weights[source].size for source in step.sources)


def _shards(plan: Plan, weights: Weights) -> list[list[Step]]:
    """The steps by file: widest type first (so that all stay aligned), files of the source's size."""
    steps = sorted(plan.steps, key=lambda step: -BITS[weights[step.sources[0]].dtype])
    limit = -(-size(plan, weights) // len(weights.files))
    shards: list[list[Step]] = [[]]
    filled = 0
    for step in steps:
        if filled >= limit and len(shards) < len(weights.files):
            shards.append([])
            filled = 0
        shards[-1].append(step)
        filled += _size(step, weights)
    return shards


def _write_file(path: Path, steps: list[Step], weights: Weights, written: Written) -> str:
    entries = [
        (target, weights[step.sources[0]].dtype, shape)
        for step in steps
        for target, shape in zip(step.targets, step.target_shapes, strict=True)
    ]
    ends = list(accumulate(prod(shape) * BITS[dtype] // 8 for _, dtype, shape in entries))
    header: dict[str, object] = {"__metadata__": HEADER_METADATA}
    for (name, dtype, shape), start, end in zip(entries, [0, *ends], ends, strict=False):
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    whole = hashlib.sha256()
    with open(path, "xb", buffering=0) as file:

        def put(piece: bytes | memoryview) -> None:
            whole.update(piece)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) or 0 :]

        put(len(text).to_bytes(8, "little") + text)
        for step in steps:
            dtype = weights[step.sources[0]].dtype
            for name, shape, pieces in _contents(step, weights, written):
                digest = hashlib.sha256()
                for piece in pieces:
                    digest.update(piece)
                    put(piece)
                written.tensors[name] = {"dtype": dtype, "shape": list(shape), "sha256": digest.hexdigest()}
            if not step.operations:
                written.sources[step.sources[0]] = written.tensors[step.targets[0]]
    return whole.hexdigest()


def _contents(
    step: Step, weights: Weights, written: Written
) -> Iterator[tuple[str, tuple[int, ...], Iterator[bytes | memoryview]]]:
    """The new tensors of a step with their bytes; where the bytes stay, they are passed on a few MB at a time."""
    if not step.operations:
        yield step.targets[0], step.target_shapes[0], weights.chunks(step.sources[0])
        return
    arrays = [weights.array(source) for source in step.sources]
    for source, array in zip(step.sources, arrays, strict=True):
        written.sources[source] = {
            "dtype": weights[source].dtype, "shape": list(array.shape), "sha256": digest_of(array)
        }  # fmt: skip
    for name, shape, array in zip(
        step.targets, step.target_shapes, apply(step.operations, arrays, step.target_shapes), strict=True
    ):
        yield name, shape, _pieces(array)


def digest_of(array: Array) -> str:
    """The sha256 of an array's bytes."""
    digest = hashlib.sha256()
    for piece in _pieces(array):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(array: Array) -> Iterator[memoryview]:
    data = memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")
    yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))


def file_digests(files: Mapping[str, Path]) -> dict[str, dict[str, object]]:
    """Size and sha256 of whole files, by name."""
    found: dict[str, dict[str, object]] = {}
    for name, path in files.items():
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[name] = {"sha256": digest, "size": path.stat().st_size}
    return found
