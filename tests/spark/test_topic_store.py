"""The store in a topic where its log misbehaves: acknowledgements that are lost, ends, holes, strangers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import CommitLogError, DecisionUnknownError, SinkError, SinkFencedError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store.attempt_states import AttemptStatus, Prepared
from spark_sink.store.sink_store import unavailable_means
from spark_sink.store.tables import Decision
from spark_sink.store.topic.log import StoredRecord
from spark_sink.store.topic.records import Mark, Snapshot, Update, decoded, encoded
from spark_sink.store.topic.replica import Replica
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.fake_log import FakeLog, FakePartition

FAIL = OnNewCheckpoint.FAIL
STATE = PreparedTxnState("7:3")
SINK, QUERY = "s", "q"


class LosingLog(FakeLog):
    """A log that loses acknowledgements on command."""

    def __init__(self, partition: FakePartition) -> None:
        super().__init__(partition)
        self.lost: list[bool] = []
        """For each of the next records: whether it was appended before its acknowledgement was lost."""

    def append(self, value: bytes) -> int:
        if not self.lost or isinstance(decoded(value), Mark):
            return super().append(value)
        if self.lost.pop(0):
            super().append(value)
        else:
            self._partition.late.append(value)
        raise CommitLogError("no acknowledgement", is_away=True)


class Surroundings:
    """A log, and two processes on it."""

    def __init__(self) -> None:
        self.partition = FakePartition()
        self.log = LosingLog(self.partition)
        self.store = TopicStore(self.log)
        self.store.create()
        self.other = TopicStore(FakeLog(self.partition))

    def batch(self, batch_id: int = 0) -> Decision:
        """Plan and prepare a batch."""
        generation = self.store.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL).generation
        lease = self.store.lease(SINK, generation, TaskIdentity(QUERY, batch_id, 0, 0, "h"))
        assert lease is not None
        self.store.mark_prepared(lease.attempt_id, Prepared(STATE, "m"), records=1)
        return Decision(SINK, QUERY, batch_id, generation, (lease.attempt_id,), 1, 0, False, "d")


@pytest.fixture
def here() -> Surroundings:
    return Surroundings()


# ---- acknowledgements ----------------------------------------------------------------------------------------


def test_a_decision_that_was_not_acknowledged_and_is_there(here: Surroundings) -> None:
    decision = here.batch()
    here.log.lost = [True]
    with pytest.raises(DecisionUnknownError, match="has not acknowledged"):
        here.store.decide(decision, FAIL)
    resolved = here.store.resolve(decision)
    assert resolved is not None
    assert [claim.attempt_id for claim in resolved.claims] == list(decision.winners)
    assert here.other.is_decided(SINK, QUERY, 0)


def test_a_decision_that_is_resolved_never_arrives(here: Surroundings) -> None:
    """The copy of the record arrives later, and does not count."""
    decision = here.batch()
    here.log.lost = [False]
    with pytest.raises(DecisionUnknownError):
        here.store.decide(decision, FAIL)
    assert here.store.resolve(decision) is None
    here.partition.deliver(0)
    assert not here.other.is_decided(SINK, QUERY, 0)
    assert [row.status for row in here.other.attempts(SINK)] == [AttemptStatus.PREPARED]
    assert here.store.decide(decision, FAIL).anew


def test_a_decision_that_arrives_before_it_is_resolved(here: Surroundings) -> None:
    decision = here.batch()
    here.log.lost = [False]
    with pytest.raises(DecisionUnknownError):
        here.store.decide(decision, FAIL)
    here.partition.deliver(0)
    assert here.store.resolve(decision) is not None


def test_an_unacknowledged_resolution_proves_nothing(here: Surroundings) -> None:
    decision = here.batch()
    here.log.lost = [False, False]
    with pytest.raises(DecisionUnknownError):
        here.store.decide(decision, FAIL)
    with pytest.raises(here.store.errors):
        here.store.resolve(decision)
    here.partition.deliver(0)
    assert here.store.resolve(decision) is not None


def test_a_replacement_that_was_not_acknowledged(here: Surroundings) -> None:
    decision = here.batch()
    here.store.decide(decision, FAIL)
    (winner,) = decision.winners
    anew = Prepared(PreparedTxnState("8:1"), "again")
    here.log.lost = [False]
    with pytest.raises(DecisionUnknownError, match="the row of the attempt will show"):
        here.store.replace(SINK, winner, STATE, anew)
    other = Prepared(PreparedTxnState("9:1"), "by another process")
    assert here.other.replace(SINK, winner, STATE, other)
    here.partition.deliver(0)
    assert not here.store.replace(SINK, winner, STATE, anew)


def test_a_lease_that_was_not_acknowledged_is_condemned_by_the_next_plan(here: Surroundings) -> None:
    generation = here.batch().generation
    here.log.lost = [False]
    with pytest.raises(here.store.errors):
        here.store.lease(SINK, generation, TaskIdentity(QUERY, 0, 1, 0, "h"))
    here.partition.deliver(0)
    assert [row.status for row in here.other.attempts(SINK)] == [AttemptStatus.PREPARED, AttemptStatus.OPEN]
    here.other.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL)
    assert {row.status for row in here.other.attempts(SINK)} == {AttemptStatus.ABORTING}


def test_a_lease_that_arrives_after_the_next_plan_does_not_count(here: Surroundings) -> None:
    generation = here.batch().generation
    here.log.lost = [False]
    with pytest.raises(here.store.errors):
        here.store.lease(SINK, generation, TaskIdentity(QUERY, 0, 1, 0, "h"))
    here.other.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL)
    here.partition.deliver(0)
    assert len(here.other.attempts(SINK)) == 1


def test_a_process_that_sleeps_before_its_record_is_sent(here: Surroundings) -> None:
    """The driver has computed a decision; another driver has planned before it is sent."""
    decision = here.batch()

    def another_plans() -> None:
        here.other.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL)

    with pytest.raises(SinkFencedError):
        here.store.decide(decision, FAIL, last=another_plans)
    assert here.other.batches(SINK) == []


def test_a_decision_sees_the_attempt_that_came_while_it_was_computed(here: Surroundings) -> None:
    decision = here.batch()
    calls: list[None] = []

    def a_task_begins() -> None:
        if not calls:
            here.other.lease(SINK, decision.generation, TaskIdentity(QUERY, 0, 1, 0, "h"))
        calls.append(None)

    decided = here.store.decide(decision, FAIL, last=a_task_begins)
    assert len(calls) == 2
    assert len(decided.claims) == 2
    assert {row.status for row in here.other.attempts(SINK)} == {AttemptStatus.COMMITTING, AttemptStatus.ABORTING}


def test_an_unreachable_log(here: Surroundings) -> None:
    decision = here.batch()
    here.log.away = 1
    with pytest.raises(SinkError, match=r"cannot be reached .*Spark replays it"):
        with unavailable_means(here.store, "Spark replays it"):
            here.store.is_decided(SINK, QUERY, 0)
    assert here.store.decide(decision, FAIL).anew


# ---- odd logs --------------------------------------------------------------------------------------------------


def test_a_truncated_log_is_read_anew(here: Surroundings, caplog: pytest.LogCaptureFixture) -> None:
    first = here.batch()
    before = here.partition.end
    here.store.decide(first, FAIL)
    here.partition.lose_end(here.partition.end - before)
    assert here.other.batches(SINK) == []
    here.other.condemn(SINK)
    with caplog.at_level(logging.WARNING):
        assert here.store.batches(SINK) == []
    assert {row.status for row in here.store.attempts(SINK)} == {AttemptStatus.ABORTING}


def test_a_record_at_the_same_offset_of_another_history_is_noticed(here: Surroundings) -> None:
    """The same record stands at the same offset again, behind different records."""
    here.batch()
    copy = here.partition.records[-1]
    here.partition.lose_end(3)
    here.other.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL)
    while here.partition.end < copy.offset:
        here.partition.append(encoded(Mark("m")))
    del here.partition.records[copy.offset - here.partition.start :]
    assert copy.value is not None
    here.partition.append(copy.value)
    fresh = TopicStore(FakeLog(here.partition))
    assert [row.generation for row in here.store.sinks()] == [row.generation for row in fresh.sinks()]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda partition: partition.records.pop(2), "has no record at offset 2: it was compacted"),
        (
            lambda partition: partition.delete_before(3),
            "begins at offset 3, and no snapshot covers the records before it",
        ),
    ],
    ids=["a hole", "no beginning"],
)
def test_a_log_that_was_cleaned_is_refused(
    here: Surroundings, change: Callable[[FakePartition], object], sentence: str
) -> None:
    here.batch()
    change(here.partition)
    for _ in range(2):
        with pytest.raises(SinkError, match=sentence):
            here.other.sinks()


def test_another_store_under_the_same_name_is_refused(here: Surroundings) -> None:
    decision = here.batch()
    anew = FakePartition()
    here.partition.records, here.partition.epoch = anew.records, 7
    with pytest.raises(DecisionUnknownError):
        here.store.decide(decision, FAIL)
    for call in (
        lambda: here.store.resolve(decision),
        lambda: here.store.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL),
    ):
        with pytest.raises(SinkError, match="was deleted and created again"):
            call()
    with pytest.raises(SinkError, match="init-store"):
        here.other.sinks()
    here.other.create()
    assert here.other.sinks() == []
    with pytest.raises(SinkError, match="was deleted and created again"):
        here.store.sinks()


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b'{"v":2,"kind":"mark","id":"a"}', b'{"v":1,"kind":"x"}'])
def test_a_record_of_another_format_is_refused_and_not_skipped(here: Surroundings, value: bytes | None) -> None:
    here.partition.append(value)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="does not know: a newer version, or another program"):
        here.store.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL)


def test_columns_of_a_newer_version_are_kept(here: Surroundings) -> None:
    decision = here.batch()
    with Replica(FakeLog(here.partition)).state() as unread:
        assert unread is None
    replica = Replica(FakeLog(here.partition))
    replica.refresh()
    with replica.state() as state:
        assert state is not None
        versions, store_id = dict(state.sink(SINK).versions), state.store_id
    document = {
        **{"v": 1, "kind": "update", "id": "newer", "store": store_id, "sink": SINK, "drop": []},
        **{"expects": {"gate": versions["gate"]}, "touches": ["gate"], "later": 1},
        "put": [["attempt", decision.winners[0], {"colour": "red"}, []]],
    }
    here.partition.append(json.dumps(document).encode())
    here.store.decide(decision, FAIL)
    replica.refresh()
    with replica.state() as state:
        assert state is not None
        row = state.sink(SINK).rows("attempt")[decision.winners[0]]
    assert (row["colour"], row["status"]) == ("red", "COMMITTING")


def test_an_update_that_could_count_twice_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="could count twice"):
        Update("a", "store", SINK, {"gate": None}, ("tasks",))


# ---- deleting ------------------------------------------------------------------------------------------------


def test_the_log_is_deleted_up_to_the_last_snapshot_but_one(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.store.topic.replica.SNAPSHOT_EVERY", 5)
    starts = []
    for batch_id in range(6):
        here.store.decide(here.batch(batch_id), FAIL)
        here.store.prune(SINK, 2)
        starts.append(here.partition.start)
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert 0 < starts[-1] < here.partition.end
    snapshots = [each for each in here.partition.records if isinstance(decoded(each.value), Snapshot)]
    assert len(snapshots) >= 2, "one may be lost with the end of the log"
    fresh = TopicStore(FakeLog(here.partition))
    assert fresh.batches(SINK) == here.store.batches(SINK)
    here.partition.lose_end(here.partition.end - snapshots[-1].offset)
    assert TopicStore(FakeLog(here.partition)).sinks()


def test_a_log_that_must_not_be_deleted_grows_with_a_warning(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spark_sink.store.topic.replica.SNAPSHOT_EVERY", 5)

    def refused(offset: int) -> None:
        raise CommitLogError("TOPIC_AUTHORIZATION_FAILED", is_away=False)

    monkeypatch.setattr(here.log, "delete_before", refused)
    for batch_id in range(5):
        here.store.decide(here.batch(batch_id), FAIL)
        here.store.prune(SINK, 2)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "grows, because old records cannot be deleted: TOPIC_AUTHORIZATION_FAILED" in warnings[0]
    assert here.partition.start == 0


def _move_on(here: Surroundings, offset: int) -> None:
    """Let another process write until all records before this offset are deleted."""
    while here.partition.start < offset:
        here.other.sinks()
        here.other.prune("neighbour", 2)


@pytest.mark.parametrize(("snapshots", "overtaken"), [(1, 0), (12, 0), (12, 3)])
def test_a_process_that_the_log_has_left_behind_goes_on(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch, snapshots: int, overtaken: int
) -> None:
    """A fast neighbour has deleted the records after which this process would read on, and goes on to."""
    monkeypatch.setattr("spark_sink.store.topic.replica.SNAPSHOT_EVERY", 5)
    monkeypatch.setattr("spark_sink.store.topic.replica._FIRST_LOOK", 4)
    decision, read = here.batch(), here.partition.end
    _move_on(here, read + 10 * snapshots)
    left = [here.partition.start + 1] * overtaken

    def slow_read(first: int, last: int) -> list[StoredRecord]:
        if left:
            _move_on(here, left.pop())
        return FakeLog.read(here.log, first, last)

    monkeypatch.setattr(here.log, "read", slow_read)
    assert here.store.decide(decision, FAIL).anew
    assert here.other.is_decided(SINK, QUERY, 0)


def test_without_the_right_to_delete_a_process_reads_from_a_snapshot_on(
    here: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.store.topic.replica.SNAPSHOT_EVERY", 20)
    monkeypatch.setattr("spark_sink.store.topic.replica._FIRST_LOOK", 2)
    monkeypatch.setattr(here.log, "delete_before", lambda offset: None)
    for batch_id in range(30):
        here.store.decide(here.batch(batch_id), FAIL)
        here.store.prune(SINK, 40)
    log = FakeLog(here.partition)
    read: list[int] = []

    def noted(first: int, last: int) -> list[StoredRecord]:
        read.append(first)
        return FakeLog.read(log, first, last)

    monkeypatch.setattr(log, "read", noted)
    assert TopicStore(log).batches(SINK) == here.store.batches(SINK)
    assert min(read) > 0
    assert here.partition.end - min(read) < 100 < here.partition.end


def test_an_update_that_is_too_long_is_refused_before_it_is_sent(here: Surroundings) -> None:
    decision = here.batch()
    here.log.longest = 50
    before = here.partition.end
    with pytest.raises(SinkError, match="too long"):
        here.store.decide(decision, FAIL)
    assert here.partition.end == before
