"""Pools with an outbox, with each library, in threads and in tasks: a committed block is published once."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.errors import (
    ConfigError,
    IllegalStateError,
    InvalidRecordError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome
from dualwrite.producer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.core.stored_blocks import MOST_BYTES_AT_A_TIME
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.sqlalchemy import sessions_async
from dualwrite.recipes.sqlalchemy.sessions import current_dual_write, dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AnyScenario, OrdinaryError
from tests.crash.styles import INSERT
from tests.recipes.outboxes import (
    Open,
    any_style,
    assert_published,
    elsewhere,
    in_order,
    outbox_pool,
    scenario_of,
    settings_for,
    waiting,
)
from tests.recipes.outboxes import open_any_style as open_style
from tests.recipes.outboxes import scenario_anywhere as scenario
from tests.recipes.pools import QUIET_LEASE_MS, LeaseTable, isolated_source, put, read, write
from tests.support.awaited_databases import awaited_engine
from tests.support.conditions import until
from tests.support.event_class import Event
from tests.support.writers import KINDS, closed, entered, got

__all__ = ["any_style", "open_style", "scenario"]  # fixtures


of_both_kinds = pytest.mark.parametrize("any_style", ["psycopg", "sqlalchemy-awaited"], indirect=True)
"""For threads, and for asyncio."""

# ---- one block ------------------------------------------------------------------------------------------------------


def test_blocks_are_committed_and_then_published_in_their_order(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    for number in range(5):
        member = style.write(number)
        assert (member.outcome, member.tx.transactional_id) == (Outcome.STORED, scenario.transactional_id)
    assert_published(scenario, *range(5))
    assert in_order(scenario) == [str(number) for number in range(5)]


def test_a_process_that_does_not_publish_leaves_the_outbox_to_another(
    scenario: PsycopgScenario, open_style: Open
) -> None:
    style = open_style(Outbox(publishes=False))
    assert style.pool.status.is_diverted
    style.write(1)
    style.write(2)
    assert not style.pool.status.publishes_outbox
    until(lambda: style.pool.status.outbox_blocks == 2)
    assert in_order(scenario) == []
    with outbox_pool(scenario) as other:
        other.recover()
        assert other.status.publishes_outbox
        assert_published(scenario, 1, 2)
        style.write(3)
        assert_published(scenario, 1, 2, 3)


FAILURES: dict[str, Any] = {
    "raise": OrdinaryError,
    "bad": (psycopg.Error, asyncpg.PostgresError, sa.exc.DBAPIError),
    "swallow": TransactionDoomedError,
    "refused": TransactionDoomedError,
    "commit": (TransactionDoomedError, TransactionEndedInsideError),
    "rollback": (TransactionDoomedError, TransactionEndedInsideError),
}


def test_a_block_that_fails_publishes_nothing(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    style.write(1)
    for number, (failure, error) in enumerate(FAILURES.items(), start=10):
        failed = style.start(number, "put", failure)
        assert isinstance(failed.error, error), (failure, failed.error)
        assert failed.outcome is Outcome.ROLLED_BACK, failure
    style.write(3)
    assert_published(scenario, 1, 3)


def test_a_rolled_back_savepoint_drops_its_records(scenario: PsycopgScenario, open_style: Open) -> None:
    assert open_style().write(1, "put", "part").outcome is Outcome.STORED
    assert_published(scenario, 1)


def test_a_block_without_records_is_an_ordinary_transaction(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    silent = style.write(1, "INSERT INTO events (id, event_key, body) VALUES (1, 'k', '1') RETURNING id")
    assert silent.outcome is Outcome.COMMITTED
    assert silent.seen == [[(1,)]]
    assert waiting(scenario) == 0
    assert in_order(scenario) == []


def test_the_outbox_takes_no_lock_of_another_block(scenario: PsycopgScenario, open_style: Open) -> None:
    if scenario.database.url.get_backend_name() == "sqlite":
        pytest.skip("a block that writes keeps the lock of the file")
    style = open_style()
    held = style.start(1, "put", "hold")
    assert held.holds.wait(30)
    for number in (2, 3):
        style.write(number)
    assert_published(scenario, 2, 3)
    held.hold.set()
    assert held.error is None
    assert_published(scenario, 1, 2, 3)
    assert in_order(scenario) == ["2", "3", "1"]


def test_many_blocks_at_once(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    style.write(0)
    members = [style.start(number) for number in range(1, 41)]
    assert {(member.error, member.outcome) for member in members} == {(None, Outcome.STORED)}
    assert_published(scenario, *range(41))


@of_both_kinds
def test_large_records(scenario: PsycopgScenario, open_style: Open) -> None:
    """More records than one transaction takes."""
    style = open_style(max_request_size=4 << 20)
    text = "x" * (900 << 10)

    def put_large(member: Any) -> None:
        member.tx.send(scenario.topic, key="large", value=f"{member.number}{text}")

    for number in range(12):
        member = style.start(number, "put", "hold")
        assert member.holds.wait(30)
        put_large(member)
        member.hold.set()
        assert member.error is None
    until(lambda: waiting(scenario) == 0)
    until(lambda: len(in_order(scenario)) == 24)
    large = [value for value in in_order(scenario) if value.endswith("x")]
    assert large == [f"{number}{text}" for number in range(12)]


@of_both_kinds
def test_a_record_that_the_producer_would_refuse_is_refused_in_the_block(
    scenario: PsycopgScenario, open_style: Open
) -> None:
    style = open_style(max_request_size=2_000)
    member = style.start(1, "put", "hold")
    assert member.holds.wait(30)
    member.tx.send(scenario.topic, value="x" * 3_000)
    member.hold.set()
    assert isinstance(member.error, InvalidRecordError)
    assert member.outcome is Outcome.ROLLED_BACK
    style.write(2)
    assert_published(scenario, 2)


@of_both_kinds
def test_consumed_offsets_are_refused(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    member = style.start(1, "put", "hold")
    assert member.holds.wait(30)
    member.tx.send_offsets({TopicPartition(scenario.topic, 0): OffsetAndMetadata(1)}, ConsumerGroupMetadata("group"))
    member.hold.set()
    with pytest.raises(IllegalStateError, match="consumed offsets cannot go into an outbox"):
        raise member.error or AssertionError
    assert member.outcome is Outcome.ROLLED_BACK
    assert_published(scenario)


# ---- transactions that are ended past the library -------------------------------------------------------------------

_ENDINGS = ["ROLLBACK", "COMMIT", "ROLLBACK; BEGIN", "COMMIT; BEGIN", "ROLLBACK AND CHAIN", "COMMIT AND CHAIN"]


async def end_past(tx: Any, ending: str) -> None:
    """End the transaction of a block on the driver's connection itself."""
    if not hasattr(tx, "session"):
        raw = driver.unwrapped(tx.connection)
    elif isinstance(tx.connection, sa.Connection):
        raw = tx.connection.connection.driver_connection
    else:
        raw = (await tx.connection.get_raw_connection()).driver_connection
    if hasattr(raw, "pgconn"):
        raw.pgconn.exec_(ending.encode())
    else:
        await driver.execute(raw, ending)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        *itertools.product(["psycopg", "sqlalchemy", "asyncpg-alone"], _ENDINGS),
        *itertools.product(["asyncpg"], _ENDINGS[:2]),
    ],
)
def test_a_transaction_that_was_ended_past_the_library(scenario: PsycopgScenario, name: str, ending: str) -> None:
    kind = KINDS[name]

    async def use() -> None:
        source = kind.source(scenario.database.url)
        pool = kind.writer(source, **settings_for(scenario))
        with pytest.raises(TransactionEndedInsideError):
            async with entered(pool.transaction()) as tx:
                await got(kind.execute(tx, "SELECT id FROM events"))
                tx.send(scenario.topic, key="k", value="1")
                await end_past(tx, ending)
                tx.send(scenario.topic, key="k", value="2")
        assert tx.outcome is None
        async with entered(pool.transaction()) as tx:
            await got(kind.execute(tx, INSERT.format(3)))
            tx.send(scenario.topic, key="k", value="3")
        assert tx.outcome is Outcome.STORED
        await closed(pool, source)

    asyncio.run(use()) if kind.is_awaited else blocking.run(use())
    assert_published(scenario, 3)


