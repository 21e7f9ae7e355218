"""A decided batch that Kafka has aborted is published again, once; a batch that Kafka has committed never is."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from dualwrite.admin import TopicPartition, TransactionAdmin
from dualwrite.broker_emulator import Acl, AclFilter, AclOperation, DropReply, Error, Fault, ResourceType
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.client.records.late import ORIGINAL_TIMESTAMP
from dualwrite.decisions import republish
from dualwrite.errors import TransactionHangsError
from dualwrite.guarantee import Tier
from dualwrite.participant import ParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer
from spark_sink.driver.finisher import CommitSummary
from spark_sink.driver.recovery import Action
from spark_sink.errors import BatchLostError, SinkError, SinkOptionError, StoreWentBackError
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus, Prepared
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import BatchStatus
from tests.spark.applications import recovery
from tests.spark.kafka_world import TIERS
from tests.spark.repairs import BOUNDED, EIGHT_DAYS_MS, SCHEMA, RepairSite, Way, let_end, repair_site, ways_of
from tests.spark.sink_model import QUERY, Stalling, task
from tests.support.conditions import until

P: Final = PausePoint

OF_FINISH: Final = (P.AFTER_DECISION, P.AFTER_TAKE_OVER, P.BEFORE_COMPLETION, P.AMONG_COMPLETIONS, P.BEFORE_STATUSES)
OF_REPAIR: Final = range(1, 13)
"""The pause points of a process that completes one aborted transaction."""

every_tier = pytest.mark.parametrize("tier", TIERS, ids=lambda tier: f"tier {int(tier)}")
every_way = pytest.mark.parametrize(
    ("tier", "way"), [pytest.param(tier, way, id=f"{tier.name} {way.name}") for tier in TIERS for way in ways_of(tier)]
)
some_ways = pytest.mark.parametrize(
    ("tier", "way"),
    [
        pytest.param(tier, way, id=f"{tier.name} {way.name}")
        for tier in TIERS
        for way in ways_of(tier, Way.TIMEOUT, Way.OPERATOR, Way.INITIALISED)
    ],
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RepairSite]:
    """One tier, for tests where it makes no difference."""
    with repair_site(Tier.BOUNDED, tmp_path) as made:
        yield made


# ---- aborted against the decision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("via", ["commit", "plan", "finish"])
@every_way
def test_records_aborted_against_the_decision_are_published_again(
    tmp_path: Path, tier: Tier, way: Way, via: str
) -> None:
    with repair_site(tier, tmp_path) as site:
        site.write(0, "a", "b")
        committer = site.decided("c", "d", batch_id=1)
        let_end(site, way)
        assert site.committed() == ["a", "b"]
        if via == "commit":
            assert committer.go_on().error is None
            assert (committer.result.committed, committer.result.repaired) == (2, 2)
        elif via == "finish":
            summary = site.finish()
            assert (summary.committed, summary.repaired) == (2, 2)
        site.write(2, "e")
        site.assert_agreed("a", "b", "c", "d", "e")
        assert committer.go_on().error is None
        site.write(3, "f")
        site.assert_agreed("a", "b", "c", "d", "e", "f")


is_helped = pytest.mark.parametrize("is_helped", [True, False], ids=["another repairs it", "it repairs it itself"])


@pytest.mark.parametrize("at", OF_FINISH)
@is_helped
@some_ways
def test_a_finisher_that_sleeps_at_any_point(
    tmp_path: Path, tier: Tier, way: Way, is_helped: bool, at: PausePoint
) -> None:
    """Kafka aborts its open transactions; another finisher repairs them, or the sleeper when it goes on."""
    with repair_site(tier, tmp_path) as site:
        sleeper = site.decided("a", "b").until(at) if at is not P.AFTER_DECISION else site.decided("a", "b")
        let_end(site, way)
        expected = ["a", "b"]
        if is_helped:
            site.finish()
            site.assert_agreed(*expected)
            site.write(1, "c", "d")
            expected += ["c", "d"]
        assert sleeper.go_on().error is None
        site.assert_agreed(*expected)


@pytest.mark.parametrize("step", OF_REPAIR)
@every_tier
def test_a_repair_that_is_killed_at_any_step(tmp_path: Path, tier: Tier, step: int) -> None:
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        site.finishing().until(step).kill()
        site.finish()
        site.assert_agreed("a")
        assert committer.go_on().error is None
        site.write(1, "b")
        site.assert_agreed("a", "b")


@pytest.mark.parametrize("step", OF_REPAIR)
@is_helped
@some_ways
def test_a_repair_that_is_aborted_at_any_step(tmp_path: Path, tier: Tier, way: Way, is_helped: bool, step: int) -> None:
    """The repair is aborted too, and its own records are published again."""
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, way)
        repairing = site.finishing().until(step)
        let_end(site, way)
        if is_helped:
            site.finish()
            site.assert_agreed("a")
            site.write(1, "b")
        for sleeper in (repairing, committer):
            assert sleeper.go_on().error is None
        site.assert_agreed("a", *(["b"] if is_helped else []))


@pytest.mark.parametrize("first", OF_REPAIR)
@pytest.mark.parametrize("turns", [1, 2, 3])
@every_tier
def test_two_finishers_that_take_turns(tmp_path: Path, tier: Tier, first: int, turns: int) -> None:
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        one, other = site.finishing().until(first), site.finishing()
        while not (one.is_over and other.is_over):
            for each in (other, one):
                if not each.is_over:
                    each.until(turns)
        for each in (one, other):
            assert each.error is None or "could not be completed" in str(each.error), each.error
        site.finish()
        site.assert_agreed("a")
        assert committer.go_on().error is None
        site.write(1, "b")
        site.assert_agreed("a", "b")


# ---- committed, and forgotten ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [Way.INITIALISED, Way.USED, Way.EXPIRED])
@every_tier
def test_committed_records_are_never_published_again(tmp_path: Path, tier: Tier, way: Way) -> None:
    with repair_site(tier, tmp_path) as site:
        sleeper = site.decided("a", "b").until(P.BEFORE_STATUSES)
        site.world.settle()
        let_end(site, way)
        summary = site.finish()
        assert (summary.committed, summary.repaired) == (2, 0)
        site.assert_agreed("a", "b")
        assert sleeper.go_on().error is None
        site.write(1, "c")
        site.assert_agreed("a", "b", "c")


@pytest.mark.parametrize("way", [Way.INITIALISED, Way.USED, Way.EXPIRED])
@every_tier
def test_repaired_records_are_never_published_again(tmp_path: Path, tier: Tier, way: Way) -> None:
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        repairing = site.finishing().until(P.BEFORE_STATUSES)
        site.world.settle()
        let_end(site, way)
        summary = site.finish()
        assert (summary.committed, summary.repaired) == (1, 0)
        for sleeper in (repairing, committer):
            assert sleeper.go_on().error is None
        site.assert_agreed("a")


class Leftover(StrEnum):
    BY_PAIR = "the next plan commits it by its pair"
    OPEN = "its pair is refused once"
    RECOVERED = "recovery commits it"


@pytest.mark.parametrize("leftover", Leftover)
@every_tier
def test_a_leftover_that_an_operator_has_aborted_in_a_partition_is_repaired_there(
    tmp_path: Path, tier: Tier, leftover: Leftover
) -> None:
    """Its coordinator knows nothing of that, and confirms the commit."""
    with (
        repair_site(tier, tmp_path) as site,
        TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin,
    ):
        site.writing_to_both(0, "a", "b").until(P.AFTER_DECISION).kill()
        admin.abort_transaction(TopicPartition("orders", 0), start_offset=0)
        if leftover is Leftover.OPEN:
            site.world.faults.add(Fault(api="EndTxn", action=Error("INVALID_TXN_STATE")))
        if leftover is Leftover.RECOVERED:
            (found,) = recovery(site.store, admin, site.emulator.bootstrap_servers, sink_ids=["s"]).recover().found
            assert (found.action, found.changed) == (Action.REPAIR, True)
        else:
            assert site.finish().repaired == 1
        site.assert_agreed("a", "b")


@every_tier
def test_a_leftover_without_a_marker_counts_as_committed_and_is_reported(
    tmp_path: Path, tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        repair_site(tier, tmp_path) as site,
        TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin,
    ):
        site.writing_to_both(0, "a", "b").until(P.AFTER_DECISION).kill()
        lost = Fault(api="WriteTxnMarkers", action=Error("unsupported_version"), topic="orders", partition=0)
        site.world.faults.add(lost)
        assert (site.finish().committed, site.attempts(*LIVE)) == (1, [])
        assert site.committed() == ["b"]
        assert "`dualwrite spark recover` shows if it hangs" in caplog.text
        site.world.faults.clear()
        caplog.clear()
        assert isinstance(site.writing_to_both(1, "c", "d").go_on().error, TransactionHangsError)
        assert [record.levelname for record in caplog.records if "can only be aborted" in record.message] == ["ERROR"]
        (pair,) = {each.prepared_state for each in site.attempts(AttemptStatus.COMMITTED)}
        recovering = recovery(site.store, admin, site.emulator.bootstrap_servers, sink_ids=["s"])
        report = recovering.recover()
        (hanging,) = report.hanging
        command = f"dualwrite transactions commit --topic orders --partition 0 --prepared-state {pair}"
        assert f"commit it: `{command}`" in hanging
        assert not report.is_clean
        admin.commit_transaction(TopicPartition("orders", 0), PreparedTxnState(pair))
        assert recovering.recover().hanging == ()
        assert site.committed() == ["a", "b"]


@pytest.mark.parametrize("uses_the_id", [False, True])
@every_tier
def test_repaired_records_are_not_published_again_for_a_restored_store(
    tmp_path: Path, tier: Tier, uses_the_id: bool
) -> None:
    with repair_site(tier, tmp_path) as site:
        site.decided("a")
        let_end(site, Way.OPERATOR)
        site.world.settle()
        backup = site.backup()
        assert site.finish().repaired == 1
        site.world.settle()
        site.restore(backup)
        if uses_the_id:
            let_end(site, Way.INITIALISED)
        summary = site.finish()
        assert (summary.committed, summary.repaired) == (1, 0)
        site.assert_agreed("a")


@pytest.mark.parametrize(
    ("reached", "comes_back"),
    [(P.AFTER_DECISION, False), (P.AMONG_COMPLETIONS, True)],
    ids=["acknowledged", "the newer store comes back"],
)
@every_tier
def test_a_decided_batch_that_a_restored_store_does_not_know_is_not_aborted(
    tmp_path: Path, tier: Tier, reached: PausePoint, comes_back: bool
) -> None:
    with repair_site(tier, tmp_path) as site:
        first = site.decided("a", "b")
        backup = site.backup()
        assert first.go_on().error is None
        site.writing(1, "c", "d").until(reached).kill()
        newer, opened = site.backup(), site.world.open_ids()
        site.restore(backup)
        for _ in range(2):
            with pytest.raises(StoreWentBackError, match=r"which Kafka has committed.*bring the newer"):
                site.write(1, "c", "d")
        assert site.world.open_ids() == opened
        if comes_back:
            site.restore(newer)
            site.finish()
            site.assert_agreed("a", "b", "c", "d")
        else:
            assert site.store.acknowledge_lost("s", QUERY, 0)
            site.write(1, "c", "d")
            assert site.world.open_ids() == opened, "the newer store may have decided them"
            assert {batch.status for batch in site.store.batches("s")} == {BatchStatus.DONE}


def _repaired_by_another_id(site: RepairSite, rows: pa.RecordBatch) -> None:
    """Let Kafka abort a decided batch, repair it under a new producer id, and let the store go back to before."""

    def write(me: Stalling) -> CommitSummary:
        sink = site.sink(me.reach, topic=None)
        plan = sink.plan(rows.schema, query_id=QUERY)
        return sink.commit([sink.write(plan, task(0, 0), iter([rows]))], query_id=QUERY, batch_id=0, offsets_digest="i")

    Stalling(write).until(P.AFTER_DECISION).kill()
    let_end(site, Way.EXPIRED)
    backup = site.backup()
    assert site.finish().repaired == 1
    site.world.settle()
    site.restore(backup)


@pytest.mark.parametrize("topics", [["orders", "stamped", "stamped"], ["orders", "orders", "stamped"]])
@every_tier
def test_a_repair_under_another_producer_id_is_found_although_a_topic_has_the_broker_s_time(
    tmp_path: Path, tier: Tier, topics: list[str]
) -> None:
    partitions = pa.array([0, 0, 0], pa.int32())
    rows = pa.record_batch({"topic": topics, "value": ["a", "b", "c"], "partition": partitions})
    with repair_site(tier, tmp_path) as site:
        site.emulator.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})
        _repaired_by_another_id(site, rows)
        assert site.finish().repaired == 0
        assert site.committed() + site.world.committed("stamped") == ["a", "b", "c"]


def _twins(site: RepairSite, me: Stalling) -> CommitSummary:
    """Write a batch of two tasks with an equal record, whose partition the key chooses; the second task is first."""
    sink = site.sink(me.reach)
    plan = sink.plan(SCHEMA, query_id=QUERY)
    rows = pa.record_batch({"key": ["k"], "value": ["a"]})
    results = [sink.write(plan, task(0, number), iter([rows])) for number in (1, 0)]
    return sink.commit(results, query_id=QUERY, batch_id=0, offsets_digest="input")


@some_ways
def test_the_equal_record_of_another_task_is_no_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: Tier, way: Way
) -> None:
    """Written in the same millisecond; one of the two is committed, and the other one aborted without a trace."""
    with repair_site(tier, tmp_path) as site:
        now_ns = time.time_ns()
        with monkeypatch.context() as frozen:
            frozen.setattr(time, "time_ns", lambda: now_ns)
            Stalling(lambda me: _twins(site, me)).until(P.AMONG_COMPLETIONS).kill()
        let_end(site, way)
        let_end(site, Way.EXPIRED)
        assert site.committed() == ["a"]
        assert site.finish().repaired == 1
        site.assert_agreed("a", "a")


@every_tier
def test_the_equal_record_of_another_program_is_no_repair_without_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    rows = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([0, 1, 1], pa.int32())})
    with repair_site(tier, tmp_path) as site:
        sink = site.sink(pause=_after_decision(lambda: _written_elsewhere(site, now_ns // 1_000_000)))
        plan = sink.plan(rows.schema, query_id=QUERY)
        result = sink.write(plan, task(0, 0), iter([rows]))
        assert sink.commit([result], query_id=QUERY, batch_id=0, offsets_digest="input").repaired == 1
        assert site.committed() == ["a", "a", "b", "c"]


def _written_elsewhere(site: RepairSite, timestamp_ms: int) -> None:
    let_end(site, Way.INITIALISED)
    with Producer(bootstrap_servers=site.emulator.bootstrap_servers, transactional_id="another") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", "a", partition=0, timestamp_ms=timestamp_ms)


# ---- contents of repairs --------------------------------------------------------------------------------------------


def contents_of(site: RepairSite, *, read_committed: bool) -> list[list[Any]]:
    """Return all of a record but its offset, by partition."""
    records = site.emulator.records
    found = [records("orders", partition, read_committed=read_committed) for partition in (0, 1)]
    return [[record._replace(offset=0) for record in of_partition] for of_partition in found]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@every_tier
def test_every_byte_is_the_same(tmp_path: Path, tier: Tier, compression: str, caplog: pytest.LogCaptureFixture) -> None:
    rows = pa.record_batch(
        {
            "key": [b"\x00\xff", None, b"k"],
            "value": [b"v1", b"", None],
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "partition": pa.array([1, 0, 1], pa.int32()),
        }
    )
    with repair_site(tier, tmp_path) as site:
        options: dict[str, Any] = {"includeHeaders": "true", "kafka__compression__type": compression}
        sink = site.sink(pause=_after_decision(lambda: let_end(site, Way.OPERATOR)), **options)
        plan = sink.plan(rows.schema, query_id=QUERY)
        result = sink.write(plan, task(0, 0), iter([rows]))
        written = contents_of(site, read_committed=False)
        with caplog.at_level(logging.WARNING, logger="spark_sink"):
            sink.commit([result], query_id=QUERY, batch_id=0, offsets_digest="input")
        site.world.settle()
        assert [len(of_partition) for of_partition in written] == [1, 2]
        assert contents_of(site, read_committed=True) == written
        (attempt,) = site.attempts()
        (said,) = [record.getMessage() for record in caplog.records if "published again" in record.getMessage()]
        assert "transactional id s-0-0: Kafka had aborted " in said
        assert (
            f"its 3 records (orders-0: 0 to 0, orders-1: 0 to 1) are published again as {attempt.prepared_state} "
            in said
        )
        assert "(orders-0: 2 to 2, orders-1: 3 to 4)" in said


def _after_decision(happens: Callable[[], object]) -> Callable[[PausePoint], None]:
    def pause(point: PausePoint) -> None:
        if point is P.AFTER_DECISION:
            happens()

    return pause


@every_tier
def test_rows_that_are_too_old_for_the_topic_get_a_new_timestamp(
    tmp_path: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock(int(time.time() * 1000))
    monkeypatch.setattr(republish, "time", SimpleNamespace(time=lambda: clock.now_ms() / 1000))
    with repair_site(tier, tmp_path, clock=clock) as site:
        site.decided("a", "b")
        let_end(site, Way.OPERATOR)
        site.world.emulator.advance_clock(2 * 3_600_000)
        site.world.emulator.set_config({"message.timestamp.before.max.ms": "3600000"}, topic="orders")
        site.finish()
        site.assert_agreed("a", "b")
        headers = [record.headers for record in site.world.emulator.records("orders")]
        assert [[header.key for header in each] for each in headers] == [[ORIGINAL_TIMESTAMP]] * 2


def test_many_records_in_many_batches(site: RepairSite) -> None:
    abort = _after_decision(lambda: let_end(site, Way.TIMEOUT))
    sink = site.sink(pause=abort, kafka__batch__size="1000", kafka__buffer__memory="40000")
    plan = sink.plan(pa.schema([("value", pa.string())]), query_id=QUERY)
    values = [f"{number:04}" + 100 * "x" for number in range(3000)]
    result = sink.write(plan, task(0, 0), iter([pa.record_batch({"value": values})]))
    sink.commit([result], query_id=QUERY, batch_id=0, offsets_digest="input")
    site.assert_agreed(*values)


def test_a_record_of_a_process_with_a_larger_limit(site: RepairSite) -> None:
    site.decided("x" * 300)
    let_end(site, Way.TIMEOUT)
    site.sink(kafka__max__request__size="300").finish()
    site.assert_agreed("x" * 300)


def test_a_broker_without_the_offsets_of_repeated_records(site: RepairSite) -> None:
    """A repetition is acknowledged as a duplicate, without an offset if the broker has restarted since."""
    committer = site.decided("a")
    let_end(site, Way.TIMEOUT)
    site.world.faults.add(Fault(api="Produce", action=DropReply(), client_id="sink"))
    site.finish()
    assert committer.go_on().error is None
    site.assert_agreed("a")


# ---- the row decides ------------------------------------------------------------------------------------------------


class LosingStore(CommitStore):
    """A store whose response to `replace` is lost."""

    def __init__(self, engine: sa.Engine, *, applied: bool) -> None:
        super().__init__(engine)
        self._applied = applied
        self.losses = 0

    def replace(self, sink_id: str, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        if self.losses:
            return super().replace(sink_id, attempt_id, old, new)
        self.losses += 1
        if self._applied:
            super().replace(sink_id, attempt_id, old, new)
        raise OperationalError("COMMIT", {}, Exception("the connection was lost"))


@pytest.mark.parametrize("applied", [True, False])
@every_tier
def test_the_answer_to_the_replacement_is_lost(tmp_path: Path, tier: Tier, applied: bool) -> None:
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        site.store = losing = LosingStore(site.engine, applied=applied)
        with pytest.raises(SinkError, match="the connection was lost"):
            site.sink(commit__retries=0).finish()
        assert site.committed() == []
        assert site.world.open_ids() == ["s-0-0"], "neither committed nor aborted"
        assert site.finish().committed == 1
        assert losing.losses == 1
        assert committer.go_on().error is None
        site.assert_agreed("a")


@pytest.mark.parametrize("is_leased_again", [True, False], ids=["leased again", "not used since"])
@pytest.mark.parametrize("step", OF_REPAIR)
@every_tier
def test_an_operator_marks_the_batch_lost_during_a_repair(
    tmp_path: Path, tier: Tier, step: int, is_leased_again: bool
) -> None:
    """Either it is lost, and nothing becomes visible, or it is repaired, and nothing is marked."""
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        judged = site.pairs()
        repairing = site.finishing().until(step)
        lost = site.store.mark_lost("s", judged, "by hand")
        if lost and is_leased_again:
            assert site.store.acknowledge_lost("s", QUERY, 0)
            site.write(1, "sent by other means")
        for sleeper in (repairing, committer):
            sleeper.go_on()
        if lost and not is_leased_again:
            assert site.committed() == []
            assert site.store.acknowledge_lost("s", QUERY, 0)
            site.write(1, "sent by other means")
        if not lost:
            site.finish()
        site.write(2, "b")
        assert site.committed() == (["b", "sent by other means"] if lost else ["a", "b"])
        assert bool(lost) is (step <= 9)  # the tenth point is behind the replacement


def test_a_verdict_about_a_pair_that_was_replaced_is_not_recorded(site: RepairSite) -> None:
    """A finisher without a manifest finds the loss, sleeps, and another one has repaired since."""
    committer = site.decided("a")
    let_end(site, Way.TIMEOUT)
    manifests = _manifests(site)
    _set_manifests(site, dict.fromkeys(manifests))
    sleeper = site.finishing().until(P.BEFORE_STATUSES)
    _set_manifests(site, manifests)
    site.finishing().until(P.AFTER_REPLACEMENT).kill()
    assert sleeper.go_on().error is None, "it finds that another pair is in the row now, and completes that"
    assert committer.go_on().error is None
    site.assert_agreed("a")


@every_tier
def test_a_description_older_than_the_row_decides_nothing(tmp_path: Path, tier: Tier) -> None:
    """A sleeping finisher took over before the row's transaction began, so Kafka would seem to have lost that one.

    There is no manifest by which the log could contradict.
    """
    with repair_site(tier, tmp_path) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        old = site.finishing().until(P.AFTER_TAKE_OVER)
        site.finishing().until(P.AFTER_REPLACEMENT).kill()
        _set_manifests(site, dict.fromkeys(_manifests(site)))
        assert old.go_on().error is None
        assert committer.go_on().error is None
        site.assert_agreed("a")


def _manifests(site: RepairSite) -> dict[str, str | None]:
    with site.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT attempt_id, manifest FROM dw_attempt"))
        return {row.attempt_id: row.manifest for row in rows}


def _set_manifests(site: RepairSite, manifests: dict[str, str | None]) -> None:
    with site.engine.begin() as connection:
        for attempt_id, manifest in manifests.items():
            connection.execute(
                sa.text("UPDATE dw_attempt SET manifest = :manifest WHERE attempt_id = :attempt_id"),
                {"manifest": manifest, "attempt_id": attempt_id},
            )


# ---- aborted before the decision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: f"tier {int(tier)}")
@pytest.mark.parametrize("mode", ["auto", "resume"])
def test_a_batch_that_takes_longer_than_the_timeout_is_not_decided(tmp_path: Path, tier: Tier, mode: str) -> None:
    """Three waves of tasks; the first has prepared long before the last."""
    with repair_site(tier, tmp_path) as site:
        sink = site.sink(txn__mode=mode)
        plan = sink.plan(SCHEMA, query_id=QUERY)
        results = []
        for number, value in enumerate("abc"):
            let_end(site, Way.TIMEOUT)
            rows = pa.record_batch({"key": [value], "value": [value]})
            results.append(sink.write(plan, task(0, number), iter([rows])))
        with pytest.raises(SinkError, match=r"2 of its 3 transactions \(s-0-0, s-1-0\).*make txn\.timeoutMs longer"):
            sink.commit(results, query_id=QUERY, batch_id=0, offsets_digest="input")
        sink.abort(results, query_id=QUERY, batch_id=0)
        assert site.store.batches("s") == []
        site.write(0, "a", "b", "c", txn__mode=mode)
        site.assert_agreed("a", "b", "c")


# ---- failed repairs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", [Tier.STORED_PAIR, *BOUNDED], ids=lambda tier: f"tier {int(tier)}")
def test_an_abort_at_a_later_epoch_is_not_taken_for_a_commit(tmp_path: Path, tier: Tier) -> None:
    """The id is in the state that an InitProducerId leaves; without a manifest, the transaction is unknown."""
    with repair_site(tier, tmp_path) as site:
        site.decided("a")
        (transactional_id,) = site.world.open_ids()
        with Producer(bootstrap_servers=site.emulator.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", "another program's")
            producer.flush()
            producer.abort_transaction()
        site.world.settle()
        _set_manifests(site, dict.fromkeys(_manifests(site)))
        with pytest.raises(BatchLostError, match="nothing proves that"):
            site.finish()
        assert [attempt.status for attempt in site.attempts()] == [AttemptStatus.LOST]


def test_without_a_manifest_the_attempt_is_lost(site: RepairSite) -> None:
    site.decided("a", "b")
    let_end(site, Way.TIMEOUT)
    _set_manifests(site, dict.fromkeys(_manifests(site)))
    advice = f"run `dualwrite spark acknowledge-lost --sink s --query {QUERY} --batch 0`"
    with pytest.raises(BatchLostError, match=r"could not be published again|cannot be published again") as lost:
        site.finish()
    assert str(lost.value).endswith(advice)
    assert "dualwrite recover" not in str(lost.value), "that command is for the writers of dual writes"
    assert [attempt.status for attempt in site.attempts()] == [AttemptStatus.LOST] * 2
    with pytest.raises(BatchLostError, match=re.escape(advice)):
        site.write(1, "c")


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR], ids=lambda tier: f"tier {int(tier)}")
def test_without_manifest_and_trace_an_attempt_counts_as_committed_where_nothing_times_out(
    tmp_path: Path, tier: Tier, caplog: pytest.LogCaptureFixture
) -> None:
    with repair_site(tier, tmp_path) as site:
        sleeper = site.decided("a").until(P.BEFORE_STATUSES)
        let_end(site, Way.INITIALISED)
        _set_manifests(site, dict.fromkeys(_manifests(site)))
        site.finish()
        assert "can no longer prove that Kafka committed" in caplog.text
        assert sleeper.go_on().error is None
        site.assert_agreed("a")


@every_tier
def test_records_that_are_gone_are_lost_with_the_facts(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path) as site:
        site.decided("a")
        assert len(site.world.open_ids()) == 1
        let_end(site, Way.OPERATOR)
        site.delete_records(0, 1)
        with pytest.raises(BatchLostError, match="aborted"):
            raise AssertionError(f"finished as {site.finish()}, with {site.emulator.transactions()}")
        assert [batch.status for batch in site.store.batches("s")] == [BatchStatus.LOST]
        assert site.world.open_ids() == []


def test_a_manifest_that_cannot_be_read_is_an_error_and_no_loss(site: RepairSite) -> None:
    site.decided("a")
    let_end(site, Way.TIMEOUT)
    manifests = _manifests(site)
    _set_manifests(site, dict.fromkeys(manifests, "{"))
    with pytest.raises(SinkError, match=r"the row of attempt [0-9a-f]+ cannot be used"):
        site.finish()
    _set_manifests(site, manifests)
    assert site.finish().repaired == 1
    site.assert_agreed("a")


ALLOWED: Final = [
    Acl.allow("User:*", AclOperation.ALL, kind, "*" if kind is not ResourceType.CLUSTER else "kafka-cluster")
    for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
]
NOT_READABLE: Final = Acl.deny("User:ANONYMOUS", AclOperation.READ, ResourceType.TOPIC, "orders")
DENIALS: Final = AclFilter(operation=AclOperation.READ)


@every_tier
def test_without_read_nothing_is_lost_and_the_error_names_the_right(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path, acls=ALLOWED) as site:
        committer = site.decided("a")
        let_end(site, Way.OPERATOR)
        site.emulator.add_acls(NOT_READABLE)
        for call in (site.finish, lambda: site.write(1, "b")):
            with pytest.raises(SinkError, match="grant READ on the topic") as raised:
                call()
            assert not isinstance(raised.value, BatchLostError)
        assert len(site.attempts(AttemptStatus.COMMITTING)) == 1
        site.emulator.remove_acls(DENIALS)
        site.write(1, "b")
        assert committer.go_on().error is None
        site.assert_agreed("a", "b")


@every_tier
def test_without_read_an_attempt_committed_by_its_coordinator_is_done(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path, acls=ALLOWED) as site:
        site.decided("a").until(P.BEFORE_STATUSES).kill()
        site.world.settle()
        site.emulator.add_acls(NOT_READABLE)
        assert site.finish().committed == 1
        site.emulator.remove_acls(DENIALS)
        site.assert_agreed("a")


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
@every_tier
def test_without_read_an_unproven_attempt_waits_for_the_right(tmp_path: Path, tier: Tier, is_committed: bool) -> None:
    with repair_site(tier, tmp_path, acls=ALLOWED) as site:
        site.decided("a").until(P.BEFORE_STATUSES if is_committed else 1).kill()
        let_end(site, Way.INITIALISED)
        site.emulator.add_acls(NOT_READABLE)
        for _ in range(2):
            with pytest.raises(SinkError, match="grant READ on the topic"):
                site.finish()
        assert len(site.attempts(AttemptStatus.COMMITTING)) == 1
        site.emulator.remove_acls(DENIALS)
        assert site.committed() == (["a"] if is_committed else [])
        assert site.finish().repaired == (0 if is_committed else 1)
        site.assert_agreed("a")


def _repair_that_was_killed(site: RepairSite) -> None:
    """Leave a repair open that no row names."""
    site.decided("a")
    let_end(site, Way.OPERATOR)
    site.finishing().until(P.BEFORE_REPLACEMENT).kill()


@every_tier
def test_without_read_the_repair_of_a_killed_process_stays_open(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path, acls=ALLOWED) as site:
        _repair_that_was_killed(site)
        site.emulator.add_acls(NOT_READABLE)
        with pytest.raises(SinkError, match="grant READ on the topic"):
            site.finish()
        site.emulator.remove_acls(DENIALS)
        assert (site.committed(), site.world.open_ids()) == ([], ["s-0-0"])
        assert site.finish().repaired == 1
        site.assert_agreed("a")


@every_tier
def test_the_repair_of_a_killed_process_is_kept_once_the_records_it_repairs_are_gone(
    tmp_path: Path, tier: Tier
) -> None:
    """Neither committed nor aborted: it has the only copy of the records, and no row says that it is decided."""
    with repair_site(tier, tmp_path) as site:
        _repair_that_was_killed(site)
        site.delete_first(2)
        for _ in range(2):
            with pytest.raises(SinkError, match=r"is open under the id.*end it with .dualwrite transactions"):
                site.finish()
        assert (site.committed(), site.world.open_ids()) == ([], ["s-0-0"])
        assert len(site.attempts(AttemptStatus.COMMITTING)) == 1
        let_end(site, Way.OPERATOR)
        with pytest.raises(BatchLostError, match="nothing proves"):
            site.finish()
        assert (site.committed(), site.world.open_ids()) == ([], [])


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: f"tier {int(tier)}")
def test_an_attempt_possibly_aborted_by_a_timeout_is_lost_once_the_proof_is_gone(
    tmp_path: Path, tier: Tier, has_manifest: bool
) -> None:
    """The application is down for longer than the id and the records are kept."""
    with repair_site(tier, tmp_path) as site:
        site.decided("a")
        let_end(site, Way.TIMEOUT)
        site.emulator.advance_clock(EIGHT_DAYS_MS)
        until(lambda: not site.emulator.transactions())
        if has_manifest:
            site.delete_records(0, 1)
        else:
            _set_manifests(site, dict.fromkeys(_manifests(site)))
        with pytest.raises(BatchLostError, match=r"nothing proves.*acknowledge-lost"):
            site.finish()
        assert [attempt.status for attempt in site.attempts()] == [AttemptStatus.LOST]
        assert (site.committed(), site.store.batches("s")[0].status) == ([], BatchStatus.LOST)


def test_a_log_that_cannot_be_read_now_is_read_again_later(site: RepairSite, monkeypatch: pytest.MonkeyPatch) -> None:
    async def judged_soon(producer: Any, row: Any, text: str, timeout_ms: int, others: Any) -> republish.Judgement:
        return await judge(producer, row, text, 300, others)

    judge = republish.judge
    site.decided("a")
    let_end(site, Way.TIMEOUT)
    refusal = site.world.faults.add(Fault(api="Fetch", action=Error("KAFKA_STORAGE_ERROR"), count=None))
    with monkeypatch.context() as short, pytest.raises(SinkError, match=r"not known within kafka\.max\.block\.ms="):
        short.setattr("spark_sink.driver.completion.judge", judged_soon)  # only the log waits in vain
        site.sink(commit__retries=0).finish()
    assert len(site.attempts(AttemptStatus.COMMITTING)) == 1
    refusal.remove()
    assert site.finish().repaired == 1
    site.assert_agreed("a")


# ---- txn.mode=auto on tiers 3 and 4 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: f"tier {int(tier)}")
def test_a_topic_that_cannot_be_repaired_is_refused_before_its_records_count(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path, acls=ALLOWED) as site:
        site.emulator.add_acls(NOT_READABLE)
        with pytest.raises(SinkOptionError, match=r"txn\.mode=auto: .*no READ.*txn\.mode=resume"):
            site.write(0, "a")
        site.emulator.remove_acls(DENIALS)
        site.emulator.set_config({"cleanup.policy": "compact,delete"}, topic="orders")
        with pytest.raises(SinkOptionError, match=r"cleanup\.policy is 'compact,delete'.*txn\.mode=resume") as raised:
            site.write(0, "a")
        assert "Outbox()" not in str(raised.value)
        site.write(0, "a", txn__mode="resume")
        site.emulator.set_config({"cleanup.policy": "delete"}, topic="orders")
        site.write(1, "b")
        site.assert_agreed("a", "b")


@pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: f"tier {int(tier)}")
def test_a_topic_that_the_first_record_creates_is_checked_then(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path) as site:
        site.emulator.set_config({"log.cleanup.policy": "compact"})
        with pytest.raises(SinkOptionError, match="In topic 'new' that cannot work"):
            site.write(0, "a", topic="new")
        site.finish()
        assert site.world.open_ids() == []
        assert site.world.committed("new") == []


@pytest.mark.parametrize(
    ("manifest", "says"),
    [(None, "without their offsets.*Spark may try again"), ("", "fewer partitions.*txn.mode=resume")],
    ids=["not known", "too long"],
)
def test_an_attempt_without_a_manifest_is_refused_where_it_could_not_be_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str | None, says: str
) -> None:
    for tier in Tier:
        (tmp_path / str(tier)).mkdir()
        with repair_site(tier, tmp_path / str(tier)) as site, monkeypatch.context() as patched:
            patched.setattr(ParticipantProducer, "manifest", property(lambda producer: manifest))
            if tier in BOUNDED:
                with pytest.raises(SinkError, match=says):
                    site.write(0, "a")
                assert site.committed() == []
                site.write(0, "a", txn__mode="resume")
            else:
                site.write(0, "a")
            site.assert_agreed("a")


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR], ids=lambda tier: f"tier {int(tier)}")
def test_where_nothing_times_out_no_topic_is_checked(tmp_path: Path, tier: Tier) -> None:
    with repair_site(tier, tmp_path) as site:
        site.emulator.set_config({"cleanup.policy": "compact"}, topic="orders")
        site.world.faults.add(Fault(api="DescribeConfigs", action=Error("UNKNOWN_SERVER_ERROR"), count=None))
        site.write(0, "a")
        site.assert_agreed("a")


# ---- recovery without the application -------------------------------------------------------------------------------


@every_way
def test_recovery_lists_the_repairs_and_makes_them(tmp_path: Path, tier: Tier, way: Way) -> None:
    with (
        repair_site(tier, tmp_path) as site,
        TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin,
    ):
        site.decided("a", "b").until(P.AMONG_COMPLETIONS).kill()
        let_end(site, way)
        before = (site.emulator.transactions(), site.attempts(), site.pairs())
        dry = recovery(site.store, admin, site.emulator.bootstrap_servers, sink_ids=["s"]).plan()
        assert {(found.transactional_id, found.action, found.changed) for found in dry.found} == {
            ("s-0-0", Action.COMMIT, False),
            ("s-1-0", Action.REPAIR, False),
        }
        assert (site.emulator.transactions(), site.attempts(), site.pairs()) == before
        done = recovery(site.store, admin, site.emulator.bootstrap_servers, sink_ids=["s"]).recover()
        assert {(found.transactional_id, found.action, found.changed) for found in done.found} == {
            ("s-0-0", Action.COMMIT, True),
            ("s-1-0", Action.REPAIR, True),
        }
        assert done.is_clean
        site.assert_agreed("a", "b")
