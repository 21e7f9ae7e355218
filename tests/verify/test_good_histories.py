"""A good history has no findings."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.verify.checker import check
from dualwrite.verify.history import Ok, Poll, RecordAtRest
from tests.verify.good_histories import good_history


@given(st.integers(0, 2**32), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_nothing_is_found_in_a_good_history(seed: int, steps: int) -> None:
    report = check(good_history(random.Random(seed), steps))
    assert report.is_clean, str(report)


def test_good_histories_have_everything_in_them() -> None:
    events = good_history(random.Random(1), 400)
    report = check(events)
    assert report.committed > 20
    assert report.rolled_back > 2
    assert report.read == 2 * report.records
    assert {Ok, Poll, RecordAtRest} <= {type(event) for event in events}
