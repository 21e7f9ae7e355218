"""Recovery without the application: after its death at each step, beside it, and without a row in the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault, Profile, VirtualClock
from dualwrite.errors import AnotherClusterError
from dualwrite.producer import Producer
from spark_sink.driver.recovery import Action, RecoveryReport, SinkRecovery
from spark_sink.errors import AttemptCondemnedError, BatchLostError
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import BatchStatus
from tests.spark.applications import ApplicationWorld, recovery
from tests.support.conditions import until
from tests.support.databases import Database, unique
from tests.support.topics import read_topic

P, A = PausePoint, Action

FORGET = "`dualwrite spark acknowledge-lost --sink s --query query --batch 0 --forget-cluster gone`"

UNDECIDED = (P.AFTER_LEASE, P.AFTER_INIT, P.AFTER_SEND, P.AFTER_PREPARE, P.AFTER_PREPARED, P.COMMIT_START)
DECIDED = (P.AFTER_DECISION, P.AFTER_TAKE_OVER, P.BEFORE_COMPLETION, P.AMONG_COMPLETIONS, P.BEFORE_STATUSES)


class World(ApplicationWorld):
    """Applications with recovery."""

    def __init__(self, engine: sa.Engine, emulator: Emulator) -> None:
        topic = unique("topic")
        emulator.create_topic(topic, 2)
        super().__init__(engine, emulator.bootstrap_servers, topic)
        self.emulator = emulator
        self._admin = TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers)

    def recovery(self, **options: Any) -> SinkRecovery:
        return recovery(self.store, self._admin, self.bootstrap_servers, **options)

    def values(self) -> list[str]:
        return sorted(value for _, value in read_topic(self.bootstrap_servers, self.topic))

    def open_ids(self) -> list[str]:
        states = ("Ongoing", "PrepareCommit", "PrepareAbort")
        return sorted(t.transactional_id for t in self.emulator.transactions() if t.state in states)

    def statuses(self, sink_id: str) -> list[AttemptStatus]:
        return sorted({attempt.status for attempt in self.store.attempts(sink_id)})

    def move_to(self, cluster_id: str) -> None:
        """Let the rows name another cluster: another one than theirs responds."""
        here = self._admin.describe_cluster().cluster_id
        with self.engine.begin() as connection:
            moved = sa.text("UPDATE dw_attempt SET manifest = replace(manifest, :here, :there)")
            connection.execute(moved, {"here": here, "there": cluster_id})

    def close(self) -> None:
        self._admin.close()


@pytest.fixture
def world(database: Database, emulator: Emulator) -> Iterator[World]:
    made = World(sa.create_engine(database.url), emulator)
    yield made
    made.close()
    made.engine.dispose()


@pytest.fixture
def sqlite_world(emulator: Emulator, tmp_path: Any) -> Iterator[World]:
    made = World(sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}"), emulator)
    yield made
    made.close()
    made.engine.dispose()


def actions(report: RecoveryReport) -> set[tuple[Action, bool]]:
    return {(found.action, found.changed) for found in report.found}


def said(report: RecoveryReport) -> list[tuple[Action, bool, str | None, str | None]]:
    return [(found.action, found.changed, found.error, found.advice) for found in report.found]


# ---- after a death ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", DECIDED)
def test_a_decided_attempt_is_committed(sqlite_world: World, point: PausePoint) -> None:
    world = sqlite_world
    world.write("s", 0, [["a", "b"], ["c"]], die_at=point)
    before = (world.emulator.transactions(), world.store.attempts("s"))
    planned = world.recovery().plan()
    assert (world.emulator.transactions(), world.store.attempts("s")) == before
    assert actions(planned) == {(A.COMMIT, False)}
    assert not planned.is_clean
    done = world.recovery().recover()
    assert actions(done) == {(A.COMMIT, True)}
    assert done.is_clean
    assert (world.values(), world.open_ids()) == (["a", "b", "c"], [])
    assert world.statuses("s") == [AttemptStatus.COMMITTED]
    assert [batch.status for batch in world.store.batches("s")] == [BatchStatus.DONE]
    assert world.recovery().recover().found == ()


@pytest.mark.parametrize("point", UNDECIDED)
def test_an_undecided_attempt_is_left_alone_unless_its_sink_is_named(sqlite_world: World, point: PausePoint) -> None:
    world = sqlite_world
    world.write("s", 0, [["a"], ["b"]], die_at=point)
    left = world.recovery().recover()
    assert actions(left) == {(A.UNDECIDED, False)}
    assert not left.is_clean
    statuses = world.statuses("s")
    assert actions(world.recovery(condemn=["s"]).plan()) == {(A.CONDEMN, False)}
    assert world.statuses("s") == statuses
    done = world.recovery(condemn=["s"]).recover()
    assert actions(done) == {(A.CONDEMN, True)}
    assert done.is_clean
    assert (world.values(), world.open_ids()) == ([], [])
    assert world.statuses("s") == [AttemptStatus.ABORTED]
    world.write("s", 0, [["a"], ["b"]])  # the application comes back after all
    assert world.values() == ["a", "b"]


def test_a_condemned_attempt_is_aborted(world: World) -> None:
    world.write("s", 0, [["a"], ["b"]], die_at=P.COMMIT_START)
    world.write("s", 0, [["a"], ["b"]], die_at=P.AFTER_GENERATION)
    assert actions(world.recovery().recover()) == {(A.ABORT, True)}
    assert (world.values(), world.open_ids()) == ([], [])
    assert world.statuses("s") == [AttemptStatus.ABORTED]


def test_a_young_attempt_is_left_to_its_application(sqlite_world: World) -> None:
    world = sqlite_world
    world.write("decided", 0, [["a"]], die_at=P.AFTER_DECISION)
    world.write("undecided", 0, [["b"]], die_at=P.COMMIT_START)
    report = world.recovery(min_age_ms=3_600_000, condemn=["undecided"], sink_ids=["decided"]).recover()
    assert actions(report) == {(A.YOUNG, False)}
    assert report.is_clean
    assert len(world.open_ids()) == 2


def test_only_the_named_sinks_are_looked_at(sqlite_world: World) -> None:
    world = sqlite_world
    for sink_id in ("one", "two"):
        world.write(sink_id, 0, [[sink_id]], die_at=P.AFTER_DECISION)
    report = world.recovery(sink_ids=["one"]).recover()
    assert ([found.sink_id for found in report.found], report.sinks) == (["one"], 1)
    assert world.open_ids() == ["two-0-0"]
    assert world.recovery().recover().sinks == 2
    assert world.values() == ["one", "two"]


# ---- beside others ------------------------------------------------------------------------------------------


def test_a_living_committer_and_recovery_end_the_same_batch(world: World) -> None:
    """Recovery runs at each step of the committer's FINISH."""
    for number, point in enumerate(DECIDED):
        reports: list[RecoveryReport] = []
        world.write_beside("s", number, [[f"{number}a"], [f"{number}b"]], point, recovering(world, reports))
        assert reports
        assert reports[0].is_clean
    expected = [f"{number}{letter}" for number in range(len(DECIDED)) for letter in "ab"]
    assert (world.values(), world.open_ids()) == (expected, [])
    assert {batch.status for batch in world.store.batches("s")} == {BatchStatus.DONE}


