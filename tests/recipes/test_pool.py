"""Pools: concurrent dual writes, which blocks wait and how long, and the work of the background."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Delivery, Direct, Outbox
from dualwrite.errors import ConfigError, IllegalStateError, OutcomeUnknown, PoolTimeoutError, TransactionHangsError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import (
    AnyScenario,
    AtPoint,
    OrdinaryError,
    Predecessor,
    Scenario,
    losing_the_commit,
)
from tests.recipes.heard import Heard
from tests.recipes.pools import (
    AnyPool,
    LeaseTable,
    drop_idle_connections,
    isolated_source,
    make_pool,
    narrow_source,
    prefix_of,
    put,
    read,
    write,
    written,
)
from tests.recipes.pools import scenario as scenario
from tests.support.calls import Calls
from tests.support.conditions import until
from tests.support.databases import Database, state_row
from tests.support.narrowing import current

DEADLINE_S = 30


@pytest.fixture
def leases(scenario: Scenario) -> LeaseTable:
    return LeaseTable(scenario)


def locks_whole_database(scenario: AnyScenario) -> bool:
    return scenario.database.engine.dialect.name == "sqlite"


class Holder:
    """A thread whose dual write holds a slot of `pool` until it is let go."""

    def __init__(self, scenario: Scenario, **settings: Any) -> None:
        self._holds = threading.Event()
        self._go = threading.Event()
        self.pool = make_pool(scenario, pause=AtPoint(PausePoint.AFTER_BEGIN, self._hold), **settings)
        self._thread = threading.Thread(target=write, args=(self.pool, scenario, 1), daemon=True)
        self._thread.start()
        assert self._holds.wait(DEADLINE_S)

    def _hold(self) -> None:
        self._holds.set()
        assert self._go.wait(DEADLINE_S)

    def let_go(self) -> None:
        self._go.set()
        self._thread.join(DEADLINE_S)


@pytest.fixture
def holder(scenario: Scenario) -> Iterator[Callable[..., Holder]]:
    made: list[Holder] = []

    def make(**settings: Any) -> Holder:
        made.append(Holder(scenario, **settings))
        return made[-1]

    yield make
    for each in made:
        each.let_go()
        each.pool.close()


# ---- many at a time ---------------------------------------------------------------------------------------------


def test_threads_write_at_once_under_ids_of_their_own(scenario: Scenario, leases: LeaseTable) -> None:
    together = threading.Barrier(1 if locks_whole_database(scenario) else 4, timeout=DEADLINE_S)

    def meet(point: PausePoint) -> None:
        if point is PausePoint.AFTER_PREPARE:
            together.wait()

    with make_pool(scenario, max_writers=4, pause=meet) as pool, ThreadPoolExecutor(8) as threads:
        writes = list(threads.map(lambda number: write(pool, scenario, number), range(8)))
        assert pool.status.in_use == pool.status.waiting == 0
    assert {tx.outcome for tx in writes} == {Outcome.COMMITTED}
    if not locks_whole_database(scenario):
        assert len({tx.transactional_id for tx in writes}) == 4
    assert set(leases.owners().values()) == {None}
    assert written(scenario) == {str(number) for number in range(8)}
    scenario.assert_nothing_open()


def test_two_pools_share_the_ids_out(scenario: Scenario, leases: LeaseTable) -> None:
    with make_pool(scenario) as first, make_pool(scenario) as second:
        ids = [write(pool, scenario, number).transactional_id for number, pool in enumerate((first, second, first))]
        assert ids == [f"{prefix_of(scenario)}-{slot}" for slot in (0, 1, 0)]
        assert len(set(leases.owners().values())) == 2
    with make_pool(scenario) as third:
        assert write(third, scenario, 3).transactional_id == f"{prefix_of(scenario)}-0"
    assert written(scenario) == {"0", "1", "2", "3"}


def test_a_block_that_fails_or_has_no_records_needs_no_id(holder: Callable[..., Holder], scenario: Scenario) -> None:
    if locks_whole_database(scenario):
        pytest.skip("one dual write at a time, so each has its id from the start")
    pool = holder(max_writers=1, acquire_timeout_ms=0).pool
    with pool.transaction() as tx:
        read(tx, "SELECT 1")
    assert tx.outcome is Outcome.COMMITTED
    assert tx.transactional_id is None
    with pytest.raises(OrdinaryError), pool.transaction() as tx:
        put(tx, scenario, 2)
        raise OrdinaryError
    assert tx.outcome is Outcome.ROLLED_BACK


def test_a_timeout_names_the_number_of_waiting_blocks(holder: Callable[..., Holder], scenario: Scenario) -> None:
    held = holder(max_writers=1)
    words = r"within 50 ms: 1 of 1 carry a dual write; 0 more blocks are waiting; nothing"
    with mock.patch.object(held.pool.pool, "_acquire_timeout_ms", 50), pytest.raises(PoolTimeoutError, match=words):
        write(held.pool, scenario, 2)
    assert held.pool.status.timeouts_total == 1
    held.let_go()
    write(held.pool, scenario, 3)
    assert written(scenario) == {"1", "3"}


def test_waiting_blocks_are_served_in_order(holder: Callable[..., Holder], scenario: Scenario) -> None:
    if locks_whole_database(scenario):
        pytest.skip("SQLite itself lets its writers wait in no order")
    held = holder(max_writers=1)
    with ThreadPoolExecutor() as threads:
        writes = []
        for number in range(2, 7):
            writes.append(threads.submit(write, held.pool, scenario, number))
            until(lambda: held.pool.status.waiting == len(writes))
        held.let_go()
    offsets = [each.result().prepared_state for each in writes]
    epochs = [int(str(state).split(":")[1]) for state in offsets]
    assert epochs == sorted(epochs)
    assert written(scenario) == {str(number) for number in range(1, 7)}


def test_blocks_may_hold_every_connection_of_the_source(scenario: Scenario) -> None:
    """A lease with a connection of its own would wait for the blocks that wait for it."""
    if locks_whole_database(scenario):
        pytest.skip("one dual write at a time")
    together = threading.Barrier(2, timeout=DEADLINE_S)

    def write_together(number: int) -> None:
        with pool.transaction() as tx:
            put(tx, scenario, number)
            together.wait()

    with (
        narrow_source(scenario, 2) as source,
        make_pool(scenario, source=source) as pool,
        ThreadPoolExecutor() as threads,
    ):
        list(threads.map(write_together, (1, 2)))
    assert written(scenario) == {"1", "2"}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_is_taken_after_the_id(scenario: Scenario, level: str) -> None:
    """Otherwise each dual write would fail that began before the last one under its id had ended."""
    if locks_whole_database(scenario):
        pytest.skip("one dual write at a time")
    source = isolated_source(scenario, level)
    together = threading.Barrier(2, timeout=DEADLINE_S)

    def write_together(number: int) -> None:
        with pool.transaction() as tx:
            read(tx, "SELECT 1")
            together.wait()
            put(tx, scenario, number)

    with make_pool(scenario, source=source, max_writers=2) as pool, ThreadPoolExecutor(2) as threads:
        list(threads.map(write_together, range(10)))
    assert written(scenario) == {str(number) for number in range(10)}


# ---- leftovers ------------------------------------------------------------------------------------------------------


def test_a_dead_process_is_recovered_in_the_background_and_its_id_used_again(
    scenario: Scenario, leases: LeaseTable
) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    leases.add(0, "dead")
    with make_pool(scenario) as pool:
        with pool.transaction():
            """A block without records wakes the background, and needs no slot."""
        own = 1 if locks_whole_database(scenario) else 0  # there the block had an id, which it never initialised
        until(lambda: pool.status.recovered_total == 1 + own)
        assert leases.owners()[0] != "dead"
        assert write(pool, scenario, 10).transactional_id is not None
    assert written(scenario) == {*scenario.expected, "10"}
    scenario.assert_nothing_open()


def test_applications_do_not_see_each_others_ids(scenario: Scenario, leases: LeaseTable) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    leases.add(0, "dead")
    prefix = prefix_of(scenario)
    for other in (prefix[:-1], f"{prefix}-0", prefix.upper(), prefix.rpartition("-")[0]):
        with make_pool(scenario, prefix=other) as pool:
            assert pool.recover() == []
    with make_pool(scenario) as pool:
        (resolution,) = pool.recover()
    assert resolution.transactional_id == scenario.transactional_id


def test_a_dual_write_in_doubt_is_completed_in_the_background(scenario: Scenario, emulator: Emulator) -> None:
    with make_pool(scenario) as pool:
        write(pool, scenario, 1)
        emulator.faults.add(Fault(api="EndTxn", action=Error(120)))  # TRANSACTION_ABORTABLE
        assert write(pool, scenario, 2).outcome is Outcome.COMMITTED
        until(lambda: pool.status.recovered_total == 1 and not pool.status.set_aside)
        assert pool.status.idle == 1
        write(pool, scenario, 3)
    assert written(scenario) == {"1", "2", "3"}
    scenario.assert_nothing_open()


def test_the_background_of_a_pool_that_has_recovered_does_not_sweep_at_once(scenario: Scenario) -> None:
    """So a caller of `recover()` meets no COMMIT of the background until its next heartbeat."""
    with make_pool(scenario) as pool:
        maintenance = pool.pool.maintenance
        looks, sweeps = Calls(maintenance, "resolve_once"), Calls(maintenance, "_sweep")
        pool.recover()
        assert sweeps.count == 1
        write(pool, scenario, 1)
        for number in (1, 2):  # the first of them has ended when the second one begins
            maintenance.wake()
            until(lambda: looks.count >= number)  # noqa: B023 - it is called in this round
        assert sweeps.count == 1


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_without_an_answer_is_resolved_in_the_background(
    scenario: Scenario, database: Database, applied: bool
) -> None:
    strike = losing_the_commit(database, applied=applied, and_database=True, first=lambda: drop_idle_connections(pool))
    with make_pool(scenario, pause=strike) as pool:
        pool.recover()  # the background sweeps at its start: it commits nothing after this
        with pytest.raises(OutcomeUnknown), pool.transaction() as tx:
            put(tx, scenario, 1)
        assert current(tx.outcome) is None
        assert pool.status.set_aside == (scenario.transactional_id,)
        until(lambda: pool.status.background_failures_total > 0)
        assert pool.status.last_background_error is not None
        database.come_back()
        until(lambda: tx.outcome is not None and not pool.status.set_aside)
        assert tx.outcome is (Outcome.COMMITTED if applied else Outcome.ROLLED_BACK)
        write(pool, scenario, 2)
    assert written(scenario) == {*({"1"} if applied else set()), "2"}
    scenario.assert_nothing_open()


@pytest.mark.usefixtures("asks_twice")
def test_an_unresolvable_commit_is_reported(
    scenario: Scenario, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    strike = losing_the_commit(database, applied=True, and_database=True, first=lambda: drop_idle_connections(pool))
    with make_pool(scenario, pause=strike) as pool:
        pool.recover()  # the background sweeps at its start: it commits nothing after this
        with pytest.raises(OutcomeUnknown), pool.transaction() as tx:
            put(tx, scenario, 1)
        another_way = sa.create_engine(database.url, poolclass=sa.NullPool)
        with scenario.writer(engine=another_way) as newer, newer.transaction() as later:
            put(later, scenario, 2)
        database.come_back()
        until(lambda: not pool.status.set_aside)
        assert tx.outcome is None
        assert f"giving up {scenario.transactional_id}" in caplog.text
        assert "replaced the state row" in caplog.text
    assert written(scenario) == {"1", "2"}
    scenario.assert_nothing_open()


def test_the_status_shows_what_a_dead_process_left_and_why_it_is_not_recovered(
    heard: Heard, scenario: Scenario, database: Database
) -> None:
    def unrecovered() -> list[int]:
        return [point.value for point in heard.points("dualwrite.pool.unrecovered")]

    def change_row(state: str | None) -> None:
        with database.aside.begin() as connection:
            connection.execute(sa.update(kafka_transaction_state).values(prepared_transaction_state=state))

    with make_pool(scenario) as dead:
        write(dead, scenario, 1)
    row = state_row(database, scenario.transactional_id)
    change_row("unreadable")
    LeaseTable(scenario).change(owner="dead", expires_at_ms=0)
    with make_pool(scenario, lease_ms=300) as pool:
        write(pool, scenario, 2)
        until(lambda: "'unreadable'" in (pool.status.last_background_error or ""))
        until(lambda: (pool.status.unrecovered, unrecovered()) == ((scenario.transactional_id,), [1]))
        change_row(row)
        until(lambda: (pool.status.unrecovered, unrecovered()) == ((), [0]))
        until(lambda: pool.status.last_background_error is None)


def test_the_background_survives_a_database_that_goes_away(scenario: Scenario, database: Database) -> None:
    with make_pool(scenario, lease_ms=300) as pool:
        write(pool, scenario, 1)
        database.refuse_new_connections()
        if not locks_whole_database(scenario):  # a connection of SQLite must not be closed while a thread uses it
            database.cut()
        until(lambda: pool.status.background_failures_total >= 3)
        assert pool.status.last_background_error is not None
        database.come_back()
        until(lambda: pool.status.last_background_error is None)
        write(pool, scenario, 2)
    assert written(scenario) == {"1", "2"}


# ---- the end ----------------------------------------------------------------------------------------------------


def test_closing_waits_for_blocks_and_lets_none_begin(
    holder: Callable[..., Holder], scenario: Scenario, leases: LeaseTable
) -> None:
    held = holder()
    with ThreadPoolExecutor() as threads:
        closing = threads.submit(held.pool.close)
        until(lambda: held.pool.pool.registry.is_closed)
        with pytest.raises(IllegalStateError, match="closed"):
            write(held.pool, scenario, 2)
        assert not closing.done()
        held.let_go()
        closing.result(DEADLINE_S)
    assert leases.owners() == {0: None}
    assert written(scenario) == {"1"}
    held.pool.close()


def test_a_block_may_end_after_the_pool_was_closed(holder: Callable[..., Holder], scenario: Scenario) -> None:
    if locks_whole_database(scenario):
        pytest.skip("closing would wait for the lock that the block holds")
    held = holder()
    held.pool.close(timeout_s=0)
    held.let_go()
    assert written(scenario) == {"1"}


@pytest.mark.parametrize("delivery", [Direct(), Outbox()])
def test_a_garbage_collected_pool_stops_renewing_its_leases(scenario: Scenario, delivery: Delivery) -> None:
    pool = make_pool(scenario, delivery=delivery)
    write(pool, scenario, 1)
    prefix = pool.prefix
    assert any(prefix in thread.name for thread in threading.enumerate())
    del pool

    def has_ended() -> bool:
        gc.collect()  # again: a background at work holds its pool
        return not any(prefix in thread.name for thread in threading.enumerate())

    until(has_ended)


def test_a_forked_child_has_ids_of_its_own(scenario: Scenario, database: Database, leases: LeaseTable) -> None:
    if locks_whole_database(scenario):
        pytest.skip("SQLite's connections must not be carried across a fork at all")
    with make_pool(scenario) as pool:
        write(pool, scenario, 1)
        with pool.transaction() as tx:
            put(tx, scenario, 2)
            child = os.fork()
            if child == 0:
                os._exit(_child_that_writes(pool, scenario, database))
            assert os.waitpid(child, 0)[1] == 0
        assert tx.transactional_id == f"{prefix_of(scenario)}-0"
        assert pool.status.moved_total == 0
    assert written(scenario) == {"1", "2", "3"}


def _child_that_writes(pool: AnyPool, scenario: Scenario, database: Database) -> int:
    database.engine.dispose(close=False)
    tx = write(pool, scenario, 3)
    return 0 if tx.transactional_id == f"{prefix_of(scenario)}-1" else 1


# ---- misuse -----------------------------------------------------------------------------------------------------


def test_a_block_whose_id_hangs_goes_on_under_one_that_does_not(
    scenario: AnyScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids themselves are complete, and stay idle: each hangs only in a partition of the block."""
    if locks_whole_database(scenario):
        pytest.skip("a block that writes cannot lease another id")
    genuine, used = KafkaParticipant.send, list[KafkaParticipant]()

    async def send(kafka: KafkaParticipant, *given: Any, **named: Any) -> None:
        if kafka not in used:
            used.append(kafka)
        elif kafka in used[:2]:
            raise TransactionHangsError(
                "hangs", transactional_id="t", prepared_state="1:0", partitions=(("t", 0),), start_offsets=(0,)
            )
        await genuine(kafka, *given, **named)

    monkeypatch.setattr(KafkaParticipant, "send", send)
    with make_pool(scenario, max_writers=1) as pool:
        for number in (1, 2, 3, 4):
            assert write(pool, scenario, number).outcome is Outcome.COMMITTED
        assert pool.status.moved_total == 3
    assert written(scenario) == {"1", "2", "3", "4"}


