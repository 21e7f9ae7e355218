"""The virtual clock: timers fire in order, and long steps take a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.clock import MOST_RUNS
from tests.emulator.api.raw_client import RawClient, batch_of, plain_batch
from tests.emulator.hostile.turns import watched
from tests.support.conditions import until

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


def test_after_a_long_step_every_time_counts_again() -> None:
    assert runs(10, WEEKS_MS, 30)[-4:] == [WEEKS_MS, WEEKS_MS + 10, WEEKS_MS + 20, WEEKS_MS + 30]


def test_a_single_call_in_a_long_step_runs_at_its_time() -> None:
    clock, found = VirtualClock(0), list[int]()
    clock.call_every(10, lambda: None)
    clock.call_later(DAY_MS + 3, lambda: found.append(clock.now_ms()))
    clock.advance(WEEKS_MS)
    assert found == [DAY_MS + 3]


def test_weeks_pass_in_a_moment_with_a_data_directory(tmp_path: Path) -> None:
    """All due work is done: the open transaction is aborted, and the records are deleted."""
    topics = {f"t{number}": 3 for number in range(20)}
    config = BrokerConfig(log_roll_ms=1000)
    with (
        Emulator(clock=VirtualClock(), data_dir=tmp_path / "data", topics=topics, config=config) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        for topic in topics:
            client.produce(topic, plain_batch(b"old"))
        producer = client.init_producer_id("x")
        client.produce("t0", batch_of(producer, b"open"), transactional_id="x", partition=1)
        with watched(emulator) as turns:
            emulator.advance_clock(WEEKS_MS)
        assert turns.steps < 10_000_000
        until(lambda: emulator.transactions()[0].state == "CompleteAbort")
        client.produce("t1", plain_batch(b"too old"))
        emulator.advance_clock(DAY_MS)
        assert emulator.log("t1").log_start_offset == 2
