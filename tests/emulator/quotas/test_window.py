"""The arithmetic of quotas, with the numbers of Kafka's own tests and formulas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.quotas.enforcement import (
    Bucket,
    Samples,
    WindowSize,
    counted,
    rate,
    refill_ms,
    refilled,
    throttle_ms,
)

SIZE = WindowSize(sample_ms=1000, samples=11)
START_MS = 1_700_000_000_000


def used(*events: tuple[int, float]) -> Samples:
    """Return the samples of counts by milliseconds since the start."""
    samples: Samples = ()
    for at_ms, value in events:
        samples = counted(samples, value, START_MS + at_ms, SIZE)
    return samples


def test_a_first_burst_is_spread_over_the_whole_window() -> None:
    assert rate(used((0, 10_000)), START_MS, SIZE) == 1000
    assert throttle_ms(used((0, 10_000)), 1000, START_MS, SIZE) == 0


def test_usage_above_the_rate_is_waited_for() -> None:
    """20,000 in ten seconds at 1,000 a second: X = (O - T) / T * W, so another ten seconds."""
    assert throttle_ms(used((0, 20_000)), 1000, START_MS, SIZE) == 10_000
    assert throttle_ms(used((0, 11_000)), 1000, START_MS, SIZE) == 1000


def test_time_that_has_passed_counts() -> None:
    samples = used((0, 20_000))
    assert rate(samples, START_MS + 10_500, SIZE) == 20_000 / 10.5
    assert rate(samples, START_MS + 11_000, SIZE) == 0


def test_a_sample_that_overlaps_the_window_is_whole() -> None:
    samples = used((0, 1), (900, 1), (1500, 5))
    assert [sample.value for sample in samples] == [2, 5]
    assert sum(sample.value for sample in counted(samples, 0, START_MS + 11_800, SIZE)) == 7
    assert sum(sample.value for sample in counted(samples, 0, START_MS + 11_900, SIZE)) == 5


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 5000)), min_size=1, max_size=40), st.integers(1, 2000))
def test_a_client_above_its_quota_waits_and_is_forgiven(events: list[tuple[int, int]], limit: int) -> None:
    samples: Samples = ()
    now_ms = START_MS
    for pause_ms, value in events:
        now_ms += pause_ms
        samples = counted(samples, value, now_ms, SIZE)
        excess = rate(samples, now_ms, SIZE) - limit
        wait_ms = throttle_ms(samples, limit, now_ms, SIZE)
        assert wait_ms >= 0 if excess > 0 else wait_ms == 0
        assert (
            excess <= 0 or abs(wait_ms - excess / limit * 10_500) <= excess / limit * 1500 + 1
        )  # a window of 9 to 12 s
        now_ms += wait_ms
    assert len(samples) <= SIZE.samples + 1
    assert rate(samples, now_ms + 11_000, SIZE) == 0


def test_answers_have_room_for_the_longest_time() -> None:
    assert throttle_ms(used((0, 1e9)), 1e-300, START_MS, SIZE) == 2**31 - 1
    assert refill_ms(Bucket(-1e9, START_MS), 1e-300) == 2**31 - 1


def test_a_bucket_begins_full_and_is_refilled() -> None:
    full = refilled(Bucket(), 2.0, START_MS, SIZE)
    assert full.tokens == 22
    spent = Bucket(full.tokens - 30, START_MS)
    assert refill_ms(spent, 2.0) == 4000
    assert refilled(spent, 2.0, START_MS + 4000, SIZE).tokens == 0
    assert refill_ms(refilled(spent, 2.0, START_MS + 4000, SIZE), 2.0) == 0
    assert refilled(spent, 2.0, START_MS + 60_000, SIZE).tokens == 22
