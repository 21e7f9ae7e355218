"""A short attack in every run of the tests, a longer one in `make proof`, and the fuzzer's own promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign, Limits

SEED = 20_261_123


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cases", [100, pytest.param(1_500, marks=pytest.mark.proof)])
def test_nothing_goes_wrong(tmp_path: Path, cases: int) -> None:
    result = Campaign(SEED, Limits(), tmp_path).run(240, cases)
    assert result.failures == []
    assert result.cases == cases
