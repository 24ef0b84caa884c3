"""PyTorch's pickled checkpoints (pytorch_model.bin): read with `weights_only=True`, after a look at the archive.

A pickle is a program; torch's restricted reader runs only what rebuilds tensors. Even so it is used only when the
user allows it. Deflated members (which may unfold to any size) are refused before.
"""

import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.checkpoint.files import available_memory, open_regular
from lineage.components import Shape
from lineage.errors import FileDamaged, ResourceError
from lineage.operations import Array
from lineage.values import Value

if TYPE_CHECKING:
    import torch

# torch's name -> safetensors' name
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


class Pickled(Value):
    """A tensor of a pickled checkpoint."""

    path: Path
    tensor: "torch.Tensor"

    @property
    def dtype(self) -> str:
        return DTYPES[str(self.tensor.dtype).removeprefix("torch.")]

    @property
    def shape(self) -> Shape:
        return tuple(self.tensor.shape)

    @cached_property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def raw(self) -> Array:
        """Its elements as unsigned integers of their width, in its shape."""
        import torch

        flat = self.tensor.detach().contiguous().reshape(-1)
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        width = self.tensor.element_size()
        return flat.view(kinds[width]).numpy().view(f"<u{width}").reshape(self.shape)


def read_pickle(path: Path) -> "dict[str, torch.Tensor]":
    """The tensors of one file, memory-mapped where its form allows. Raises FileDamaged, or ResourceError if it
    must be read whole and memory is short; never runs its code.
    """
    import logging

    import torch

    try:
        zipped = _check_archive(path)
        if not zipped and path.stat().st_size > available_memory():  # the older form is not mapped, but read whole
            raise ResourceError(
                f"{path.name}: an old pickle of {path.stat().st_size:,} bytes, which must be in memory as a whole",
                facts=[f"free   {available_memory():,.0f} bytes"], hint="its author's safetensors need none",
            )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old storage classes
            logging.getLogger("torch").setLevel(logging.ERROR)
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except (FileDamaged, ResourceError):
        raise
    except OSError as error:
        raise FileDamaged(f"{path.name}: cannot be read ({error.strerror})") from error
    except Exception as error:  # whatever a malformed or hostile pickle provokes, it is the file's fault
        reason = " ".join(str(error).split())[:160]
        raise FileDamaged(
            f"{path.name}: not a plain checkpoint of tensors, and refused unread ({reason})",
            hint="ask its author for safetensors; code inside it was not run",
        ) from None
    return _tensors_alone(path, found)


def _check_archive(path: Path) -> bool:
    """Whether the file is a zip archive, as torch and zipfile agree; its members must be stored, not deflated."""
    import zipfile  # what has safetensors needs none of it

    with open_regular(path) as file:
        head = file.read(8)
        if head.startswith(b"version "):
            raise FileDamaged(f"{path.name} is a Git LFS pointer, not weights", hint="git lfs pull")
        zipped = zipfile.is_zipfile(file)
        members = zipfile.ZipFile(file).infolist() if zipped else []
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or sum(member.file_size for member in members) > path.stat().st_size:
        raise FileDamaged(f"{path.name}: a deflated archive, which torch does not write; refused unread")
    if zipped != head.startswith(b"PK"):
        raise FileDamaged(f"{path.name}: a damaged zip archive (cut short?)")
    return zipped


def _tensors_alone(path: Path, found: object) -> "dict[str, torch.Tensor]":
    import torch

    if not isinstance(found, dict):
        raise FileDamaged(f"{path.name}: holds a {type(found).__name__}, expected a map of names to tensors")
    odd = [
        str(name)[:60]
        for name, value in found.items()
        if not isinstance(name, str) or not isinstance(value, torch.Tensor)
    ]
    if odd:
        raise FileDamaged(
            f"{path.name}: {len(odd)} entries are not tensors: {', '.join(odd[:5])}",
            hint="a training checkpoint? save its model's state_dict alone",
        )
    for name, value in found.items():
        if (
            value.layout is not torch.strided
            or value.device.type != "cpu"
            or value.is_quantized
            or value.is_neg()
            or str(value.dtype).removeprefix("torch.") not in DTYPES
        ):
            raise FileDamaged(f"{path.name}: {name[:200]} is not a plain dense tensor")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise FileDamaged(f"{path.name}: {name[:200]} repeats numbers to more than its file holds of them")
    return found
