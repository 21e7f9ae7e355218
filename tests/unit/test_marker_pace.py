"""How soon after a transaction the next one's first batch is sent, against simulated brokers."""

from __future__ import annotations

import random

import pytest

from dualwrite.client.pacing import MarkerPace

ASKS_AGAIN_MS = 20.0


def times_ms(pace: MarkerPace, *, round_trip_ms: float, markers_ms: float, stalls: float, count: int) -> list[float]:
    """Return the duration of each of `count` one-record transactions, back to back, for the broker's marker time."""
    chance = random.Random(1)
    now_ms, markers_at_ms, taken = 0.0, 0.0, []
    for _ in range(count):
        began_ms = now_ms
        now_ms = max(now_ms, pace.may_produce_at_ms)
        sent_ms = now_ms
        pace.produced(now_ms)
        now_ms += round_trip_ms
        while now_ms < markers_at_ms:
            now_ms += ASKS_AGAIN_MS
        now_ms += 30 if chance.random() < stalls else 0
        pace.answered(now_ms - sent_ms)
        now_ms += round_trip_ms
        pace.ended(now_ms)
        markers_at_ms = now_ms + markers_ms + chance.uniform(-0.5, 0.5)
        taken.append(now_ms - began_ms)
    return taken


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("round_trip_ms", [0.3, 2.0, 40.0])
def test_late_markers_cost_only_their_own_delay(round_trip_ms: float) -> None:
    markers_ms = round_trip_ms + 3
    pace = MarkerPace()
    taken = times_ms(pace, round_trip_ms=round_trip_ms, markers_ms=markers_ms, stalls=0.01, count=1000)
    assert mean(taken[1:20]) > 2 * round_trip_ms + 10
    assert mean(taken[200:]) < 2 * round_trip_ms + 6


@pytest.mark.parametrize(("stalls", "most_ms"), [(0.0, 0.0), (0.02, 0.01), (0.05, 0.5)])
def test_where_markers_are_in_time_next_to_nothing_is_put_off(stalls: float, most_ms: float) -> None:
    pace, chance, now_ms, put_off_ms = MarkerPace(), random.Random(2), 0.0, 0.0
    for _ in range(10_000):
        put_off_ms += max(pace.may_produce_at_ms - now_ms, 0)
        pace.produced(now_ms)
        pace.answered(30.0 if chance.random() < stalls else 0.4)
        now_ms += 1
        pace.ended(now_ms)
    assert put_off_ms / 10_000 <= most_ms


def test_an_unneeded_pause_is_dropped() -> None:
    pace = MarkerPace()
    times_ms(pace, round_trip_ms=0.3, markers_ms=5, stalls=0, count=300)
    taken = times_ms(pace, round_trip_ms=0.3, markers_ms=-1, stalls=0, count=1000)
    assert taken[-1] == pytest.approx(0.6)


def test_only_the_first_batch_waits_and_only_a_little() -> None:
    pace = MarkerPace()
    assert pace.may_produce_at_ms == 0
    times_ms(pace, round_trip_ms=0.3, markers_ms=500, stalls=0, count=500)
    ended_ms = 1e6
    pace.ended(ended_ms)
    assert ended_ms < pace.may_produce_at_ms <= ended_ms + 10
    pace.produced(ended_ms + 10)
    assert pace.may_produce_at_ms == 0