def on_async_engine(
    scenario: PsycopgScenario, driver: str, use: Callable[[AsyncEngine, AsyncDualWriter], Awaitable[None]]
) -> None:
    async def run() -> None:
        engine = awaited_engine(scenario.database.url, driver)
        async with AsyncDualWriter(engine, **settings_for(scenario)) as pool:
            await use(engine, pool)
        await engine.dispose()

    asyncio.run(run())


# ---- Sessions -------------------------------------------------------------------------------------------------------


def test_sessions_that_the_application_commits(scenario: PsycopgScenario) -> None:
    engine = scenario.database.engine
    with DualWriter(engine, **settings_for(scenario)) as pool:
        sessions = sessionmaker(engine)
        dual_write_sessions(sessions, pool)
        with sessions() as session:
            for number in (1, 2):
                session.add(Event(number))
                send(session, scenario.topic, key="k", value=str(number))
                tx = current_dual_write(session)
                session.commit()
                assert tx.outcome is Outcome.STORED
            session.add(Event(3))
            send(session, scenario.topic, key="k", value="3")
            session.rollback()
            session.add(Event(4))
            send(session, scenario.topic, key="k", value="4")
            with pytest.raises(OrdinaryError), session.begin_nested():
                session.add(Event(5))
                send(session, scenario.topic, key="k", value="5")
                raise OrdinaryError
            session.commit()
        assert_published(scenario, 1, 2, 4)
        assert in_order(scenario) == ["1", "2", "4"]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_async_sessions_that_the_application_commits(scenario: PsycopgScenario, driver: str) -> None:
    async def use(engine: AsyncEngine, pool: AsyncDualWriter) -> None:
        sessions = async_sessionmaker(engine)
        dual_write_sessions(sessions, pool)
        async with sessions() as session:
            for number in (1, 2):
                session.add(Event(number))
                await sessions_async.send(session, scenario.topic, key="k", value=str(number))
                tx = await sessions_async.current_dual_write(session)
                await session.commit()
                assert tx.outcome is Outcome.STORED
            session.add(Event(3))
            await sessions_async.send(session, scenario.topic, key="k", value="3")
            await session.rollback()

    on_async_engine(scenario, driver, use)
    assert_published(scenario, 1, 2)


