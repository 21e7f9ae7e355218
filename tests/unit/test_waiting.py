"""How long to wait after failures."""

from __future__ import annotations

from dualwrite.recipes.core.waiting import backoff_s


def test_the_wait_doubles_after_each_failure_up_to_a_limit() -> None:
    assert [backoff_s(failures) for failures in (1, 2, 3, 4, 5, 6, 10_000)] == [0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6]
