"""dualwrite's own reader for psycopg's AsyncConnection: every kind of wait, and no socket is left registered."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop

from dualwrite.recipes.psycopg.driver import closed, epoll_of, read_by_its_loop
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import conninfo_of


@pytest.fixture
def conninfo(postgres_server: PostgresServer) -> str:
    return conninfo_of(postgres_server.url)


async def connected(conninfo: str) -> psycopg.AsyncConnection[Any]:
    connection: psycopg.AsyncConnection[Any] = read_by_its_loop(
        await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
    )
    return connection


async def close(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.close()
    closed(connection)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def answer(connection: psycopg.AsyncConnection[Any], sql: str, *values: Any) -> Any:
    row = await (await connection.execute(sql, values or None)).fetchone()
    assert row is not None
    return row[0]


async def test_answers_and_values_of_any_size_of_several_connections(
    conninfo: str, either_loop: asyncio.Runner
) -> None:
    async def use(number: int) -> None:
        connection = await connected(conninfo)
        for size in (1, 2_000_000, 1):
            assert await answer(connection, "SELECT repeat(%s, %s)", str(number), size) == str(number) * size
        assert await answer(connection, "SELECT length(%s)", "x" * 2_000_000) == 2_000_000  # which must be sent first
        async with connection.pipeline():
            cursors = [await connection.execute("SELECT %s", (each,)) for each in range(100)]
        assert [await cursor.fetchone() for cursor in cursors] == [(each,) for each in range(100)]
        async with connection.cursor().copy("COPY (SELECT generate_series(1, 10000)) TO STDOUT") as copy:
            assert len([row async for row in copy.rows()]) == 10_000
        await close(connection)

    await asyncio.gather(*(use(number) for number in range(3)))


async def test_a_cancelled_statement_ends_and_the_connection_goes_on(
    conninfo: str, either_loop: asyncio.Runner
) -> None:
    connection = await connected(conninfo)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):  # a cancellation that the server gets before the statement ends nothing
            await connection.execute("SELECT pg_sleep(60)")
    assert await answer(connection, "SELECT 1") == 1
    await close(connection)


async def test_notifications_come_and_a_time_limit_ends_the_wait_for_them(
    conninfo: str, either_loop: asyncio.Runner
) -> None:
    connection, other = await connected(conninfo), await connected(conninfo)
    await connection.execute("LISTEN news")
    await other.execute("NOTIFY news, 'unasked'")  # while no task waits
    assert await answer(connection, "SELECT 1") == 1
    await other.execute("NOTIFY news, 'asked'")
    heard: list[str] = []
    async with asyncio.timeout(30):
        while "asked" not in heard:  # each wait ends by its time limit
            heard += [notify.payload async for notify in connection.notifies(timeout=0.2)]
    assert heard[-1] == "asked"
    assert await answer(connection, "SELECT 2") == 2
    await close(connection)
    await close(other)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_no_socket_is_left_of_what_was_closed_lost_or_dropped(
    conninfo: str, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def use() -> None:
        dropped = await connected(conninfo)
        lost = await connected(conninfo)
        other = await connected(conninfo)
        assert await answer(dropped, "SELECT 1") == 1
        await other.execute("SELECT pg_terminate_backend(%s)", (lost.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            for _ in range(100):
                await answer(lost, "SELECT 1")
        for connection in (lost, other):
            await close(connection)
            closed(connection)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del dropped
            gc.collect()
        await asyncio.sleep(0)

    with suppress(OSError):
        run(use())  # descriptors of the loops themselves are open from now on
    before = open_files()
    run(use())
    assert open_files() == before


async def test_a_reset_connection_stays_readable(either_loop: asyncio.Runner) -> None:
    """A server that closes with a statement unread resets the connection (ECONNRESET).

    uvloop calls the reader of such a socket once, and never again: the read of its last message also waits for the end.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    readable = asyncio.Event()
    watched = epoll_of(ours.fileno())
    loop.add_reader(watched, readable.set)
    await asyncio.sleep(0)
    ours.send(b"unread")
    theirs.send(b"the last message")
    theirs.close()
    for _ in range(2):  # the message, then the end
        async with asyncio.timeout(60):
            await readable.wait()
        with suppress(ConnectionResetError):
            ours.recv(100)
        readable.clear()
    loop.remove_reader(watched)
    if watched != ours.fileno():
        os.close(watched)
    ours.close()


async def test_a_server_that_goes_with_a_statement_unread_is_noticed(
    conninfo: str, either_loop: asyncio.Runner
) -> None:
    """The socket has an error then (ECONNRESET), which libuv does not report as readable."""
    lost = await connected(conninfo)
    process_id = lost.info.backend_pid
    os.kill(process_id, signal.SIGSTOP)
    asked = asyncio.create_task(answer(lost, "SELECT 1"))
    for _ in range(10):  # sent without waiting, and nothing is read
        await asyncio.sleep(0)
    os.kill(process_id, signal.SIGTERM)
    os.kill(process_id, signal.SIGCONT)
    with pytest.raises(psycopg.OperationalError):
        async with asyncio.timeout(30):
            await asked
    await close(lost)
