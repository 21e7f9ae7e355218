"""The rules of the store that need no database: statuses, slots, and retention."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.errors import SinkError
from spark_sink.handoff import TaskOutcome, TaskResult
from spark_sink.store.attempt_states import CHANGES, LIVE, TERMINAL, AttemptEvent, AttemptStatus, after, before
from spark_sink.store.rules import Leasable, decision_of, expired, is_decided, query_id_of_job
from spark_sink.store.tables import BatchRow, BatchStatus

NOW = dt.datetime(2026, 1, 1)


def test_each_event_leads_to_one_status_and_each_status_is_reached() -> None:
    assert {after(event) for event in AttemptEvent} == set(AttemptStatus) - {AttemptStatus.OPEN}
    assert all(before(event) for event in AttemptEvent)
    assert {AttemptStatus.COMMITTED, AttemptStatus.ABORTED, AttemptStatus.LOST} == TERMINAL
    assert set(AttemptStatus) == LIVE | TERMINAL


def test_a_final_decision_is_never_turned_round() -> None:
    committing, aborting = reachable(AttemptStatus.COMMITTING), reachable(AttemptStatus.ABORTING)
    assert committing == {AttemptStatus.COMMITTED, AttemptStatus.LOST}
    assert aborting == {AttemptStatus.ABORTED}


def reachable(status: AttemptStatus) -> set[AttemptStatus]:
    direct = {target for (source, _), target in CHANGES.items() if source is status}
    return direct.union(*map(reachable, direct))


@pytest.mark.parametrize(
    ("leased", "slots", "slot"),
    [
        ((), Leasable(), 0),
        ((0, 1), Leasable(), 2),
        ((1, 2), Leasable(), 0),
        ((0, 10, 2), Leasable(), 1),
        ((), Leasable(3), 3),
        ((0, 3, 4), Leasable(3), 5),
        ((0, 9), Leasable(3), 3),
        ((), Leasable(3, 1), 1),
        ((1, 3), Leasable(3, 1), 4),
    ],
)
def test_the_smallest_free_slot(leased: tuple[int, ...], slots: Leasable, slot: int) -> None:
    assert slots.free("s-1-", {f"s-1-{number}" for number in leased}) == f"s-1-{slot}"


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 12), min_size=1)), max_size=8))
def test_a_retired_id_is_never_free_again(steps: list[tuple[bool, set[int]]]) -> None:
    slots, retired = Leasable(), set[int]()
    for with_smaller, gone in steps:
        slots = slots.beyond(max(gone)) if with_smaller else slots.without(gone)
        retired |= set(range(max(gone) + 1)) if with_smaller else gone
        assert {slots.spare, *range(slots.first, 14)}.isdisjoint(retired)


def test_the_newest_version_of_a_job_is_never_forgotten() -> None:
    daily, other = query_id_of_job("daily", 3), query_id_of_job("other", None)
    known = [(daily, 1), (daily, 3), *((f"{other}{number}", 0) for number in range(5))]
    rows = [
        BatchRow("s", query_id, batch, BatchStatus.DONE, generation, 1, 1, None, NOW, NOW, None)
        for generation, (query_id, batch) in enumerate(known)
    ]
    forgotten = {(row.query_id, row.batch_id) for row in expired(rows, 1)}
    assert set(known) - forgotten == {(daily, 3), (f"{other}4", 0)}
    assert [is_decided(daily, version, 3 if version <= 3 else None) for version in (0, 3, 4)] == [True, True, False]


def result(partition: int, outcome: TaskOutcome, generation: int = 3) -> TaskResult:
    attempt_id = f"a{partition}" if outcome is TaskOutcome.PREPARED else None
    return TaskResult(outcome, generation, "q", 5, partition, attempt_id, 10 * partition, 0, partition)


def test_winners_come_in_the_order_of_their_partitions() -> None:
    results = [result(2, TaskOutcome.PREPARED), result(0, TaskOutcome.EMPTY), result(1, TaskOutcome.PREPARED)]
    decision = decision_of("s", "q", 5, results, "aa")
    assert decision.winners == ("a1", "a2")
    assert (decision.generation, decision.records, decision.staged_rows, decision.skipped) == (3, 30, 3, False)
    assert decision_of("s", "q", 5, [], None).generation is None
    assert decision_of("s", "q", 5, [result(0, TaskOutcome.SKIPPED)], None).skipped
    with pytest.raises(SinkError, match="two results for one partition"):
        decision_of("s", "q", 5, [results[0], results[0]], None)
