"""A device that is none: its tensors are kept on the CPU behind another device's name, and do not mix with the CPU's.

Where there is no GPU, it shows that all is brought to the device and back. Run with the arguments of `lineage verify`.
"""

import shlex
import sys
from functools import partial
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from lineage import cli
from lineage.parity import device

NAME = "pretend"
KEPT: dict[int, tuple[Any, torch.Tensor]] = {}  # a tensor's storage there, and its numbers here
_setup_privateuseone_for_python_backend(NAME)
torch.get_device_module(NAME).get_amp_supported_dtype = lambda: [torch.float16]


def remote(raw: torch.Tensor) -> torch.Tensor:
    """A tensor of the device with these numbers; contiguous, as it looks from outside.

    So what is written to columns of it is lost.
    """
    raw = raw.contiguous()
    made = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)
    storage = made.untyped_storage()
    KEPT[storage._cdata] = storage, raw
    return made


def is_remote(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def numbers(value: torch.Tensor) -> torch.Tensor:
    """What a tensor holds. torch makes others of one storage by itself: the same numbers in another shape."""
    if not is_remote(value):
        return value
    raw = KEPT[value.untyped_storage()._cdata][1]
    return raw.view(value.shape) if raw.shape != value.shape and raw.numel() == value.numel() else raw


def inside(value: Any, known: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Arguments as the CPU takes them. known: is told which numbers are whose."""
    if is_remote(value):
        known.append((numbers(value), value))
        return known[-1][0]
    if isinstance(value, torch.Tensor) and value.dim():
        raise RuntimeError("a tensor on the CPU among those on the device")
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)(inside(one, known) for one in value) if isinstance(value, list | tuple) else value


def outside(value: Any, known: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Results as the device gives them: what was written to is itself."""
    if isinstance(value, torch.Tensor):
        found = next((one for raw, one in known if raw is value), None)
        return remote(value) if found is None else found
    return type(value)(outside(one, known) for one in value) if isinstance(value, list | tuple) else value


def run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation that has a tensor of the device, or makes one."""
    name = operation._schema.name.removeprefix("aten::")
    if name in ("_copy_from", "_to_copy", "copy_"):
        return moved(name, *args, **kwargs)
    known: list[tuple[torch.Tensor, torch.Tensor]] = []
    given = [inside(one, known) for one in args]
    options = {key: inside(one, known) for key, one in kwargs.items()}
    if name == "as_strided":
        size, stride, offset = (*given[1:], 0)[:3]
        return remote(given[0].as_strided(size, stride, given[0].storage_offset() + (offset or 0)))
    found = operation(*given, **options)
    for raw, one in known:
        if raw.shape != one.shape:  # made empty, and made longer by what was written to it
            one.data = remote(raw)
    return outside(found, known)


def moved(name: str, source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Copies, the one way between here and there."""
    if name == "_to_copy":
        target = torch.device(kwargs.get("device") or source.device)
        copied = torch.ops.aten._to_copy(numbers(source), **{**kwargs, "device": "cpu"})
        return copied if target.type == "cpu" else remote(copied)
    there, here = (source, args[0]) if name == "copy_" else (args[0], source)
    numbers(there).copy_(numbers(here))
    return there


library = torch.library.Library("_", "IMPL")
library.fallback(run, dispatch_key="PrivateUse1")
single = torch.library.Library("aten", "IMPL")
for name in ("constant_pad_nd", "slice_backward", "select_backward"):  # torch writes them as writes to columns
    single.impl(name, partial(run, getattr(torch.ops.aten, name).default), "PrivateUse1")


def verify(*arguments: str) -> int:
    """`lineage verify` on the device. Returns the exit code."""
    sys.argv = ["lineage", "verify", *arguments, "--device", NAME]
    try:
        cli.main()
    except SystemExit as ending:
        return int(ending.code or 0)
    return 1


if __name__ == "__main__":
    device.find = str
    torch.cuda.mem_get_info = lambda name: (1 << 40, 1 << 40)
    sys.exit(max(verify(*shlex.split(arguments)) for arguments in sys.argv[1:]))
