"""Leases that are broken in every way cost work, and never agreement."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Emulator
from dualwrite.errors import FencedError, RowLockTimeoutError, SnapshotTooOldError, StateRowError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.producer import Producer
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool import settings as pool_settings
from dualwrite.recipes.pool.maintenance import PoolMaintenance
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint, InjectedError, Predecessor, Scenario, fail
from tests.producer.tiers import TIERS
from tests.recipes.pools import (
    AnyPool,
    AnyWrite,
    LeaseTable,
    isolated_source,
    make_pool,
    prefix_of,
    put,
    read,
    write,
    written,
)
from tests.recipes.pools import scenario as scenario
from tests.support.conditions import until
from tests.support.databases import Database, unique
from tests.support.kafka_ids import kafka_id_of

DEADLINE_S = 30
HOUR_MS = 3_600_000


@pytest.fixture
def leases(scenario: Scenario) -> LeaseTable:
    return LeaseTable(scenario)


@contextmanager
def locked_row(scenario: Scenario) -> Iterator[None]:
    """Hold the lock of the first slot's row, as a connection does whose loss is unnoticed."""
    table = kafka_transaction_state
    row = sa.select(table).where(table.c.transactional_id == scenario.transactional_id).with_for_update()
    with sa.create_engine(scenario.database.url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(row)
        yield


@contextmanager
def two_pools(scenario: Scenario, **settings: Any) -> Iterator[tuple[AnyPool, AnyPool]]:
    other = scenario.database.another_client()
    with make_pool(scenario, **settings) as first, make_pool(scenario, database=other, **settings) as second:
        yield first, second
    other.close()


def test_two_pools_that_hold_the_same_lease(scenario: Scenario, leases: LeaseTable) -> None:
    """A pool that finds the row replaced completes the other's transaction, and leaves the id to the lease's owner."""
    with two_pools(scenario) as (first, second):
        assert write(first, scenario, 1).transactional_id == scenario.transactional_id
        leases.free()
        assert write(second, scenario, 2).transactional_id == scenario.transactional_id
        assert persist(first, scenario, 3).transactional_id == f"{prefix_of(scenario)}-1"
        assert write(second, scenario, 4).transactional_id == scenario.transactional_id
        assert (first.status.moved_total, first.status.lost_total) == (1, 1)
        assert (second.status.moved_total, second.status.lost_total) == (0, 0)
    assert written(scenario) == {"1", "2", "3", "4"}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("owner", [None, "another"], ids=["is given back", "is kept"])
def test_no_transaction_begins_if_the_lease_was_lost_before_the_take_over(
    scenario: Scenario, leases: LeaseTable, owner: str | None
) -> None:
    """As if the process had slept, and another one had recovered the slot and given it back: no process looks again."""
    if locks_whole_database(scenario):
        pytest.skip("on SQLite nobody can take a lease while a transaction holds the lock of the whole file")
    with make_pool(scenario) as before:
        write(before, scenario, 1)
    with make_pool(scenario) as pool:
        lose_while_waiting(pool, scenario, leases, owner)
    assert written(scenario) == {"1", "2"}
    scenario.assert_nothing_open()


def lose_while_waiting(pool: AnyPool, scenario: Scenario, leases: LeaseTable, owner: str | None) -> None:
    """Write event 2 by a block that loses the lease of its slot while it waits for the lock to take the id over."""
    with ThreadPoolExecutor() as threads:
        with locked_row(scenario):
            written_late = threads.submit(write, pool, scenario, 2)
            until(lambda: leases.owners()[0] is not None)
            leases.change(owner=owner, expires_at_ms=int(time.time() * 1000) + HOUR_MS)
        assert written_late.result(DEADLINE_S).outcome is Outcome.COMMITTED
    assert (pool.status.moved_total, pool.status.lost_total) == (1, 1)


def test_the_lease_is_looked_at_after_each_take_over(database: Database) -> None:
    """Where an abort raises the epoch, a slot is taken over again after a rolled-back block."""
    if database.engine.dialect.name != "postgresql":
        pytest.skip("SQLite locks the whole file, and on MariaDB a block that waited for its slot gets no new one")
    with Emulator(config=TIERS[Tier.STORED_PAIR]) as emulator:
        scenario = Scenario(database, emulator, transactional_id=f"{unique('pool')}-0")
        with make_pool(scenario, pause=AtPoint(PausePoint.AFTER_PREPARE, fail)) as pool:
            with pytest.raises(InjectedError):
                write(pool, scenario, 1)
            until(lambda: pool.status.idle == 1)  # else the next block begins with a second slot
            lose_while_waiting(pool, scenario, LeaseTable(scenario), "another")
        assert written(scenario) == {"2"}
        scenario.assert_nothing_open()


def test_on_sqlite_a_block_whose_lease_was_lost_before_its_first_statement_is_refused(
    scenario: Scenario, leases: LeaseTable
) -> None:
    if not locks_whole_database(scenario):
        pytest.skip("elsewhere the block gets another slot")
    with make_pool(scenario) as pool:
        with pytest.raises(FencedError, match="has lost the lease"):
            with pool.transaction() as tx:
                leases.free()
                put(tx, scenario, 1)
        write(pool, scenario, 2)
        assert pool.status.lost_total == 1
    assert written(scenario) == {"2"}
    scenario.assert_nothing_open()


def test_a_dual_write_that_loses_slot_after_slot_changes_nothing(scenario: Scenario) -> None:
    """As by a process that takes over every id without asking for its row."""
    stealing = False
    in_use: set[int] = set()

    def steal(point: PausePoint) -> None:
        if stealing and point is PausePoint.AFTER_BEGIN:
            in_use.add(pool.status.in_use)
            thief = Producer(
                bootstrap_servers=scenario.emulator.bootstrap_servers,
                transactional_id=kafka_id_of(
                    scenario.database.aside, f"{prefix_of(scenario)}-{pool.status.moved_total}"
                ),
                transaction_two_phase_commit_enable=True,
            )
            thief.init_transactions()
            thief.close()

    with make_pool(scenario, pause=steal) as pool:
        write(pool, scenario, 1)
        stealing = True
        with pytest.raises(FencedError) as raised:
            write(pool, scenario, 2)
        stealing = False
        assert "nothing was written" in " ".join(raised.value.__notes__)
        assert in_use == {1}, "it keeps its turn, or another block would begin beside it"
        assert write(pool, scenario, 3).outcome is Outcome.COMMITTED
        assert pool.status.in_use == 0
    assert written(scenario) == {"1", "3"}
    scenario.assert_nothing_open()


def test_a_slot_that_is_stolen_between_the_first_statement_and_the_lock(scenario: Scenario, leases: LeaseTable) -> None:
    """The block has its slot from the start, because its isolation level asks for that."""
    level = "SERIALIZABLE" if locks_whole_database(scenario) else "REPEATABLE READ"
    source = isolated_source(scenario, level)
    expected = {"1", "2", "4"}
    with make_pool(scenario, source=source) as first:
        write(first, scenario, 1)
        with suppress(FencedError, scenario.database_error):  # a snapshot cannot lock a row that was changed since
            with first.transaction() as tx:
                read(tx, "SELECT id FROM events")
                leases.free()
                with make_pool(scenario) as second:
                    write(second, scenario, 2)
                put(tx, scenario, 3)
            expected.add("3")
        persist(first, scenario, 4, is_snapshot=True)
    assert written(scenario) == expected
    scenario.assert_nothing_open()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_without_the_row_of_a_replacement_slot(scenario: Scenario, leases: LeaseTable, level: str) -> None:
    """The row is fine, and the error says so: the block may be repeated, and the decorator does it."""
    if scenario.database.engine.dialect.name != "postgresql":
        pytest.skip("on SQLite no other slot can be leased meanwhile, and MySQL locks what is newer than the snapshot")
    begun: list[AnyWrite] = []

    def body(tx: AnyWrite) -> None:
        begun.append(tx)
        read(tx, "SELECT id FROM events")
        if len(begun) % 2:
            leases.change(owner="another", expires_at_ms=int(time.time() * 1000) + HOUR_MS)
        put(tx, scenario, len(begun))

    with make_pool(scenario, source=isolated_source(scenario, level)) as pool:
        with pytest.raises(SnapshotTooOldError, match="neither side was changed: repeat the block") as raised:
            with pool.transaction() as tx:
                body(tx)
        assert not isinstance(raised.value, StateRowError)
        assert tx.outcome is Outcome.ROLLED_BACK
        assert written(scenario) == set()
        with pool.transaction() as tx:
            body(tx)
    with make_pool(scenario, source=isolated_source(scenario, level)) as pool:
        pool.transactional(retries=1)(body)()
    assert written(scenario) == {"2", "4"}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("point", list(PausePoint))
def test_a_lease_that_expires_during_a_dual_write(
    scenario: Scenario, leases: LeaseTable, point: PausePoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process recovers the slot as soon as the row lets it."""
    monkeypatch.setattr(pool_settings, "_RECOVERY_LOCK_TIMEOUT_MS", 20)
    if locks_whole_database(scenario):
        pytest.skip("on SQLite nobody can take a lease while a dual write holds the lock of the whole file")
    recovered: list[BaseException | None] = []

    def expire_and_recover() -> None:
        leases.expire()
        try:
            second.recover()
            recovered.append(None)
        except RowLockTimeoutError as error:
            recovered.append(error)

    strike = AtPoint(point, expire_and_recover)
    with two_pools(scenario) as (_, second), make_pool(scenario, pause=strike) as first:
        assert write(first, scenario, 1).outcome is Outcome.COMMITTED
        second.recover()
        assert write(first, scenario, 2).outcome is Outcome.COMMITTED
        assert write(second, scenario, 3).outcome is Outcome.COMMITTED
    assert [error is None for error in recovered] == [point in POINTS_AFTER_THE_DECISION]
    assert written(scenario) == {"1", "2", "3"}
    scenario.assert_nothing_open()


def test_a_slot_that_was_lost_with_the_database_connection_is_not_exchanged(
    scenario: Scenario, leases: LeaseTable
) -> None:
    if locks_whole_database(scenario):
        pytest.skip("a connection of SQLite must not be closed while a thread may use it")
    with two_pools(scenario) as (_, second):
        with make_pool(scenario, pause=AtPoint(PausePoint.AFTER_BEGIN, lambda: rob(second))) as first:

            def rob(thief: AnyPool) -> None:
                scenario.database.cut()
                leases.expire()
                thief.recover()
                write(thief, scenario, 2)

            with pytest.raises(scenario.database_error):
                write(first, scenario, 1)
            write(first, scenario, 3)
    assert written(scenario) == {"2", "3"}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("milliseconds", [HOUR_MS, -HOUR_MS])
def test_the_databases_clock_jumps(scenario: Scenario, leases: LeaseTable, milliseconds: int) -> None:
    with two_pools(scenario) as (first, second):
        write(first, scenario, 1)
        write(second, scenario, 2)
        leases.jump_clock(milliseconds)
        second.recover()
        first.recover()
        for number in range(3, 9, 2):
            persist(first, scenario, number)
            persist(second, scenario, number + 1)
    assert written(scenario) == {str(number) for number in range(1, 9)}
    scenario.assert_nothing_open()


def test_a_clock_that_jumped_back_delays_recovery_and_nothing_else(scenario: Scenario, leases: LeaseTable) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    leases.add(0, "dead")
    leases.change(expires_at_ms=int(time.time() * 1000))
    leases.jump_clock(-HOUR_MS)
    with make_pool(scenario) as pool:
        assert pool.recover() == []
        assert write(pool, scenario, 10).transactional_id == f"{prefix_of(scenario)}-1"
        leases.jump_clock(2 * HOUR_MS)
        (resolution,) = pool.recover()
        assert resolution.outcome is Outcome.COMMITTED
    assert written(scenario) == {*scenario.expected, "10"}


@pytest.mark.parametrize("predecessor", list(Predecessor))
def test_an_emptied_table_hides_no_slot(scenario: Scenario, leases: LeaseTable, predecessor: Predecessor) -> None:
    with make_pool(scenario) as pool:
        write(pool, scenario, 10)
        write(pool, scenario, 11)
        pool.close()
    scenario.leave_behind(predecessor)
    leases.empty()
    with make_pool(scenario) as pool:
        (resolution,) = pool.recover()
        assert resolution.transactional_id == scenario.transactional_id
        assert leases.owners() == {0: None}
        write(pool, scenario, 12)
    assert written(scenario) == {*scenario.expected, "10", "11", "12"}
    scenario.assert_nothing_open()


def test_a_slot_that_could_not_be_prepared_after_the_table_was_emptied_is_recovered(
    scenario: Scenario, leases: LeaseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease looks like that of a new slot, but a dead process has left a transaction open under its id."""
    monkeypatch.setattr(PoolMaintenance, "start", lambda self, *, swept=False: None)
    scenario.leave_behind(Predecessor.COMMITTED)
    prepare, failures = OwnedId.ensure_row, iter([InjectedError("the database is gone for a moment")])

    async def fail_once(owned: OwnedId) -> None:
        for failure in failures:
            raise failure
        await prepare(owned)

    monkeypatch.setattr(OwnedId, "ensure_row", fail_once)
    with make_pool(scenario) as pool:
        with pytest.raises(InjectedError):
            write(pool, scenario, 10)
        (resolution,) = pool.recover()
        assert resolution.outcome is Outcome.COMMITTED
        assert leases.owners() == {0: None}
    assert written(scenario) == {*scenario.expected}
    scenario.assert_nothing_open()


def test_the_living_go_on_when_the_table_is_emptied(scenario: Scenario, leases: LeaseTable) -> None:
    with two_pools(scenario) as (first, second):
        write(first, scenario, 1)
        write(second, scenario, 2)
        leases.empty()
        for number in range(3, 9, 2):
            persist(first, scenario, number)
            persist(second, scenario, number + 1)
            second.recover()
    assert written(scenario) == {str(number) for number in range(1, 9)}
    scenario.assert_nothing_open()


def locks_whole_database(scenario: Scenario) -> bool:
    return scenario.database.engine.dialect.name == "sqlite"


def persist(pool: AnyPool, scenario: Scenario, number: int, *, is_snapshot: bool = False) -> AnyWrite:
    """Try again if a block that has lost its slot gets no other one.

    On SQLite no other slot can be leased under its lock, and a snapshot does not show the row of a new one.
    """
    with suppress(FencedError, *([SnapshotTooOldError] if is_snapshot else [])):
        return write(pool, scenario, number)
    assert is_snapshot or locks_whole_database(scenario)
    return persist(pool, scenario, number, is_snapshot=is_snapshot)


@pytest.mark.parametrize("change", ["expires", "is freed"])
def test_a_slot_held_by_a_task_is_taken_by_no_other_task_of_the_process(
    scenario: Scenario, leases: LeaseTable, change: str
) -> None:
    """As if the process had slept for longer than its lease; the slot in recovery has no owner then."""
    if locks_whole_database(scenario):
        pytest.skip("on SQLite nobody can take a lease while a recovery holds the lock of the whole file")
    scenario.leave_behind(Predecessor.COMMITTED)
    leases.add(0, "dead")
    written_under: list[str | None] = []

    def wake() -> None:
        leases.expire() if change == "expires" else leases.free()
        written_under.append(write(pool, scenario, 10).transactional_id)

    with make_pool(scenario, pause=AtPoint(PausePoint.AFTER_LOCK, wake)) as pool:
        (resolution,) = pool.recover()
        assert resolution.outcome is Outcome.COMMITTED
        assert written_under == [f"{prefix_of(scenario)}-1"]
        assert pool.status.idle == 1
        assert [owner is None for owner in leases.owners().values()] == [True, False]
    assert written(scenario) == {*scenario.expected, "10"}
    scenario.assert_nothing_open()


def test_recover_waits_for_slots_held_by_the_background(scenario: Scenario, leases: LeaseTable) -> None:
    """The background could not resolve the slot, so that `recover()` must."""
    scenario.leave_behind(Predecessor.COMMITTED)
    leases.add(0, "dead")
    in_hand, goes_on = threading.Event(), threading.Event()

    def fail_in_background(point: PausePoint) -> None:
        if point is PausePoint.AFTER_LOCK and not in_hand.is_set():
            in_hand.set()
            assert goes_on.wait(DEADLINE_S)
            raise RowLockTimeoutError("the background has failed")

    with make_pool(scenario, pause=fail_in_background) as pool, ThreadPoolExecutor() as threads:
        pool.pool.maintenance.start()
        assert in_hand.wait(DEADLINE_S)
        recovered = threads.submit(pool.recover)
        until(lambda: pool.pool.registry.is_recovering)
        goes_on.set()
        (resolution,) = recovered.result(DEADLINE_S)
        assert resolution.outcome is Outcome.COMMITTED
        assert leases.owners() == {0: None}
    assert written(scenario) == {*scenario.expected}
    scenario.assert_nothing_open()
