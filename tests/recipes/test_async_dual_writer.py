"""`AsyncDualWriter` without crashes: misuse and cancellation that other writers do not know."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
import uvloop
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    create_async_engine,
)

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    IllegalStateError,
    TransactionDoomedError,
)
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.crash.awaited import AwaitedScenario, awaited_scenario
from tests.crash.matrix import check_a_commit_that_is_lost_with_the_database
from tests.crash.scenario import event_texts
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, SqliteDatabase, events, waits_for_a_lock
from tests.support.topics import read_topic


@pytest.fixture
def writer(awaited: AwaitedScenario) -> Iterator[AsyncDualWriter]:
    with awaited.writer() as made:
        yield made.awaited


async def put(tx: AsyncDualTransaction, scenario: AwaitedScenario, number: int) -> None:
    """One event to both sides."""
    await tx.connection.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})
    tx.send(scenario.topic, key="k", value=str(number))


# ---- blocks -----------------------------------------------------------------------------------------------------


async def test_no_close_inside_a_block_of_the_same_task(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    async with writer.transaction() as tx:
        await put(tx, awaited, 1)
        with pytest.raises(IllegalStateError, match="leave its block"):
            await writer.close()
    awaited.assert_both_sides_agree("1")


async def test_a_block_that_is_left_to_the_garbage_collector_is_rolled_back(
    awaited: AwaitedScenario, writer: AsyncDualWriter
) -> None:
    block = writer.transaction()
    await put(await block.__aenter__(), awaited, 1)
    others = asyncio.all_tasks()
    del block
    gc.collect()
    await asyncio.sleep(0)
    (ending,) = asyncio.all_tasks() - others
    await ending
    async with writer.transaction() as tx:
        await put(tx, awaited, 2)
    awaited.assert_both_sides_agree("2")


# ---- misuse -----------------------------------------------------------------------------------------------------


async def test_unusable_connections_are_refused(
    awaited: AwaitedScenario, tmp_path: Path, writer: AsyncDualWriter
) -> None:
    other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    await writer.recover()
    async with AsyncSession(awaited.engine) as session, session.begin_nested():
        with pytest.raises(IllegalStateError, match="inside a savepoint"):
            await writer.transaction(session).__aenter__()
    async with AsyncSession(other) as session:
        with pytest.raises(IllegalStateError, match="another Engine"):
            await writer.transaction(session).__aenter__()
    await other.dispose()
    with pytest.raises(IllegalStateError, match="not started"):
        await writer.transaction(awaited.engine.connect()).__aenter__()
    awaited.assert_both_sides_agree()


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_without_an_answer_is_resolved_once_the_database_is_back(
    awaited: AwaitedScenario, applied: bool
) -> None:
    check_a_commit_that_is_lost_with_the_database(awaited, "resolve", applied=applied)


# ---- cancellation in the ways of programs -----------------------------------------------------------------------


async def test_a_timeout_around_a_block(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(None) as limit, writer.transaction() as tx:
            await put(tx, awaited, 1)
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
    assert isinstance(raised.value.__context__, asyncio.CancelledError)
    assert "neither database nor Kafka is changed" in raised.value.__context__.__notes__[0]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    async with writer.transaction() as tx:
        await put(tx, awaited, 2)
    awaited.expected.append("2")
    awaited.assert_both_sides_agree()


async def test_a_cancelled_anyio_scope(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    with anyio.CancelScope() as scope:
        async with writer.transaction() as tx:
            await put(tx, awaited, 1)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert tx.outcome is Outcome.ROLLED_BACK
    async with writer.transaction() as tx:
        await put(tx, awaited, 2)
    awaited.expected.append("2")
    awaited.assert_both_sides_agree()


async def test_a_cancellation_that_is_swallowed_inside_the_block_is_no_success(
    awaited: AwaitedScenario, writer: AsyncDualWriter
) -> None:
    await writer.recover()
    with pytest.raises(TransactionDoomedError):
        async with writer.transaction() as tx:
            await put(tx, awaited, 1)
            asyncio.get_running_loop().call_soon(_this_task().cancel)
            with suppress(asyncio.CancelledError):
                await put(tx, awaited, 2)
            assert _this_task().uncancel() == 0
    awaited.assert_both_sides_agree()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_a_cancelled_commit_without_records_has_no_known_outcome(
    awaited: AwaitedScenario, writer: AsyncDualWriter
) -> None:
    await writer.recover()
    async with AsyncSession(awaited.engine) as session:
        dialect: Any = awaited.engine.sync_engine.dialect
        send_commit = dialect.do_commit

        def do_commit(connection: Any) -> None:
            _this_task().cancel()
            send_commit(connection)

        with pytest.raises(asyncio.CancelledError) as raised:
            async with writer.transaction(session) as tx:
                await tx.session.execute(sa.select(1))
                dialect.do_commit = do_commit
        dialect.do_commit = send_commit
        assert _this_task().uncancel() == 0
        assert tx.outcome is None
        assert "without records, no row shows its outcome" in raised.value.__notes__[0]
    assert writer.state is SlotState.READY
    awaited.assert_both_sides_agree()


async def test_a_commit_without_records_that_a_hook_cancels_was_not_sent(
    awaited: AwaitedScenario, writer: AsyncDualWriter
) -> None:
    """On PostgreSQL, the effect of hooks is checked first."""
    if awaited.driver == "aiosqlite":
        pytest.skip("nothing is looked at there, so that COMMIT is what is cancelled")
    await writer.recover()
    async with AsyncSession(awaited.engine) as session:
        sa.event.listen(session.sync_session, "before_commit", lambda _: _this_task().cancel() and None)
        with pytest.raises(asyncio.CancelledError):
            async with writer.transaction(session) as tx:
                await tx.session.execute(sa.select(1))
        assert _this_task().uncancel() == 0
        assert tx.outcome is Outcome.ROLLED_BACK
    assert writer.state is SlotState.READY
    awaited.assert_both_sides_agree()


def test_the_loop_ends_inside_a_block(emulator: Emulator, tmp_path: Path) -> None:
    """asyncio.run() cancels all tasks; the next process finds no transaction, or completes it."""
    database = SqliteDatabase(tmp_path)

    async def leave() -> None:
        writer = awaited.awaited_writer()
        inside = asyncio.Event()

        async def write() -> None:
            async with writer.transaction() as tx:
                await put(tx, awaited, 1)
                inside.set()
                await asyncio.Event().wait()

        writing.append(asyncio.create_task(write()))
        await inside.wait()

    writing: list[asyncio.Task[None]] = []
    with awaited_scenario(database, emulator, "aiosqlite") as awaited:
        asyncio.run(leave())
        assert writing[0].cancelled()
        writer = awaited.writer()
        assert awaited.write(writer, 2).error is None
        writer.close()
        awaited.assert_both_sides_agree()
    database.close()


@pytest.mark.parametrize("awaited", ["psycopg", "asyncpg"], indirect=True)
async def test_a_wait_for_the_row_is_cancelled_at_once(awaited: AwaitedScenario, writer: AsyncDualWriter) -> None:
    """The server's statement is cancelled too: once the lock is free, no transaction takes it."""
    await writer.recover()
    async with awaited.engine.begin() as other:
        await other.execute(sa.text("SELECT * FROM kafka_transaction_state FOR UPDATE"))
        task = asyncio.create_task(write(writer, awaited, 1))
        await asyncio.to_thread(until, lambda: waits_for_a_lock(awaited.database))
        task.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([task])
        assert task.cancelled()
    await write(writer, awaited, 2)
    awaited.assert_both_sides_agree()


