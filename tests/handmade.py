"""A small GPT-2 by hand, numpy and json alone: what is wrong with a file is exactly what a test did to it.

And the command line as a user meets it: `main` in this process where that is the same, `command` in one of its own.
"""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

NAMES = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("i1"): "I8"}
COMMAND = (sys.executable, "-P", "-m", "lineage")
SLOWLY = (sys.executable, str(Path(__file__).with_name("slow.py")))


def config(layers: int = 2, width: int = 8, vocab: int = 11, context: int = 6, **changes: Any) -> dict[str, Any]:
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": width, "n_head": 2,
        "vocab_size": vocab, "n_positions": context, **changes,
    }  # fmt: skip


def tensors(layers: int = 2, width: int = 8, vocab: int = 11, context: int = 6) -> dict[str, np.ndarray]:
    """No two numbers alike, so that none can be lost or doubled unseen."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocab, width), "wpe.weight": (context, width)}
    for i in range(layers):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{norm}.weight": (width,), f"h.{i}.{norm}.bias": (width,)}
        for name, before, after in (
            ("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width),
        ):  # fmt: skip
            shapes |= {f"h.{i}.{name}.weight": (before, after), f"h.{i}.{name}.bias": (after,)}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(np.arange(1, ends[-1] + 1, dtype="<f4") / 64, ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def safetensors(given: Mapping[str, np.ndarray], edit: Mapping[str, Any] | None = None) -> bytes:
    """A file of these tensors. edit: entries of the header that are to stand there instead."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in given.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    return framed(json.dumps(header | dict(edit or {})).encode(), b"".join(array.tobytes() for array in given.values()))


def framed(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def write(directory: Path, settings: Mapping[str, Any] | None = None, given: Any = None) -> Path:
    """A checkpoint in a new directory, as the hub has it."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(settings or config()))
    (directory / "model.safetensors").write_bytes(safetensors(given or tensors()))
    return directory


def shard(directory: Path, count: int = 2, form: str = "model-{:05}-of-{:05}.safetensors") -> dict[str, str]:
    """The single file taken apart. Returns the map in the index."""
    given = tensors()
    (directory / "model.safetensors").unlink()
    places = {name: form.format(1 + i * count // len(given), count) for i, name in enumerate(given)}
    for file in set(places.values()):
        held = {name: array for name, array in given.items() if places[name] == file}
        (directory / file).write_bytes(safetensors(held))
    write_index(directory, places)
    return places


def write_index(directory: Path, places: Mapping[str, Any]) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def tree(root: Path) -> dict[str, str]:
    """Everything under a directory, by name: files by their content, links by where they point."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            what = f"-> {os.readlink(path)}"
        elif path.is_file():
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            what = "directory" if path.is_dir() else "special"
        found[path.relative_to(root).as_posix()] = what
    return found


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


def main(*arguments: str | Path) -> Outcome:
    """The command line in this process."""
    from lineage import cli

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    out, err = io.StringIO(), io.StringIO()
    argv = ["lineage", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", argv):
            cli.main()
    except SystemExit as stop:
        code = stop.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def environment(**changes: str) -> dict[str, str]:
    """Of a process that shall know no hub but the one it is told of."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "LINEAGE_", "HUGGING"))}
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"} | changes


STOPPED = {"PYTHONWARNINGS": "error,ignore::ResourceWarning"}
"""Of a process that is stopped: a signal may come between the opening of a file and the block that closes it."""


def start(*arguments: str | Path, command: Sequence[str] = COMMAND, **options: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    options = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([*command, *map(str, arguments)], **options)


def finish(process: subprocess.Popen[str], limit: float = 60) -> Outcome:
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Outcome(process.returncode, out or "", err or "")


def command(*arguments: str | Path, **options: Any) -> Outcome:
    return finish(start(*arguments, **options))
