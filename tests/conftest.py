"""Golden files, which --update-golden rewrites (an option of lineage's plugin); and how hypothesis and torch run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# before torch is loaded: a thread that waits for the others gives its core away (on a busy machine, seven times faster)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# the same examples everywhere, however slow the machine
settings.register_profile("lineage", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("lineage")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of this name."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no golden file {name}: pytest --update-golden writes it"
        assert text == path.read_text(encoding="utf-8")

    return check
