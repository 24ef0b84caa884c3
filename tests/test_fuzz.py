"""Any bytes in any file that is parsed: read, or refused in our words; what `scripts/fuzz` found, kept as examples."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests import fuzzing

EACH = {"header": 300, "index": 150, "config": 300, "gguf": 200, "record": 200}


@pytest.mark.parametrize("parser", fuzzing.PARSERS)
def test_what_is_nearly_right(parser: str, tmp_path: Path) -> None:
    seen = set()

    @settings(max_examples=EACH[parser])
    @given(data=some.data())
    def tried(data: some.DataObject) -> None:
        raw = fuzzing.SPOILT[parser](lambda most: data.draw(some.integers(0, most - 1)))
        seen.add(fuzzing.measured(parser, raw, tmp_path))

    tried()
    assert False in seen


@pytest.mark.parametrize("parser", fuzzing.PARSERS)
def test_any_bytes(parser: str, tmp_path: Path) -> None:
    @settings(max_examples=100)
    @given(raw=some.binary(max_size=200) | some.text().map(str.encode))
    def tried(raw: bytes) -> None:
        assert not fuzzing.measured(parser, raw, tmp_path)

    tried()