def test_a_database_without_a_known_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "firebird")
    with pytest.raises(ConfigError, match=r"whose clock can be queried \(postgresql, .*, not firebird"):
        DualWriter(engine, prefix="p", bootstrap_servers="127.0.0.1:1")


@pytest.mark.parametrize("use", [lambda pool: pool.transaction().__enter__(), lambda pool: pool.recover()])
def test_the_background_waits_for_the_first_connection_of_the_blocks(
    scenario: AnyScenario, monkeypatch: pytest.MonkeyPatch, use: Callable[[DualWriter], Any]
) -> None:
    """With it the dialect, which the background's engine shares, detects the features of the database."""
    if isinstance(scenario, PsycopgScenario):
        pytest.skip("is of SQLAlchemy's dialects")
    engine = sa.create_engine(scenario.database.url)
    pool = make_pool(scenario, source=engine)
    assert isinstance(pool, DualWriter)
    connected: list[str] = []
    sa.event.listen(pool.backend.background_engine, "connect", lambda *_: connected.append("background"))
    genuine, start = pool.backend.connect_first, pool.pool.maintenance.start

    async def connect() -> None:
        await genuine()
        connected.append("blocks")

    def start_background(**given: bool) -> None:
        connected.append("background")
        start(**given)

    monkeypatch.setattr(pool.pool, "connect_first", connect)
    monkeypatch.setattr(pool.pool.maintenance, "start", start_background)
    use(pool)
    pool.close(timeout_s=0)
    assert connected[0] == "blocks"


def test_the_background_reads_committed_at_every_level_of_the_blocks(scenario: AnyScenario) -> None:
    if isinstance(scenario, PsycopgScenario) or scenario.database.engine.dialect.name != "postgresql":
        pytest.skip("is of an Engine with a level of its own")
    with make_pool(scenario, source=isolated_source(scenario, "SERIALIZABLE")) as pool:
        assert isinstance(pool, DualWriter)
        with pool.transaction() as tx:
            assert tx.connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "serializable"
            with pool.backend.background_engine.begin() as connection:
                assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