# ---- isolation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "level"),
    [
        *itertools.product(["psycopg", "sqlalchemy"], ["REPEATABLE READ", "SERIALIZABLE"]),
        *itertools.product(["mariadb"], ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]),
    ],
)
def test_blocks_that_keep_a_snapshot(request: pytest.FixtureRequest, emulator: Emulator, on: str, level: str) -> None:
    """Blocks that others publish and delete meanwhile do not matter to them."""
    shown = shown_on(on, request, emulator)
    with isolated_pool(on, shown, level) as pool:
        write(pool, shown, 1)
        with pool.transaction() as tx:
            read(tx, "SELECT 1")
            read(tx, "SELECT id FROM events WHERE id = 1")
            for number in (2, 3):
                with ThreadPoolExecutor(1) as other:
                    other.submit(write, pool, shown, number).result()
            until(lambda: waiting(shown) == 0)
            put(tx, shown, 4)
        assert tx.outcome is Outcome.STORED
        assert_published(shown, 1, 2, 3, 4)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("on", ["psycopg", "sqlalchemy", "mariadb"])
def test_the_publisher_keeps_no_snapshot(
    request: pytest.FixtureRequest, emulator: Emulator, on: str, level: str
) -> None:
    """In one transaction it sees each block that is committed meanwhile; in SQLite none can be."""
    shown = shown_on(on, request, emulator)
    with isolated_pool(on, shown, level, Outbox(publishes=False)) as pool:
        of, database = shown.transactional_id, pool.backend.database

        async def seen(transaction: DatabaseTransaction) -> list[int]:
            await transaction.lock(of, timeout_ms=None)
            table, found = transaction.stored_blocks(of), []
            for number in range(3):
                write(pool, shown, number)
                found.append(len((await table.waiting(of, max_bytes=MOST_BYTES_AT_A_TIME))[1]))
            return found

        blocking.run(database.ensure_row(of))
        assert blocking.run(in_own_transaction(database.begin, seen)) == [1, 2, 3]


