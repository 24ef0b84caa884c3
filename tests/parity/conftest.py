"""Tiny converted models, each made once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

import lineage
from lineage import components as c
from lineage import graph
from lineage.parity import tiny as tinies

FAINT = 0.02
STREAM = ("embed.", ".o.", ".down", ".norm_sum.", ".norm_branch.", ".q.", ".k.")  # what norms read the sum of
Made = Callable[..., Path]


def spread_faintly(spec: c.Model, *options: object) -> dict[str, Tensor]:
    """Weights that leave every norm a small variance, in which its eps is seen."""
    state, parts = SPREAD(spec, *options), {node.path: node.component for node in graph.walk(spec)}
    for name in state:
        if any(part in f"{name}." for part in STREAM):
            more = float(getattr(parts.get(name.rpartition(".")[0]), "plus_one", False))
            state[name] = FAINT * (state[name] + more) - more
    return state


SPREAD = tinies.spread


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """tiny(kind, faint, **options of write_tiny): the converted directory."""
    root = tmp_path_factory.mktemp("parity")

    def made(kind: str, faint: bool = False, **options: object) -> Path:
        name = " ".join([kind, *(f"{key}={value}" for key, value in sorted(options.items())), *["faint"] * faint])
        if not (root / name).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tinies, "spread", spread_faintly if faint else SPREAD)
                source = tinies.write_tiny(kind, root / f"{name} source", **options)
            lineage.convert(str(source), root / name, verify=False, hashes=True)
        return root / name

    return made


@pytest.fixture(scope="session")
def addition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, converted."""
    source = Path(__file__).parents[2] / "examples" / "addition" / "model"
    return lineage.convert(str(source), tmp_path_factory.mktemp("addition") / "out", verify=False, hashes=True).output
