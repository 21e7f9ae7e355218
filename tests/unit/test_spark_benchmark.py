"""`python -m benchmarks.spark_sink`: its verdicts."""

from __future__ import annotations

import pytest

from benchmarks.spark_sink import LARGE, SMALL, verdicts
from benchmarks.spark_ways import NOOP, SPARKS_OWN, THIS


@pytest.mark.parametrize(("own_ms", "said"), [(500, "reached: 0.50 x"), (480, "MISSED: 0.48 x")])
def test_large_batches_go_by_sparks_own_sink(own_ms: float, said: str) -> None:
    (line,) = verdicts({LARGE: {THIS: [1000, 900, 2000], SPARKS_OWN: [own_ms, 9000, 10], NOOP: [1, 1, 1]}})
    assert line.startswith(said)


@pytest.mark.parametrize(("this_ms", "said"), [(350, "reached: 150 ms"), (351, "MISSED: 151 ms")])
def test_small_batches_go_by_the_noop_sink(this_ms: float, said: str) -> None:
    (line,) = verdicts({SMALL: {NOOP: [200, 200, 200], THIS: [this_ms, 200, 900]}})
    assert line.startswith(said)


def test_what_was_not_measured_has_no_verdict() -> None:
    assert list(verdicts({LARGE: {THIS: [1], SPARKS_OWN: []}, SMALL: {THIS: [1]}})) == []