def shown_on(on: str, request: pytest.FixtureRequest, emulator: Emulator) -> AnyScenario:
    database = request.getfixturevalue("mariadb" if on == "mariadb" else "postgres")
    return scenario_of(database, emulator) if on == "psycopg" else elsewhere(database, emulator)


def isolated_pool(on: str, shown: AnyScenario, level: str, outbox: Outbox | None = None) -> Any:
    kind: Any = PsycopgDualWriter if on == "psycopg" else DualWriter
    return kind(isolated_source(shown, level), **settings_for(shown, outbox))


# ---- the pool -------------------------------------------------------------------------------------------------------


def test_closing_hands_over_at_once(scenario: PsycopgScenario) -> None:
    """The lease would last for much longer than this test."""
    first = outbox_pool(scenario, lease_ms=QUIET_LEASE_MS)
    write(first, scenario, 1)
    assert_published(scenario, 1)
    with outbox_pool(scenario, lease_ms=QUIET_LEASE_MS) as second:
        write(second, scenario, 2)
        assert_published(scenario, 1, 2)
        assert (first.status.publishes_outbox, second.status.publishes_outbox) == (True, False)
        first.close()
        write(second, scenario, 3)
        assert_published(scenario, 1, 2, 3)
        assert second.status.publishes_outbox


def test_publishers_that_lose_their_lease_all_the_time(scenario: PsycopgScenario) -> None:
    """Each process believes that it publishes alone; row lock and fence keep the blocks in order."""
    leases = LeaseTable(scenario)
    disturb = itertools.cycle((leases.expire, leases.free, leases.empty))
    with outbox_pool(scenario) as first, outbox_pool(scenario) as second:
        for number in range(60):
            write(second if number % 2 else first, scenario, number)
            next(disturb)()
        assert_published(scenario, *range(60))
    assert in_order(scenario) == [str(number) for number in range(60)]


@of_both_kinds
def test_a_closed_pool_takes_no_blocks(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    style.write(1)
    style.closing().result(60)
    assert isinstance(style.start(2).error, IllegalStateError)
    assert_published(scenario, 1)


def test_a_forked_process_has_an_outbox_of_its_own(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario) as pool:
        write(pool, scenario, 1)
        child = os.fork()
        if child == 0:
            try:
                write(pool, scenario, 2)
                pool.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        write(pool, scenario, 3)
        assert_published(scenario, 1, 2, 3)


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"publishes": 1},
        {"publishes": "yes"},
        {"poll_ms": 0},
        {"poll_ms": 1.5},
        {"poll_ms": True},
        {"linger_ms": -1},
        {"linger_ms": 0.5},
        {"linger_ms": False},
        {"linger_ms": 1, "publishes": False},
        {"poll_ms": 21, "publishes": False},
        {"max_stored_bytes": 0},
        {"max_stored_age_ms": 0.5},
    ],
)
def test_values_of_an_outbox_that_make_no_sense(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        Outbox(**values)


def test_a_database_in_memory_cannot_have_an_outbox() -> None:
    with pytest.raises(ConfigError, match="SingletonThreadPool, which has a single connection"):
        DualWriter(sa.create_engine("sqlite://"), prefix="p", delivery=Outbox(), bootstrap_servers="127.0.0.1:1")


def test_an_async_engine_that_cannot_have_an_outbox() -> None:
    with pytest.raises(ConfigError, match="StaticPool, which has a single connection"):
        AsyncDualWriter(
            create_async_engine("sqlite+aiosqlite://"), prefix="p", delivery=Outbox(), bootstrap_servers="127.0.0.1:1"
        )
