"""`AsyncpgDualWriter` without crashes: what `test_every_connection.py` does not say of all drivers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import asyncpg
import pytest

from dualwrite.broker_emulator import Fault, Hold
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    IllegalStateError,
    PoolTimeoutError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.asyncpg.writer import AsyncpgDualTransaction, AsyncpgDualWriter
from tests.crash.asyncpg_scenario import INSERT, AsyncpgScenario, asyncpg_scenario
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import OrdinaryError
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies
from tests.support.topics import read_topic


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AsyncpgScenario]:
    with asyncpg_scenario(postgres, emulator) as made:
        yield made


@pytest.fixture
def writer(scenario: AsyncpgScenario) -> Iterator[AsyncpgDualWriter]:
    with scenario.writer() as made:
        yield made.awaited


@pytest.fixture
def connection(scenario: AsyncpgScenario) -> Iterator[Any]:
    """Take a connection that a pool hands out, which wraps one of the driver."""
    pool = scenario.run(asyncpg.create_pool(conninfo_of(scenario.database.url), min_size=1, max_size=1).__aenter__())
    made = scenario.run(pool.acquire().__aenter__())
    yield made
    scenario.run(pool.release(made))
    scenario.run(pool.close())


async def put(tx: AsyncpgDualTransaction, scenario: AsyncpgScenario, number: int) -> None:
    """One event to both sides."""
    await tx.connection.execute(INSERT, number, str(number))
    tx.send(scenario.topic, key="k", value=str(number))


# ---- connections ---------------------------------------------------------------------------------------------------


def from_a_function(dsn: str) -> AbstractAsyncContextManager[Any]:
    return nullcontext(partial(asyncpg.connect, dsn))


@asynccontextmanager
async def from_a_pool(dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        yield pool


async def test_a_pool_gets_its_connection_back_as_it_was(scenario: AsyncpgScenario) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with (
        from_a_pool(conninfo_of(scenario.database.url)) as pool,
        scenario.awaited_writer(source=pool) as writer,
    ):
        for number in range(2):
            async with writer.transaction() as tx:
                raw = driver.unwrapped(tx.connection)
                await tx.connection.execute("SET work_mem TO '1MB'")
                await put(tx, scenario, number)
        with suppress(OrdinaryError):
            async with writer.transaction() as tx:
                raise OrdinaryError
        async with pool.acquire() as connection:
            assert driver.unwrapped(connection) is raw
            assert driver.substitute_of(raw) is None
            assert await connection.fetchval("SHOW work_mem") != "1MB"
            async with connection.transaction():
                await connection.execute(INSERT, 2, "2")
    assert complaints == []
    assert event_bodies(scenario.database) == ["0", "1", "2"]


async def test_our_own_statements_leave_no_prepared_ones_and_use_no_codec_of_the_caller(
    scenario: AsyncpgScenario,
) -> None:
    connection = await asyncpg.connect(conninfo_of(scenario.database.url))
    for name in ("text", "varchar", "int8"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=str, decoder=lambda text: f"decoded {text}", format="text"
        )
    async with scenario.awaited_writer() as writer:
        for number in range(3):
            async with writer.transaction(connection) as tx:
                await tx.connection.execute(INSERT, number, str(number))
                tx.send(scenario.topic, key="k", value=str(number))
            scenario.expected.append(str(number))
    named = await connection.fetch("SELECT statement FROM pg_prepared_statements")
    assert not [statement for (statement,) in named if "kafka_transaction" in statement]
    await connection.execute("SET default_transaction_isolation = serializable")
    driver.begin_at_read_committed(connection)
    await driver.execute(connection, driver.begin_statement(connection))
    (level,), _ = await driver.fetch(connection, "SHOW transaction_isolation", {})
    assert tuple(level) == ("read committed",)
    await connection.close()
    scenario.assert_both_sides_agree()


async def test_the_callers_time_limit_does_not_apply_to_our_statements(scenario: AsyncpgScenario) -> None:
    """asyncpg would send a cancel request, which a COMMIT must not get."""
    async with scenario.awaited_writer() as writer:
        await writer.recover()
        connection = await asyncpg.connect(conninfo_of(scenario.database.url), command_timeout=0.2)
        await connection.execute(_SLOW_COMMIT, timeout=60)
        async with writer.transaction(connection) as tx:
            await tx.connection.execute(INSERT, 1, "1", timeout=60)
            tx.send(scenario.topic, key="k", value="1")
        await connection.execute("BEGIN", timeout=60)
        await connection.execute(INSERT, 2, "2", timeout=60)
        with pytest.raises(TimeoutError):
            await connection.execute("COMMIT")
        await connection.execute("DROP TRIGGER slow ON events", timeout=60)
        await connection.close(timeout=60)
    assert event_bodies(scenario.database) == ["1"]
    assert scenario.row()


_SLOW_COMMIT = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM pg_sleep(CASE NEW.id WHEN 1 THEN 1 ELSE 600 END); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow();
"""


