"""Tiny converted models, each made once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

import lineage
from lineage.parity import tiny as tinies

FAINT = 0.02
STREAM = ("embed.", ".o.", ".down.", ".norm_sum.")  # what the residual stream is the sum of
Made = Callable[..., Path]


def spread_faintly(*arguments: object) -> dict[str, Tensor]:
    """Weights that leave every norm a small variance, in which its eps is seen."""
    state = SPREAD(*arguments)
    return {name: FAINT * x if any(part in name for part in STREAM) else x for name, x in state.items()}


SPREAD = tinies.spread


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """tiny(kind, faint, **options of write_tiny): the converted directory."""
    root = tmp_path_factory.mktemp("parity")

    def made(kind: str, faint: bool = False, **options: object) -> Path:
        name = " ".join([kind, *(f"{key}={value}" for key, value in sorted(options.items())), "faint" * faint])
        if not (root / name).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tinies, "spread", spread_faintly if faint else SPREAD)
                source = tinies.write_tiny(kind, root / f"{name} source", **options)
            lineage.convert(str(source), root / name, verify=False)
        return root / name

    return made


@pytest.fixture(scope="session")
def addition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, converted."""
    source = Path(__file__).parents[2] / "examples" / "addition" / "model"
    return lineage.convert(str(source), tmp_path_factory.mktemp("addition") / "out", verify=False).output
