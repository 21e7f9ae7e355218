"""Open transactions of a sink that its store does not know: warned of, kept apart, and ended on order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import AuthorizationError
from dualwrite.guarantee import Tier
from dualwrite.producer import Producer
from spark_sink.driver.open_transactions import OpenTransaction, is_of_sink
from spark_sink.driver.orphans import OrphanEnd, OrphanKafka, Orphans, OrphanWatch, decide
from spark_sink.driver.recovery import Action, RecoveryReport, SinkRecovery
from spark_sink.errors import SinkError, StoreUnavailableError
from spark_sink.handoff import Plan
from spark_sink.options import OnOrphans
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.commit_store import CommitStore
from tests.spark.applications import ApplicationWorld, recovery
from tests.spark.fake_kafka import FakeOpenTransactions
from tests.spark.kafka_world import KafkaWorld, kafka_world
from tests.spark.sink_model import Crash, Process, World, new_store, run_batch
from tests.spark.store_engines import sqlite_engine

OLD_MS = 3_600_000


# ---- decisions: pure ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "may_abort", "age_ms", "end"),
    [
        (None, False, OLD_MS, OrphanEnd.NO_ROW),
        (None, True, OLD_MS, OrphanEnd.ABORT),
        (None, True, 5, OrphanEnd.YOUNG),
        (AttemptStatus.COMMITTED, True, OLD_MS, OrphanEnd.COMMIT),
        (AttemptStatus.COMMITTED, False, 5, OrphanEnd.COMMIT),
        (AttemptStatus.ABORTED, False, 5, OrphanEnd.ABORT),
        (AttemptStatus.LOST, True, OLD_MS, OrphanEnd.LOST),
    ],
)
def test_an_orphan_is_ended_or_left_by_its_state(
    known: AttemptStatus | None, may_abort: bool, age_ms: int, end: OrphanEnd
) -> None:
    assert decide(known, is_undecided=True, age_ms=age_ms, may_abort=may_abort, min_age_ms=60_000) is end
    assert decide(known, is_undecided=False, age_ms=age_ms, may_abort=may_abort, min_age_ms=0) is OrphanEnd.YOUNG


def test_ids_of_other_sinks_and_programs_are_left_alone() -> None:
    own = ["orders-3-0", "orders-12-345"]
    others = [
        "orders-eu-3-0",
        "orders_eu-3-0",
        "orders-3",
        "orders-3-0-0",
        "orders-x-0",
        "orders-3-0\n",
        "reorders-3-0",
    ]
    assert [each for each in (*own, *others, "orders-1-9999999999") if is_of_sink("orders", each)] == own


# ---- PLAN, with a Kafka in memory ----------------------------------------------------------------------------------


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[CommitStore]:
    """Yield the store that is lost after the first batches."""
    directory = tmp_path / "lost"
    directory.mkdir()
    with sqlite_engine(directory) as engine:
        yield new_store(engine)


@pytest.fixture
def world(store: CommitStore, lost: CommitStore) -> World:
    """Return a sink with a new store; its old one had an attempt for each of two partitions."""
    old, new = World(lost), World(store)
    new.broker, new.options = old.broker, old.options
    process = old.process()
    plan = process.plan()
    for partition in range(2):
        process.write(plan, 0, partition, [partition])
    return new


def orphans_of(world: World) -> list[str]:
    return [f"{world.options.sink_id}-{partition}-0" for partition in range(2)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_orphans_are_warned_of_and_their_ids_are_not_used(world: World, caplog: pytest.LogCaptureFixture) -> None:
    process = world.process()
    for batch_id in range(3):
        run_batch(process, batch_id, [batch_id * 10, batch_id * 10 + 1])
    assert world.broker.open_ids == orphans_of(world)
    assert sorted(world.broker.committed) == [0, 1, 10, 11, 20, 21]
    (said,) = warnings(caplog)
    for part in (*orphans_of(world), "since 20", "orders-0", f"recover --abort-orphans {world.options.sink_id}"):
        assert part in said


def test_orphans_are_aborted_on_order(world: World, caplog: pytest.LogCaptureFixture) -> None:
    process = world.process(on_orphans=OnOrphans.ABORT)
    run_batch(process, 0, [5, 6])
    assert len(warnings(caplog)) == 1
    assert "were ended" in warnings(caplog)[0]
    world.assert_exactly_once([5, 6])


def test_a_store_that_goes_away_while_ids_are_retired_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def go_away(*_: object) -> None:
        raise OperationalError("UPDATE", {}, ConnectionError("gone"), connection_invalidated=True)

    process = world.process(on_orphans=OnOrphans.ABORT)
    with monkeypatch.context() as patch:
        patch.setattr(CommitStore, "retire_orphans", go_away)
        with pytest.raises(StoreUnavailableError, match="The batch has not begun"):
            process.plan()
    assert world.broker.open_ids == orphans_of(world)
    run_batch(process, 0, [5, 6])  # which looks again
    assert world.broker.open_ids == []
    world.assert_exactly_once([5, 6])


def test_a_young_orphan_is_aborted_when_it_is_old(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = world.process(on_orphans=OnOrphans.ABORT)
    monkeypatch.setattr(FakeOpenTransactions, "age_ms", 1000)
    run_batch(process, 0, [5, 6])
    assert world.broker.open_ids == orphans_of(world)
    monkeypatch.setattr(FakeOpenTransactions, "age_ms", OLD_MS)
    run_batch(process, 1, [7, 8])
    world.assert_exactly_once([5, 6, 7, 8])


@pytest.mark.parametrize(("status", "values"), [("COMMITTED", [0, 1]), ("ABORTED", [])])
def test_an_attempt_known_by_its_pair_is_ended_as_it_was_decided(
    lost: CommitStore, status: str, values: list[int]
) -> None:
    world = World(lost)
    process = world.process()
    plan = process.plan()
    for partition in range(2):
        process.write(plan, 0, partition, [partition])
    with lost.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE dw_attempt SET live_txn_id = NULL, status = '{status}'"))
    world.process(on_orphans=OnOrphans.ABORT).plan()
    assert world.broker.open_ids == []
    assert sorted(world.broker.committed) == values


def test_nothing_is_listed_for_a_batch_that_follows_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    of_sink = FakeOpenTransactions.of_sink

    def counted(self: FakeOpenTransactions, sink_id: str, unseen: list[str]) -> dict[str, OpenTransaction]:
        looks.append(sink_id)
        return of_sink(self, sink_id, unseen)

    monkeypatch.setattr(FakeOpenTransactions, "of_sink", counted)
    process = world.process()
    for batch_id in range(3):
        run_batch(process, batch_id, [batch_id])
    assert len(looks) == 1
    plan = process.plan()
    process.abort([process.write(plan, 3, 0, [3])], 3)
    run_batch(process, 3, [3])  # after a failure
    assert len(looks) == 2
    world.process().plan()
    process.plan()  # after another driver
    assert len(looks) == 4


def refusing() -> AbstractContextManager[OrphanKafka]:
    raise AuthorizationError("TRANSACTIONAL_ID_AUTHORIZATION_FAILED")


def test_a_refused_listing_is_warned_of_once_and_the_batch_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    watch = OrphanWatch(world.options.sink_id, world.store, refusing, OnOrphans.ABORT)
    for generation in (1, 5):
        watch.look(generation)
    (said,) = warnings(caplog)
    assert f"DESCRIBE on the transactional ids with the prefix {world.options.sink_id}-" in said


def test_a_scan_that_the_store_failed_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def go_away(*_: object) -> None:
        raise OperationalError("UPDATE", {}, ConnectionError("gone"), connection_invalidated=True)

    world.process().plan()
    kafka = world.process().kafka
    watch = OrphanWatch(
        world.options.sink_id, world.store, lambda: nullcontext(FakeOpenTransactions(kafka)), OnOrphans.ABORT
    )
    with monkeypatch.context() as patch:
        patch.setattr(CommitStore, "retire_orphans", go_away)
        with pytest.raises(OperationalError):
            watch.look(1)
    watch.look(2)
    assert world.broker.open_ids == []


# ---- races -------------------------------------------------------------------------------------------------------


class Meanwhile:
    """Open transactions of a process; `happens` is called after they were listed."""

    def __init__(self, process: Process, happens: Callable[[], object]) -> None:
        self._seen = FakeOpenTransactions(process.kafka)
        self._happens = happens

    def end(self, world: World) -> list[tuple[str, bool]]:
        sink_id = world.options.sink_id
        found = list(self._seen.of_sink(sink_id, []).values())
        self._happens()
        orphans = Orphans(world.store, self._seen).end(sink_id, found, [], may_abort=True)
        return [(each.found.transactional_id, each.changed) for each in orphans]


def test_a_task_of_the_current_plan_is_no_orphan_whenever_it_began(lost: CommitStore) -> None:
    world = World(lost)
    process = world.process()
    plan = process.plan()
    before = process.write(plan, 0, 0, [1])
    results = [before]
    meanwhile = Meanwhile(world.process(), lambda: results.append(process.write(plan, 0, 1, [2])))
    assert meanwhile.end(world) == []
    process.commit(results, 0, [1, 2])
    world.assert_exactly_once([1, 2])


def test_an_id_that_a_task_leases_after_the_listing_is_its_own(world: World) -> None:
    """A driver that does not look, of an older version, leases the id of an orphan, and takes it over."""
    sink_id = world.options.sink_id
    world.store.plan(sink_id, query_id="query-1", on_new_checkpoint=world.options.on_new_checkpoint)
    results: list[Any] = []

    def lease() -> None:
        process = world.process()
        results.append((process, process.write(plan_of(world), 0, 0, [5])))

    assert Meanwhile(world.process(), lease).end(world) == [(orphans_of(world)[1], True)]
    process, result = results[0]
    assert result.attempt_id is not None
    process.commit([result], 0, [5])
    world.assert_exactly_once([5])


def plan_of(world: World) -> Plan:
    """Return a plan of the current generation that has looked for nothing."""
    (row,) = (each for each in world.store.sinks() if each.sink_id == world.options.sink_id)
    return Plan(row.sink_id, row.generation)


def test_an_orphan_that_another_producer_has_replaced_is_left_alone(world: World) -> None:
    sink_id = world.options.sink_id
    world.store.plan(sink_id, query_id="query-1", on_new_checkpoint=world.options.on_new_checkpoint)
    name = orphans_of(world)[0]

    def replaced() -> None:
        world.broker.send(name, world.broker.init(name, keep=False), [9])

    assert Meanwhile(world.process(), replaced).end(world) == [(orphans_of(world)[1], True)]
    assert world.broker.open_ids == [name]


def test_a_driver_that_dies_among_orphans_leaves_them_to_the_next(world: World) -> None:
    class Dying(FakeOpenTransactions):
        def end(self, pairs: Any, *, commit: bool) -> set[str]:
            raise Crash(PausePoint.AFTER_PLAN)

    process = world.process(on_orphans=OnOrphans.ABORT)

    @contextmanager
    def dying() -> Iterator[OrphanKafka]:
        yield Dying(process.kafka)

    watch = OrphanWatch(world.options.sink_id, world.store, dying, OnOrphans.ABORT)
    generation = world.store.plan(
        world.options.sink_id, query_id="query-1", on_new_checkpoint=world.options.on_new_checkpoint
    ).generation
    with pytest.raises(Crash):
        watch.look(generation)
    run_batch(world.process(on_orphans=OnOrphans.ABORT), 0, [5])
    world.assert_exactly_once([5])


# ---- on brokers of each tier ---------------------------------------------------------------------------------------


class Site:
    """An application whose store is lost, and its new one."""

    def __init__(self, kafka: KafkaWorld, lost: sa.Engine, new: sa.Engine) -> None:
        self.kafka = kafka
        servers = kafka.emulator.bootstrap_servers
        self.lost, self.new = (ApplicationWorld(each, servers, "orders") for each in (lost, new))
        self.admin = TransactionAdmin(bootstrap_servers=servers)

    def recovery(self, world: ApplicationWorld, **options: Any) -> SinkRecovery:
        return recovery(world.store, self.admin, world.bootstrap_servers, **options)


@pytest.fixture(params=[Tier.KEEP_PREPARED, Tier.BOUNDED, Tier.BOUNDED_V1])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with (
        kafka_world(request.param) as kafka,
        sqlite_engine(tmp_path / "old") as old,
        sqlite_engine(tmp_path / "new") as new,
    ):
        made = Site(kafka, old, new)
        yield made
        made.admin.close()


def actions(report: RecoveryReport) -> set[tuple[str, Action, bool]]:
    return {(each.transactional_id, each.action, each.changed) for each in report.found}


def test_a_lost_store(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.lost.write("s", 0, [["a"], ["b"]], die_at=PausePoint.AFTER_DECISION)
    site.lost.write("other", 0, [["z"]], die_at=PausePoint.AFTER_DECISION)
    other = Producer(bootstrap_servers=site.new.bootstrap_servers, transactional_id="s-eu-3-0")
    other.init_transactions()
    other.begin_transaction()
    other.send("orders", value=b"other", partition=0)
    other.flush()

    unknown = site.recovery(site.new, abort_orphans=["s"]).recover()  # perhaps it is the wrong database
    assert {(each.action, each.changed) for each in unknown.found} == {(Action.NO_ROW, False)}
    with pytest.raises(SinkError, match="has no sink 's'"):
        site.new.store.retire_orphans("s", {"s-0-0": "1:1"}, "")

    site.new.write("s", 0, [["c"], ["d"]])  # it is written under other ids
    assert "s-0-0" in next(each for each in warnings(caplog) if "2 transactions are open" in each)
    assert {"s-0-0", "s-1-0"} <= set(site.kafka.open_ids())

    left = site.recovery(site.new).recover()
    assert actions(left) == {("s-0-0", Action.NO_ROW, False), ("s-1-0", Action.NO_ROW, False)}
    young = site.recovery(site.new, abort_orphans=["s"], min_age_ms=OLD_MS).recover()
    assert {each.action for each in young.found} == {Action.YOUNG}
    planned = site.recovery(site.new, abort_orphans=["s"]).plan()
    assert actions(planned) == {("s-0-0", Action.ABORT, False), ("s-1-0", Action.ABORT, False)}
    assert {"s-0-0", "s-1-0"} <= set(site.kafka.open_ids())
    done = site.recovery(site.new, abort_orphans=["s"]).recover()
    assert actions(done) == {("s-0-0", Action.ABORT, True), ("s-1-0", Action.ABORT, True)}
    assert done.is_clean
    site.kafka.settle()
    assert sorted(site.kafka.open_ids()) == ["other-0-0", "s-eu-3-0"]
    other.commit_transaction()
    other.close()
    site.recovery(site.lost, sink_ids=["other"]).recover()
    assert site.kafka.committed() == ["c", "d", "other", "z"]


def test_an_orphan_that_the_store_has_as_committed_is_committed_without_an_order(site: Site) -> None:
    site.lost.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    with site.lost.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dw_attempt SET live_txn_id = NULL, status = 'COMMITTED'"))
    recovery = site.recovery(site.lost, abort_orphans=["s"], min_age_ms=OLD_MS)
    assert actions(recovery.plan()) == {("s-0-0", Action.COMMIT, False)}
    assert actions(recovery.recover()) == {("s-0-0", Action.COMMIT, True)}
    assert site.kafka.committed() == ["a"]


def test_an_orphan_with_the_pair_of_an_attempt_in_another_cluster_is_left_alone(site: Site) -> None:
    site.lost.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    here = site.admin.describe_cluster().cluster_id
    with site.lost.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dw_attempt SET live_txn_id = NULL, status = 'COMMITTED'"))
        connection.execute(
            sa.text("UPDATE dw_attempt SET manifest = replace(manifest, :here, 'elsewhere')"), {"here": here}
        )
    recovery = site.recovery(site.lost)
    for report in (recovery.plan(), recovery.recover()):
        assert actions(report) == {("s-0-0", Action.NO_ROW, False)}
    assert site.kafka.open_ids() == ["s-0-0"]


def test_an_orphan_kept_by_a_take_over_is_aborted_too(site: Site) -> None:
    site.lost.write("s", 0, [["a"]], die_at=PausePoint.AFTER_DECISION)
    keeper = Producer(
        bootstrap_servers=site.new.bootstrap_servers,
        transactional_id="s-0-0",
        transaction_two_phase_commit_enable=True,
        accept_bounded_guarantee=True,
    )
    keeper.init_transactions(keep_prepared_txn=True)
    keeper.close(timeout_s=0, hand_over=True)
    site.new.write("s", 0, [["c"]])
    assert actions(site.recovery(site.new, abort_orphans=["s"]).recover()) == {("s-0-0", Action.ABORT, True)}
    assert site.kafka.committed() == ["c"]


def test_the_sinks_own_look(site: Site) -> None:
    """As PLAN does it, with the producer's settings, and without the least age."""
    site.lost.write("s", 0, [["a"], ["b"]], die_at=PausePoint.COMMIT_START)
    site.new.write("s", 0, [["c"]])
    side = site.kafka.side()
    OrphanWatch("s", site.new.store, side.transactions, OnOrphans.ABORT, min_age_ms=0).look(5)
    assert site.kafka.committed() == ["c"]
    assert site.kafka.open_ids() == []