def with_one_id(scenario: AsyncpgScenario, source: Any, wait_ms: int) -> AsyncpgDualWriter:
    return scenario.awaited_writer(source=source, lock_timeout_ms=wait_ms)


def with_a_pool_of_ids(scenario: AsyncpgScenario, source: Any, wait_ms: int, **settings: Any) -> AsyncpgDualWriter:
    return AsyncpgDualWriter(
        source,
        prefix=scenario.transactional_id,
        acquire_timeout_ms=wait_ms,
        bootstrap_servers=scenario.emulator.bootstrap_servers,
        **settings,
    )


OpenWriter = Callable[[AsyncpgScenario, Any, int], Any]


@pytest.mark.parametrize("wait_ms", [0, 50])
@pytest.mark.parametrize("open_writer", [with_one_id, with_a_pool_of_ids])
async def test_the_wait_for_a_connection_of_an_exhausted_pool_is_limited(
    scenario: AsyncpgScenario, open_writer: OpenWriter, wait_ms: int
) -> None:
    async with (
        asyncio.timeout(30),
        from_a_pool(conninfo_of(scenario.database.url)) as pool,
        open_writer(scenario, pool, wait_ms) as writer,
    ):
        await writer.recover()
        await pool.expire_connections()  # opening a connection does not count as waiting for one
        async with writer.transaction() as tx:
            await put(tx, scenario, 1)
        async with pool.acquire():
            with pytest.raises(PoolTimeoutError, match=f"within {wait_ms} ms .max_size=1.; nothing was written"):
                async with writer.transaction():
                    pass
        assert pool.get_idle_size() == 1
        async with writer.transaction() as tx:
            await put(tx, scenario, 2)
    assert event_bodies(scenario.database) == ["1", "2"]
    assert [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)] == ["1", "2"]


