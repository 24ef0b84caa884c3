"""Transformer architectures as values: converted, proved against the reference, compared.

Importing this package imports neither torch nor transformers; what needs them is loaded when first asked for.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if (Path(__file__).parent.parent / "pyproject.toml").is_file():  # a checkout: specs, converters and cli stand beside us
    __path__.append(str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from lineage.catalog import spec as spec
    from lineage.conversion import convert as convert
    from lineage.design import diff as diff
    from lineage.errors import LineageError as LineageError
    from lineage.exporting import export as export
    from lineage.modules.loading import from_pretrained as from_pretrained
    from lineage.parity.ports import verify_module as verify_module
    from lineage.parity.tracing import trace as trace
    from lineage.parity.verification import verify as verify

_HOMES = {
    "spec": "lineage.catalog",
    "convert": "lineage.conversion",
    "diff": "lineage.design",
    "export": "lineage.exporting",
    "trace": "lineage.parity.tracing",
    "verify": "lineage.parity.verification",
    "verify_module": "lineage.parity.ports",
    "from_pretrained": "lineage.modules.loading",
    "LineageError": "lineage.errors",
}

__all__ = [
    "LineageError",
    "__version__",
    "convert",
    "diff",
    "export",
    "from_pretrained",
    "spec",
    "trace",
    "verify",
    "verify_module",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'lineage' has no attribute {name!r}")
