"""A statement sent ahead: the next one receives its response, and fails if that one failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest

from dualwrite.recipes.psycopg.driver import PipelinedStatement, closed, read_by_its_loop
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import conninfo_of

Connection = psycopg.AsyncConnection[Any]
Use = Callable[[Connection], Coroutine[Any, Any, None]]


@pytest.fixture(params=[True, False], ids=["ours", "psycopg's"])
def in_a_transaction(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Callable[[Use], None]:
    async def steps(use: Use) -> None:
        connection = await psycopg.AsyncConnection.connect(conninfo_of(postgres_server.url), autocommit=True)
        if request.param:
            read_by_its_loop(connection)
        before = dict(vars(connection))
        await connection.execute("BEGIN")
        await use(connection)
        if not connection.closed:
            await connection.rollback()
            assert vars(connection).get("wait") == before.get("wait")
        await connection.close()
        closed(connection)

    return lambda use: asyncio.run(steps(use))


async def execute(connection: Connection) -> None:
    await connection.execute("SELECT 1")


async def nest(connection: Connection) -> None:
    async with connection.transaction():
        await connection.execute("SELECT 1")


async def copy(connection: Connection) -> None:
    async with connection.cursor().copy("COPY (SELECT 1) TO STDOUT") as rows:
        assert [row async for row in rows.rows()] == [("1",)]


async def stream(connection: Connection) -> None:
    assert [row async for row in connection.cursor().stream("SELECT 1")] == [(1,)]


async def execute_in_a_pipeline(connection: Connection) -> None:
    async with connection.pipeline():
        cursor = await connection.execute("SELECT 1")
        assert await cursor.fetchone() == (1,)


@pytest.mark.parametrize("use", [execute, nest, copy, stream, execute_in_a_pipeline])
def test_any_use_of_the_connection_takes_the_answer(in_a_transaction: Callable[[Use], None], use: Use) -> None:
    async def steps(connection: Connection) -> None:
        PipelinedStatement(connection, "SAVEPOINT here")
        await use(connection)
        await connection.execute("ROLLBACK TO SAVEPOINT here")

    in_a_transaction(steps)


def test_nothing_is_sent_after_a_failure(in_a_transaction: Callable[[Use], None]) -> None:
    async def steps(connection: Connection) -> None:
        PipelinedStatement(connection, "RELEASE SAVEPOINT never_set")
        for send in (execute, execute, psycopg.AsyncConnection.rollback):
            with pytest.raises(psycopg.errors.InvalidSavepointSpecification):
                await send(connection)
        connection.pgconn.finish()

    in_a_transaction(steps)


def test_an_interruption_before_the_answer_keeps_the_next_statement_back(
    in_a_transaction: Callable[[Use], None],
) -> None:
    async def steps(connection: Connection) -> None:
        PipelinedStatement(connection, "SELECT pg_sleep(60)")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await connection.execute("CREATE TABLE never_created ()")
        with pytest.raises(psycopg.OperationalError, match="was interrupted"):
            await connection.execute("SELECT 1")
        async with await psycopg.AsyncConnection.connect(connection.info.dsn, autocommit=True) as other:
            found = await (await other.execute("SELECT to_regclass('never_created')")).fetchone()
        assert found == (None,)
        connection.pgconn.finish()

    in_a_transaction(steps)


def test_nothing_is_sent_to_a_server_that_is_known_to_be_gone(in_a_transaction: Callable[[Use], None]) -> None:
    async def steps(connection: Connection) -> None:
        connection.pgconn.finish()
        with pytest.raises(psycopg.OperationalError):
            PipelinedStatement(connection, "SAVEPOINT here")

    in_a_transaction(steps)