@pytest.mark.parametrize("open_writer", [with_one_id, with_a_pool_of_ids])
@pytest.mark.parametrize("is_free_at_once", [False, True])
async def test_a_cancelled_wait_for_a_connection_of_an_exhausted_pool_takes_none(
    scenario: AsyncpgScenario, open_writer: OpenWriter, is_free_at_once: bool
) -> None:
    async with (
        asyncio.timeout(30),
        from_a_pool(conninfo_of(scenario.database.url)) as pool,
        open_writer(scenario, pool, 60_000) as writer,
    ):
        await writer.recover()

        async def write(number: int) -> None:
            async with writer.transaction() as tx:
                await put(tx, scenario, number)

        held = await pool.acquire()
        waiting = asyncio.create_task(write(1))
        await turns_until(lambda: _is_waiting_for(pool))
        if is_free_at_once:  # the task has been given the connection, and is cancelled before it runs
            releasing = asyncio.create_task(pool.release(held))
            await turns_until(lambda: not _is_waiting_for(pool))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await (releasing if is_free_at_once else pool.release(held))
        assert pool.get_idle_size() == 1
        await write(2)
    assert event_bodies(scenario.database) == ["2"]
    assert [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)] == ["2"]


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let others run until it holds, and go on before they run again."""
    while not condition():  # noqa: ASYNC110 - each turn of the loop counts
        await asyncio.sleep(0)


def _is_waiting_for(pool: Any) -> bool:
    return any(not getter.done() for getter in pool._queue._getters)


@pytest.mark.parametrize("source", [nullcontext, from_a_pool, from_a_function])
async def test_a_host_that_disappears_is_noticed_on_connections_of_every_origin(
    scenario: AsyncpgScenario, source: Callable[[str], AbstractAsyncContextManager[Any]]
) -> None:
    """No statement of ours has a limit of time, so only TCP's keepalive ends a wait for a host that is gone."""

    def is_kept_alive(connection: Any) -> bool:
        wire = driver.unwrapped(connection)._transport.get_extra_info("socket")
        return bool(wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    dsn = conninfo_of(scenario.database.engine.url)
    own = await asyncpg.connect(dsn)
    async with source(dsn) as database, scenario.awaited_writer(source=database) as writer:
        for connection in (None, own):
            async with writer.transaction(connection) as tx:
                assert is_kept_alive(tx.connection)
    await own.close()


async def test_a_reset_without_end_does_not_hold_up_a_block_that_is_committed(
    scenario: AsyncpgScenario, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "RESET_S", 0.05)

    async def never(connection: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async with (
        asyncpg.create_pool(conninfo_of(scenario.database.url), min_size=1, max_size=1, reset=never) as pool,
        scenario.awaited_writer(source=pool) as writer,
    ):
        for number in range(2):
            async with writer.transaction() as tx:
                await put(tx, scenario, number)
            assert tx.outcome is Outcome.COMMITTED
            scenario.expected.append(str(number))
    scenario.assert_both_sides_agree()
    assert "could not be reset (TimeoutError)" in caplog.text


async def test_a_commit_during_which_the_connection_is_reset_is_proved_durable_by_another(
    scenario: AsyncpgScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset removes the listener for abandoned waits for a standby, before its ROLLBACK is refused."""
    genuine = driver.execute
    commits: list[Any] = []

    async def with_a_reset_meanwhile(raw: Any, sql: str) -> str:
        running = asyncio.create_task(genuine(raw, sql))
        await asyncio.sleep(0)
        if "COMMIT" in sql:
            if not commits:
                with pytest.raises(TransactionEndedInsideError):
                    await raw.reset()
            commits.append(raw)
        return await running

    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    async with scenario.awaited_writer() as writer:
        await writer.recover()
        with monkeypatch.context() as patched:
            async with writer.transaction() as tx:
                block = driver.unwrapped(tx.connection)
                await put(tx, scenario, 1)
                patched.setattr(driver, "execute", with_a_reset_meanwhile)
        assert tx.outcome is Outcome.COMMITTED
    assert commits[0] is block
    assert any(other is not block for other in commits)
    scenario.assert_both_sides_agree("1")


async def test_a_kept_connection_on_which_begin_was_cancelled_is_not_used_again(
    scenario: AsyncpgScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cancels the statement after BEGIN, in a transaction that this process does not know."""
    genuine = driver.execute
    begun = asyncio.Event()

    async def slowly(raw: Any, sql: str) -> str:
        if not sql.startswith("BEGIN") or begun.is_set():
            return await genuine(raw, sql)
        begun.set()
        return await genuine(raw, sql.replace(";", "; SELECT pg_sleep(60);", 1))

    async with asyncio.timeout(30), scenario.awaited_writer() as writer:
        await writer.recover()
        monkeypatch.setattr(driver, "execute", slowly)

        async def write(number: int) -> None:
            async with writer.transaction() as tx:
                await put(tx, scenario, number)

        first = asyncio.create_task(write(1))
        await begun.wait()
        await asyncio.to_thread(until, lambda: _is_asleep(scenario))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await write(2)
    scenario.assert_both_sides_agree("2")


def _is_asleep(scenario: AsyncpgScenario) -> bool:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND usename = current_user"
    with scenario.database.aside.connect() as connection:
        return connection.exec_driver_sql(asked).scalar() == 1


# ---- blocks --------------------------------------------------------------------------------------------------------


async def test_savepoints_in_the_ways_of_asyncpg(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    async with writer.transaction(connection) as tx:
        part = tx.connection.transaction()
        await part.start()
        await put(tx, scenario, 1)
        await part.rollback()
        statement = await tx.connection.prepare("SAVEPOINT p")
        await statement.fetch()
        await put(tx, scenario, 2)
        await tx.connection.fetch("ROLLBACK TO p")
        await put(tx, scenario, 3)
    async with connection.transaction():  # an ordinary one again
        await connection.execute("SELECT 1")
    scenario.assert_both_sides_agree("3")


async def test_a_copy_and_a_cursor_inside_the_block(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    async with writer.transaction(connection) as tx:
        await tx.connection.copy_records_to_table(
            "events", records=[(1, "k", "1"), (2, "k", "2")], columns=("id", "event_key", "body")
        )
        async for (body,) in tx.connection.cursor("SELECT body FROM events ORDER BY id"):
            tx.send(scenario.topic, key="k", value=body)
        await tx.connection.executemany(INSERT, [(3, "3"), (4, "4")])
        tx.send(scenario.topic, key="k", value="3")
        tx.send(scenario.topic, key="k", value="4")
    scenario.assert_both_sides_agree("1", "2", "3", "4")


# ---- ends of the transaction ---------------------------------------------------------------------------------------


async def by_fetch(connection: Any, sql: str) -> None:
    await connection.fetch(sql)


async def by_a_prepared_statement(connection: Any, sql: str) -> None:
    await (await connection.prepare(sql)).fetch()


async def by_executemany(connection: Any, sql: str) -> None:
    await connection.executemany(sql, [()])


async def by_copy(connection: Any, sql: str) -> None:
    await connection.copy_from_query(f"SELECT 1) TO STDOUT; {sql}; COPY (SELECT 1", output=lambda data: None)


@pytest.mark.parametrize("way", [by_fetch, by_a_prepared_statement, by_executemany, by_copy])
async def test_an_end_of_the_transaction_is_not_sent(
    scenario: AsyncpgScenario,
    way: Callable[[Any, str], Coroutine[Any, Any, None]],
    writer: AsyncpgDualWriter,
    connection: Any,
) -> None:
    with pytest.raises(TransactionDoomedError):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            with pytest.raises(TransactionEndedInsideError):
                await way(tx.connection, "COMMIT")
    assert tx.outcome is Outcome.ROLLED_BACK
    scenario.assert_both_sides_agree()


async def test_savepoints_by_other_methods_are_refused(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    with pytest.raises(IllegalStateError, match="cannot be tracked"):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            await by_executemany(tx.connection, "SAVEPOINT s")
    scenario.assert_both_sides_agree()


_ENDINGS = ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN", "ROLLBACK; BEGIN", "COMMIT", "ROLLBACK"]


@pytest.mark.parametrize("ending", _ENDINGS)
@pytest.mark.parametrize("under_the_lock", [False, True])
async def test_a_transaction_that_was_ended_past_the_guard(
    scenario: AsyncpgScenario, monkeypatch: pytest.MonkeyPatch, ending: str, under_the_lock: bool
) -> None:
    """The message of COMMIT proves that it is the block's transaction, under its lock."""
    genuine = driver.AsyncpgCommitMessage.send

    async def end_before(message: driver.AsyncpgCommitMessage) -> None:
        if under_the_lock:
            await driver.execute(message.connection, ending)
        await genuine(message)

    async with scenario.awaited_writer() as writer:
        await writer.recover()
        with monkeypatch.context() as patched:
            patched.setattr(driver.AsyncpgCommitMessage, "send", end_before)
            with pytest.raises(TransactionEndedInsideError):
                async with writer.transaction() as tx:
                    await put(tx, scenario, 1)
                    if not under_the_lock:
                        await driver.execute(driver.unwrapped(tx.connection), ending)
            assert tx.outcome is None
        async with writer.transaction() as tx:
            await put(tx, scenario, 2)
    in_topic = [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]
    assert in_topic == ["2"]
    assert event_bodies(scenario.database) == (["1", "2"] if "COMMIT" in ending else ["2"])
    scenario.assert_nothing_open()


async def test_a_connection_that_was_given_back_inside(scenario: AsyncpgScenario) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    async with from_a_pool(conninfo_of(scenario.database.url)) as pool, scenario.awaited_writer(source=pool) as writer:
        with pytest.raises(TransactionEndedInsideError):
            async with writer.transaction() as tx:
                await put(tx, scenario, 1)
                await pool.release(tx.connection)
        async with writer.transaction() as tx:
            await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


# ---- swallowed failures, and unfinished work -----------------------------------------------------------------------


async def with_the_parse_of_nothing(connection: Any) -> None:
    await connection.prepare("")


async def with_the_parse_of_a_rollback(connection: Any) -> None:
    await connection.prepare("ROLLBACK TO s")


@pytest.mark.parametrize("goes_on", [with_the_parse_of_nothing, with_the_parse_of_a_rollback])
async def test_a_statement_that_a_failed_transaction_accepts_does_not_hide_the_failure(
    scenario: AsyncpgScenario,
    goes_on: Callable[[Any], Coroutine[Any, Any, None]],
    writer: AsyncpgDualWriter,
    connection: Any,
) -> None:
    with pytest.raises(TransactionDoomedError, match="DivisionByZeroError"):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            await tx.connection.execute("SAVEPOINT s")
            with suppress(asyncpg.PostgresError):
                await tx.connection.execute("SELECT 1/0")
            await goes_on(tx.connection)
    assert tx.outcome is Outcome.ROLLED_BACK
    async with writer.transaction(connection) as tx:
        await tx.connection.execute("SAVEPOINT s")
        with suppress(asyncpg.PostgresError):
            await tx.connection.execute("SELECT 1/0")
        await goes_on(tx.connection)
        with suppress(asyncpg.PostgresError):
            await tx.connection.execute("SAVEPOINT refused")
        await tx.connection.execute("ROLLBACK TO s")
        await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


async def test_a_swallowed_limit_of_time_ends_in_an_exception(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    """asyncpg has sent a cancel request; its next response shows whether that had an effect."""
    for with_records in (True, False):
        with pytest.raises(TransactionDoomedError):
            async with writer.transaction(connection) as tx:
                await tx.connection.execute(INSERT, 1, "1")
                if with_records:
                    tx.send(scenario.topic, key="k", value="1")
                with suppress(TimeoutError):
                    await tx.connection.execute("SELECT pg_sleep(60)", timeout=0.05)
        assert tx.outcome is Outcome.ROLLED_BACK
    async with writer.transaction(connection) as tx:
        await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


async def _one_then_an_error(given: Any) -> AsyncIterator[Any]:
    yield given
    raise OrdinaryError


async def with_a_failed_source_of_a_copy(connection: Any) -> None:
    with suppress(OrdinaryError):
        await connection.copy_to_table("events", source=_one_then_an_error(b"1000\tk\tcopied\n"))


async def with_a_failed_sink_of_a_copy(connection: Any) -> None:
    async def fail(data: bytes) -> None:
        raise OrdinaryError

    with suppress(OrdinaryError):
        await connection.copy_from_query("SELECT generate_series(1, 100000000)", output=fail)


async def with_a_wrong_value_of_a_copy(connection: Any) -> None:
    with suppress(TypeError):
        await connection.copy_records_to_table("events", records=[(1000, "k", 1)], columns=["id", "event_key", "body"])


@pytest.mark.parametrize(
    "fail",
    [
        with_a_failed_source_of_a_copy,
        with_a_failed_sink_of_a_copy,
        with_a_wrong_value_of_a_copy,
    ],
)
async def test_a_swallowed_failure_in_the_middle_of_a_statement_ends_in_an_exception(
    scenario: AsyncpgScenario,
    fail: Callable[[Any], Coroutine[Any, Any, None]],
    writer: AsyncpgDualWriter,
    connection: Any,
) -> None:
    """The server may have begun it, and reports the failed transaction with the next statement only."""
    with pytest.raises(TransactionDoomedError):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            await fail(tx.connection)
    assert tx.outcome is Outcome.ROLLED_BACK
    async with writer.transaction(connection) as tx:
        await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


async def test_unfinished_calls_at_the_end_of_a_block_are_refused(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    raw = driver.unwrapped(connection)
    with pytest.raises(IllegalStateError, match="finish it inside the block"):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            await tx.connection.transaction().start()
    with pytest.raises(IllegalStateError, match="finish it inside the block"):
        async with writer.transaction(connection) as tx:
            await put(tx, scenario, 1)
            sleep = asyncio.create_task(tx.connection.execute("SELECT pg_sleep(60)"))
            await asyncio.sleep(0)
    with pytest.raises(asyncpg.PostgresError):  # only dropping the connection could end it
        await sleep
    assert raw.is_closed()
    with pytest.raises(asyncpg.InterfaceError):
        async with writer.transaction(connection):
            pass
    async with writer.transaction() as tx:
        await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


@pytest.mark.parametrize("sql", [INSERT.replace("$1", "7").replace("$2", "'7'"), "ROLLBACK TO s"])
async def test_a_statement_that_comes_after_the_end_of_the_block_is_refused(
    scenario: AsyncpgScenario, sql: str, writer: AsyncpgDualWriter, connection: Any
) -> None:
    """Of a task that the block has left behind: its row would have no record, or an undone row would have one."""
    said: list[object] = []
    held = scenario.emulator.faults.add(Fault(api="Produce", topic=scenario.topic, action=Hold()))

    async def write() -> Outcome | None:
        async with writer.transaction(connection) as tx:
            await tx.connection.execute("SAVEPOINT s")
            await put(tx, scenario, 1)
        return tx.outcome

    block = asyncio.create_task(write())
    await asyncio.to_thread(held.wait_held)
    said.extend(await asyncio.gather(connection.execute(sql), return_exceptions=True))
    held.release()
    assert await block is Outcome.COMMITTED
    scenario.assert_both_sides_agree("1")
    (refused,) = said
    assert isinstance(refused, IllegalStateError)
    assert "has ended, so the statement was not sent" in str(refused)


async def test_a_part_that_was_ended_by_text_is_no_longer_unfinished(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    async with writer.transaction(connection) as tx:
        await tx.connection.execute("SAVEPOINT before")
        await tx.connection.transaction().start()
        await put(tx, scenario, 1)
        await tx.connection.execute("ROLLBACK TO before")
        await put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


# ---- refusals ------------------------------------------------------------------------------------------------------


async def test_no_dual_write_beside_a_statement_in_progress(
    scenario: AsyncpgScenario, writer: AsyncpgDualWriter, connection: Any
) -> None:
    sleep = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    with pytest.raises(IllegalStateError, match="in progress"):
        async with writer.transaction(connection):
            pass
    sleep.cancel()
    with suppress(asyncio.CancelledError):
        await sleep
    async with writer.transaction(connection) as tx:
        await put(tx, scenario, 1)
    scenario.assert_both_sides_agree("1")


async def test_another_dual_write_begins_on_the_connection_while_a_block_waits_for_its_id(
    scenario: AsyncpgScenario,
) -> None:
    """Each block would commit the rows of the other without their records."""
    snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ"  # in which a block of a pool gets its id before it begins
    dsn = conninfo_of(scenario.database.url)
    one, other = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await one.execute(snapshot)
    await other.execute(snapshot)
    async with (
        asyncio.timeout(30),
        scenario.awaited_writer() as writer,
        with_a_pool_of_ids(scenario, dsn, 30_000, max_writers=1) as pool,
    ):
        await writer.recover()

        async def write() -> None:
            async with pool.transaction(one) as tx:
                await put(tx, scenario, 2)

        async with AsyncExitStack() as only_id:
            await only_id.enter_async_context(pool.transaction(other))
            waiting = asyncio.create_task(write())
            await turns_until(lambda: pool.status.waiting == 1)
            async with writer.transaction(one) as tx:
                await put(tx, scenario, 1)
                await only_id.aclose()
                with pytest.raises(IllegalStateError, match="already carries a dual write"):
                    await waiting
            assert tx.outcome is Outcome.COMMITTED
    await one.close()
    await other.close()
    scenario.assert_both_sides_agree("1")