async def write(writer: AsyncDualWriter, awaited: AwaitedScenario, number: int) -> None:
    async with writer.transaction() as tx:
        await put(tx, awaited, number)
    awaited.expected.append(str(number))


def test_a_second_loop_is_refused_once_and_then_has_its_own_producer(
    emulator: Emulator, postgres: PostgresDatabase
) -> None:
    """The connections of the first one went with it."""
    with awaited_scenario(postgres, emulator, "psycopg") as awaited:
        writer = awaited.awaited_writer()
        awaited.run(write(writer, awaited, 1))
        awaited.run(awaited.engine.dispose())
        with asyncio.Runner() as second:
            with pytest.raises(IllegalStateError, match="belongs to another event loop"):
                second.run(write(writer, awaited, 2))
            assert writer.state is SlotState.NEW
            second.run(write(writer, awaited, 3))
            second.run(awaited.engine.dispose())
            second.run(writer.close())
        awaited.assert_both_sides_agree()


def test_with_uvloop(emulator: Emulator, postgres: PostgresDatabase) -> None:
    with awaited_scenario(postgres, emulator, "asyncpg", uvloop.new_event_loop) as awaited:
        with awaited.writer() as writer:
            assert awaited.write(writer, 1).error is None
        awaited.assert_both_sides_agree()
    assert [value for _, value in read_topic(emulator.bootstrap_servers, awaited.topic)] == event_texts("1")
