"""Deadlines by heap, against a dictionary that is searched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.transactions.metadata import Deadlines

Steps = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), st.sampled_from("abcd"), st.integers(0, 20)),
        st.tuples(st.just("take_due"), st.just(""), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(Steps)
def test_every_name_is_returned_once_at_its_earliest_deadline(steps: list[tuple[str, str, int]]) -> None:
    deadlines = Deadlines()
    expected: dict[str, int] = {}
    for step, name, time_ms in steps:
        if step == "schedule":
            deadlines.schedule(name, time_ms)
            expected[name] = min(expected.get(name, time_ms), time_ms)
        else:
            due = {known for known, deadline_ms in expected.items() if deadline_ms <= time_ms}
            found = deadlines.take_due(time_ms)
            assert (set(found), len(found)) == (due, len(due))
            for known in due:
                del expected[known]
        assert len(deadlines) == len(expected)
