"""Where the models run: told and refused before any work, and made to compute there as strictly as it can."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator

from lineage.errors import ResourceError


def find(name: object) -> str:
    """The name of a device that is there: cpu, cuda or cuda:N. Raises ResourceError for any other.

    torch is loaded for CUDA alone, so that a misspelt name is told at once.
    """
    known = re.fullmatch(r"cpu|cuda(?::([0-9]{1,3}))?", str(name))
    if known is None:
        raise ResourceError(f"device {str(name)[:40]!r} is not known", hint="cpu, cuda or cuda:N")
    if known[0] != "cpu":
        import torch

        count = torch.cuda.device_count()
        if int(known[1] or 0) >= count:
            raise ResourceError(f"there is no {known[0]}: torch {torch.__version__} sees {count} CUDA devices")
    return known[0]


def described(device: str) -> str:
    """A device as the report names it."""
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


@contextlib.contextmanager
def strict(device: str) -> Iterator[None]:
    """Within: on CUDA single precision is single precision, not TF32, and sums keep their order where they can."""
    import torch

    if not device.startswith("cuda"):
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is made
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    usual = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    rounding = products.allow_tf32
    with warnings.catch_warnings(), cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False):
        warnings.filterwarnings("ignore", ".*deterministic")  # what has no order of its own still runs
        torch.use_deterministic_algorithms(True, warn_only=True)
        products.allow_tf32 = False
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(usual[0], warn_only=usual[1])
            products.allow_tf32 = rounding
