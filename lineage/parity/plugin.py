"""The pytest plugin: logit-parity tests in anybody's repository, in three lines.

    @pytest.mark.parity("my-model-lineage", golden="tests/my-model.safetensors")
    def test_logits(parity):
        parity.check()

With `golden`, results are compared with that file (made or renewed by ``pytest --update-golden``), which needs
neither transformers nor a network; without, with transformers itself. `levels` chooses some of `lineage verify`'s;
`device` says where the models run.
Relative paths start at the test's own folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lineage.values import Value

if TYPE_CHECKING:
    from lineage.parity.report import Report

_MARK = 'parity(model, golden=None, levels=(), against="transformers", device="cpu"): what the parity fixture checks'


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lineage")
    group.addoption(
        "--update-golden", action="store_true", help="write golden files anew instead of comparing with them"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


class Parity(Value):
    """What a test asked for. report: runs the comparison; check: fails the test with the report unless it passed."""

    model: Any
    golden: Path | None
    levels: Sequence[str]
    against: str
    device: str
    update: bool

    def report(self) -> "Report":
        """Compare; with --update-golden write the golden file first. Raises the project's errors."""
        if self.golden is None:
            from lineage.parity.verification import verify

            return verify(self.model, self.against, only=self.levels, device=self.device)
        from lineage.parity.golden import check_golden, save_golden

        if self.update:
            save_golden(self.model, self.golden, device=self.device)
        return check_golden(self.model, self.golden, self.device)

    def check(self) -> None:
        """Fail the test, with the whole report, if the results moved."""
        from lineage.errors import LineageError

        found, refused = None, ""
        try:
            found = self.report()
        except LineageError as error:
            refused = "\n".join([error.message, *error.facts, error.hint or ""])
        if found is None:
            pytest.fail(refused, pytrace=False)
        if not found.passed:
            pytest.fail("\n".join([f"{found.subject} against {found.against}", *found.lines()]), pytrace=False)


@pytest.fixture
def parity(request: pytest.FixtureRequest) -> Parity:
    """The comparison that the test's `parity` marker describes."""
    mark = request.node.get_closest_marker("parity")
    if mark is None or not mark.args:
        pytest.fail('the parity fixture needs @pytest.mark.parity("MODEL")', pytrace=False)
    here, options = request.path.parent, dict(mark.kwargs)
    golden = options.pop("golden", None)
    levels, against = options.pop("levels", ()), options.pop("against", "transformers")
    device = options.pop("device", "cpu")
    if options:
        pytest.fail(f"parity marker: {', '.join(options)} is not understood; {_MARK}", pytrace=False)
    model = mark.args[0]
    if isinstance(model, str | Path) and (here / model).exists():
        model = here / model
    update = request.config.getoption("--update-golden")
    return Parity(model, None if golden is None else here / golden, levels, against, device, update)