def recovering(world: World, reports: list[RecoveryReport]) -> Callable[[], None]:
    return lambda: reports.append(world.recovery().recover())


def test_a_living_application_that_is_condemned_by_mistake_loses_its_batch_and_nothing_else(world: World) -> None:
    condemn = world.recovery(condemn=["s"])
    with pytest.raises(AttemptCondemnedError):
        world.write_beside("s", 0, [["a"], ["b"]], P.COMMIT_START, condemn.recover)
    assert (world.values(), world.open_ids()) == ([], [])
    world.write("s", 0, [["a"], ["b"]])
    assert world.values() == ["a", "b"]


def test_two_recoveries_at_once_end_everything_once(world: World) -> None:
    for number in range(4):
        world.write(f"s{number}", 0, [[f"{number}a"], [f"{number}b"]], die_at=P.AFTER_DECISION)
    both = [world.recovery(), world.recovery()]
    reports: list[RecoveryReport] = []
    threads = [threading.Thread(target=lambda r=each: reports.append(r.recover())) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(reports) == 2
    assert world.recovery().recover().found == ()
    assert world.values() == sorted(f"{number}{letter}" for number in range(4) for letter in "ab")
    assert world.open_ids() == []


def test_rounds_continue_after_a_failed_one(sqlite_world: World) -> None:
    world = sqlite_world
    stopped, failures, heard = threading.Event(), [], []

    def hear(report: RecoveryReport) -> None:
        heard.append(report)
        stopped.set()

    def fail(error: Exception) -> None:
        failures.append(error)
        with world.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE away RENAME TO dw_sink"))

    world.write("s", 0, [["a"]], die_at=P.AFTER_DECISION)
    with world.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE dw_sink RENAME TO away"))
    world.recovery().run(0.001, stopped=stopped, heard=hear, failed=fail)
    assert "dualwrite spark init-store" in str(failures[0])
    assert actions(heard[0]) == {(A.COMMIT, True)}


# ---- transactions that cannot be ended ----------------------------------------------------------------------


def test_a_transaction_refused_by_the_broker_is_reported_and_does_not_stop_the_rest(world: World) -> None:
    world.write("s", 0, [["a"], ["b"]], die_at=P.AFTER_DECISION)
    world.emulator.faults.add(
        Fault(api="EndTxn", action=Error(53), transactional_id="s-0-0", count=None)
    )  # not authorized
    report = world.recovery().recover()
    world.emulator.faults.clear()
    assert {(found.transactional_id, found.action) for found in report.found} == {
        ("s-0-0", A.FAILED),
        ("s-1-0", A.COMMIT),
    }
    assert not report.is_clean
    assert all(found.error for found in report.left)
    assert world.recovery().recover().is_clean
    assert world.values() == ["a", "b"]


@pytest.mark.parametrize("step", ["claims", "record", "retire_orphans"])
def test_a_store_that_fails_for_one_sink_does_not_stop_the_rest(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world = sqlite_world
    for sink_id in ("one", "two"):
        world.write(sink_id, 0, [[sink_id]], die_at=P.AFTER_DECISION)
    real = getattr(CommitStore, step)

    def fails(store: CommitStore, sink_id: str, *arguments: Any, **options: Any) -> Any:
        if sink_id == "one":
            raise OperationalError("UPDATE", {}, ConnectionError("gone"))
        return real(store, sink_id, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(CommitStore, step, fails)
        report = world.recovery().recover()
    is_reported = step == "retire_orphans"
    ended = [(found.sink_id, found.action, found.changed) for found in report.found]
    assert ended == [("one", A.COMMIT, True)] * is_reported + [("two", A.COMMIT, True)]
    (sentence,) = report.unseen
    assert sentence.startswith("the sink 'one': ")
    assert not report.is_clean
    assert world.recovery().recover().is_clean
    assert world.values() == ["one", "two"]


def test_an_unproven_commit_is_reported(sqlite_world: World) -> None:
    """Another program has aborted it, and its coordinator has forgotten that."""
    world = sqlite_world
    world.write("s", 0, [["a"]], die_at=P.AFTER_DECISION)
    world.forget_manifests()
    with Producer(bootstrap_servers=world.bootstrap_servers, transactional_id="s-0-0") as stranger:
        stranger.init_transactions()
    report = world.recovery().recover()
    assert actions(report) == {(A.COMMIT, True)}
    (sentence,) = report.unseen
    assert "can no longer prove that Kafka committed" in sentence
    assert not report.is_clean
    assert world.recovery().recover().is_clean


def test_a_transaction_without_a_row_is_reported_and_left_alone(sqlite_world: World) -> None:
    world = sqlite_world
    ids = ["s-0-0", "s-12-3", "s-x-1", "s", "st-0-0"]
    producers = [Producer(bootstrap_servers=world.bootstrap_servers, transactional_id=each) for each in ids]
    for producer in producers:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(world.topic, value=b"stranger", partition=0)
        producer.flush()
    report = world.recovery(sink_ids=["s"], condemn=["s"]).recover()
    assert [(found.transactional_id, found.action) for found in report.found] == [
        ("s-0-0", A.NO_ROW),
        ("s-12-3", A.NO_ROW),
    ]
    assert report.found[0].open is not None
    assert report.found[0].open.topic_partitions == (f"{world.topic}-0",)
    assert report.unseen == ("the commit store has no sink 's'",)
    assert world.open_ids() == sorted(ids)
    for producer in producers:
        producer.abort_transaction()
        producer.close()


@pytest.fixture
def bounded_world(tmp_path: Any) -> Iterator[World]:
    """Use a broker that drops prepared transactions, as Apache Kafka does without two-phase commit."""
    with Emulator(config=BrokerConfig(profile=Profile.KAFKA_4_3), clock=VirtualClock()) as emulator:
        made = World(sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}"), emulator)
        yield made
        made.close()
        made.engine.dispose()


def test_a_transaction_dropped_by_the_broker_is_repaired(bounded_world: World) -> None:
    world = bounded_world
    world.write("s", 0, [["a"], ["b"]], die_at=P.AFTER_DECISION, **{"txn.timeoutMs": "60000"})
    world.emulator.advance_clock(80_000)
    until(lambda: not world.open_ids())
    assert actions(world.recovery().plan()) == {(A.REPAIR, False)}
    done = world.recovery().recover()
    assert (actions(done), done.is_clean) == ({(A.REPAIR, True)}, True)
    assert world.recovery().recover().found == ()
    world.write("s", 1, [["c"]])
    assert world.values() == ["a", "b", "c"]


def test_a_lost_transaction_is_reported_until_it_is_acknowledged(bounded_world: World) -> None:
    world = bounded_world
    world.write("s", 0, [["a"]], die_at=P.AFTER_DECISION, **{"txn.timeoutMs": "60000"})
    world.forget_manifests()
    world.emulator.advance_clock(80_000)
    until(lambda: not world.open_ids())
    for _ in range(2):
        report = world.recovery().recover()
        assert [(found.transactional_id, found.action) for found in report.found] == [("s-0-0", A.LOST)]
        assert report.found[0].error
        assert not report.is_clean
    assert world.values() == []
    with pytest.raises(BatchLostError):
        world.write("s", 1, [["c"]])
    assert world.store.acknowledge_lost("s", "query", 0)
    assert world.recovery().recover().found == ()
    world.write("s", 1, [["c"]])
    assert world.values() == ["c"]


def test_a_batch_in_a_cluster_that_is_gone_waits_until_it_is_given_up(sqlite_world: World) -> None:
    world = sqlite_world
    world.write("s", 0, [["a"]], die_at=P.AFTER_DECISION)
    world.move_to("gone")
    for _ in range(2):
        planned, done = world.recovery().plan(), world.recovery().recover()
        assert (said(planned), planned.is_clean) == (said(done), False)
        (found,) = done.found
        assert (found.action, found.changed) == (A.FAILED, False)
        assert found.advice is not None
        assert found.advice.endswith(f"write those that are lost again by other means, then run {FORGET}")
        with pytest.raises(AnotherClusterError, match="prepared in the Kafka cluster 'gone'") as refused:
            world.write("s", 1, [["b"]])
        assert str(refused.value).endswith(found.advice)
    assert (world.values(), world.open_ids()) == ([], ["s-0-0"])
    assert world.store.acknowledge_lost("s", "query", 0, gone="gone")
    world.write("s", 1, [["b"]])
    assert world.open_ids() == ["s-0-0"]


def test_an_undecided_batch_in_a_cluster_that_is_gone_is_not_to_be_written_by_hand(sqlite_world: World) -> None:
    world = sqlite_world
    world.write("s", 0, [["a"], ["b"]], die_at=P.COMMIT_START)
    world.move_to("gone")
    with pytest.raises(AnotherClusterError, match="where the next plan ends it") as refused:
        world.write("s", 0, [["a"], ["b"]])
    planned, done = world.recovery().plan(), world.recovery().recover()
    assert actions(done) == {(A.FAILED, False)}
    assert said(planned) == said(done)
    (advice,) = {found.advice for found in done.found}
    assert advice is not None
    assert advice.endswith(f"write nothing by hand, because Spark writes an undecided batch again; only run {FORGET}")
    assert str(refused.value).endswith(advice)
    assert world.store.acknowledge_lost("s", "query", 0, gone="gone")
    world.write("s", 0, [["a"], ["b"]])  # Spark writes it again
    assert [batch.status for batch in world.store.batches("s")] == [BatchStatus.DONE]


def test_a_loser_of_a_decided_batch_in_a_cluster_that_is_gone_gives_the_advice_of_the_batch(
    sqlite_world: World,
) -> None:
    """The command gives the decided attempts of the batch up, too."""
    world = sqlite_world
    world.write("s", 0, [["a"], ["b"]], die_at=P.AFTER_DECISION)
    world.move_to("gone")
    with world.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dw_attempt SET status = 'ABORTING' WHERE partition_id = 0"))
    (advice,) = {found.advice for found in world.recovery().recover().found}
    assert advice is not None
    assert "look which records of the batch consumers have" in advice
    with pytest.raises(AnotherClusterError) as refused:
        world.write("s", 1, [["c"]])
    assert str(refused.value).endswith(advice)


def test_nothing_open_is_nothing_to_do(sqlite_world: World) -> None:
    world = sqlite_world
    world.write("s", 0, [["a"], []])
    until(lambda: not world.open_ids())
    report = world.recovery().recover()
    assert (report.found, report.unseen, report.sinks, report.is_clean) == ((), (), 1, True)
