"""Half a minute of chaos; `python -m tests.spark.chaos` runs for any time."""

from __future__ import annotations

import pytest

from tests.spark.chaos import Plan, run_chaos


@pytest.mark.timeout(360)
def test_every_row_is_written_once_after_every_kill() -> None:
    tally = run_chaos(Plan(seconds=25, seed=11))
    assert tally.rows > 0
    assert sum(tally.faults.values()) > 0
    print(tally)
