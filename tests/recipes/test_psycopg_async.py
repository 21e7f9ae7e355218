"""`AsyncPsycopgDualWriter` without crashes: the possible effects of asyncio on `PsycopgDualWriter`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg_pool import AsyncConnectionPool

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction, AsyncPsycopgDualWriter
from tests.crash.psycopg_scenario import INSERT, AwaitedPsycopgScenario, awaited_psycopg_scenario, conninfo_of
from tests.crash.scenario import OrdinaryError
from tests.support.databases import PostgresDatabase
from tests.support.topics import read_topic


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    with awaited_psycopg_scenario(postgres, emulator) as made:
        yield made


@pytest.fixture
def writer(scenario: AwaitedPsycopgScenario) -> Iterator[AsyncPsycopgDualWriter]:
    with scenario.writer() as made:
        yield made.awaited


@pytest.fixture(params=[True, False], ids=["autocommit", "transactional"])
def connection(request: pytest.FixtureRequest, scenario: AwaitedPsycopgScenario) -> Iterator[psycopg.AsyncConnection]:
    """Open a connection of the caller's own."""
    connect = psycopg.AsyncConnection.connect(conninfo_of(scenario.database.url), autocommit=request.param)
    made = scenario.run(connect)
    yield made
    scenario.run(made.close())


async def put(tx: AsyncPsycopgDualTransaction, scenario: AwaitedPsycopgScenario, number: int) -> None:
    """One event to both sides."""
    await tx.connection.execute(INSERT, (number, str(number)))
    tx.send(scenario.topic, key="k", value=str(number))


@asynccontextmanager
async def from_a_pool(conninfo: str) -> AsyncIterator[AsyncConnectionPool]:
    async with AsyncConnectionPool(conninfo, min_size=1, max_size=1, timeout=60) as pool:
        yield pool


@asynccontextmanager
async def from_a_function(conninfo: str) -> AsyncIterator[Any]:
    yield partial(psycopg.AsyncConnection.connect, conninfo, autocommit=True)


@pytest.mark.parametrize("source", [from_a_pool, from_a_function])
async def test_connections_of_every_origin(
    scenario: AwaitedPsycopgScenario, source: Callable[[str], AbstractAsyncContextManager[Any]]
) -> None:
    async with (
        source(conninfo_of(scenario.database.engine.url)) as database,
        AsyncPsycopgDualWriter(
            database,
            transactional_id=scenario.transactional_id,
            bootstrap_servers=scenario.emulator.bootstrap_servers,
        ) as writer,
    ):
        for number in range(7):
            if number == 5:
                scenario.database.cut()
            async with writer.transaction() as tx:
                await put(tx, scenario, number)
            scenario.expected.append(str(number))
        with pytest.raises(OrdinaryError):
            async with writer.transaction() as tx:
                await put(tx, scenario, 9)
                raise OrdinaryError
        assert await writer.recover() == []
    scenario.assert_both_sides_agree()


async def test_the_callers_own_connection_and_savepoints(
    scenario: AwaitedPsycopgScenario, writer: AsyncPsycopgDualWriter, connection: psycopg.AsyncConnection
) -> None:
    async with writer.transaction(connection) as tx:
        await put(tx, scenario, 1)
        async with tx.connection.transaction():
            await put(tx, scenario, 2)
        with pytest.raises(OrdinaryError):
            async with tx.savepoint():
                await put(tx, scenario, 3)
                raise OrdinaryError
        async with tx.connection.transaction(force_rollback=True):
            await put(tx, scenario, 4)
        async with tx.connection.pipeline():
            await put(tx, scenario, 6)
    assert tx.outcome is Outcome.COMMITTED
    assert connection.info.transaction_status == pq.TransactionStatus.IDLE
    assert "commit" not in vars(connection)
    scenario.assert_both_sides_agree("1", "2", "6")


@pytest.mark.parametrize("call", ["commit", "rollback"])
async def test_what_would_end_the_transaction(
    scenario: AwaitedPsycopgScenario, call: str, writer: AsyncPsycopgDualWriter, connection: psycopg.AsyncConnection
) -> None:
    with pytest.raises(TransactionEndedInsideError):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            await getattr(tx.connection, call)()
    with pytest.raises(TransactionDoomedError):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            with pytest.raises(psycopg.errors.UniqueViolation):
                await tx.connection.execute(INSERT, (1, "again"))
    with pytest.raises(OrdinaryError):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            async for _ in tx.connection.cursor().stream("SELECT generate_series(1, 10)"):
                raise OrdinaryError
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("ending", ["COMMIT AND CHAIN", "ROLLBACK; BEGIN"])
async def test_a_transaction_that_was_ended_past_the_connection(
    scenario: AwaitedPsycopgScenario, ending: str, writer: AsyncPsycopgDualWriter, connection: psycopg.AsyncConnection
) -> None:
    with pytest.raises(TransactionEndedInsideError):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            tx.connection.pgconn.exec_(ending.encode())
            await put(tx, scenario, 2)
    assert scenario.row().is_empty
    assert read_topic(scenario.emulator.bootstrap_servers, scenario.topic) == []
    scenario.assert_nothing_open()


async def test_connections_that_are_refused(
    scenario: AwaitedPsycopgScenario, writer: AsyncPsycopgDualWriter, connection: psycopg.AsyncConnection
) -> None:
    async with connection.transaction():
        with pytest.raises(IllegalStateError, match="outermost"):
            async with writer.transaction(connection):
                pass
    async with connection.pipeline():
        with pytest.raises(IllegalStateError, match="pipeline"):
            async with writer.transaction(connection):
                pass
    with pytest.raises(IllegalStateError, match="AsyncConnection"):
        async with writer.transaction(object()):  # type: ignore[arg-type]
            pass
    async with writer.transaction(connection) as tx:
        await put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match="already carries"):
            async with writer.transaction(connection):
                pass
    scenario.assert_both_sides_agree("1")


async def test_a_task_that_is_cancelled_in_its_block_leaves_nothing(
    scenario: AwaitedPsycopgScenario, writer: AsyncPsycopgDualWriter, connection: psycopg.AsyncConnection
) -> None:
    await writer.recover()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            await tx.connection.execute("SELECT pg_sleep(30)")
    assert tx.outcome is Outcome.ROLLED_BACK
    assert writer.state is SlotState.READY
    async with writer.transaction(connection) as tx:
        await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")
