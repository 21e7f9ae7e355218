"""The files that `make test` treats specially exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.parallel_runs import LONGEST

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", LONGEST)
def test_a_file_that_is_named_is_there(file: str) -> None:
    assert (ROOT / file).is_file()
