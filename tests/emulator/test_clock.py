"""The virtual clock: timers fire in order, and long steps take a moment."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import VirtualClock
from dualwrite.broker_emulator.clock import MOST_RUNS

DAY_MS = 86_400_000
WEEKS_MS = 5 * 7 * DAY_MS


def runs(interval_ms: int, *steps_ms: int) -> list[int]:
    """Return the times at which a periodic call runs."""
    clock, found = VirtualClock(0), list[int]()
    clock.call_every(interval_ms, lambda: found.append(clock.now_ms()))
    for step_ms in steps_ms:
        clock.advance(step_ms)
    assert clock.now_ms() == sum(steps_ms)
    return found


def test_a_periodic_call_runs_at_each_of_its_times() -> None:
    assert runs(10, 35, 5, 9, 1) == [10, 20, 30, 40, 50]
    assert runs(10, 10 * MOST_RUNS - 1) == list(range(10, 10 * MOST_RUNS, 10))


@pytest.mark.parametrize("step_ms", [10 * MOST_RUNS + 10, 123_456, WEEKS_MS, WEEKS_MS + 7])
def test_a_long_step_skips_calls_and_keeps_to_the_schedule(step_ms: int) -> None:
    found = runs(10, step_ms)
    assert len(found) <= MOST_RUNS + 1
    assert found == sorted(set(found))
    assert {time_ms % 10 for time_ms in found} == {0}
    assert (found[0], found[-1]) == (10, step_ms // 10 * 10)


def test_a_single_call_in_a_long_step_runs_at_its_time() -> None:
    clock, found = VirtualClock(0), list[int]()
    clock.call_every(10, lambda: None)
    clock.call_later(DAY_MS + 3, lambda: found.append(clock.now_ms()))
    clock.advance(WEEKS_MS)
    assert found == [DAY_MS + 3]
