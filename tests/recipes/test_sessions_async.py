"""AsyncSessions that the application itself commits; the counterpart of `test_sessions.py` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.util import await_only

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.sqlalchemy import sessions as of_sessions
from dualwrite.recipes.sqlalchemy.sessions_async import dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.awaited import AwaitedScenario
from tests.crash.conftest import opened
from tests.support import conditions
from tests.support.databases import SqliteDatabase, events
from tests.support.event_class import Event

Sessions = async_sessionmaker[AsyncSession]


@pytest.fixture(params=["psycopg", "aiosqlite"])
def awaited(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AwaitedScenario]:
    """Run each test on both drivers, which differ here only in how SQLite locks."""
    with opened(f"asyncio {request.param}", request, emulator, tmp_path) as scenario:
        yield scenario


@pytest.fixture
def writer(awaited: AwaitedScenario) -> Iterator[AsyncDualWriter]:
    with awaited.writer() as made:
        yield made.awaited


@pytest.fixture
def sessions(awaited: AwaitedScenario, writer: AsyncDualWriter) -> Sessions:
    made = async_sessionmaker(awaited.engine, expire_on_commit=False)
    dual_write_sessions(made, writer)
    return made


async def put(session: AsyncSession, awaited: AwaitedScenario, number: int) -> None:
    """One event to both sides."""
    session.add(Event(number))
    await send(session, awaited.topic, key="k", value=str(number))


async def test_a_scoped_session_and_a_class_of_sessions(
    awaited: AwaitedScenario, sessions: Sessions, writer: AsyncDualWriter
) -> None:
    class OurSession(AsyncSession):
        pass

    scoped = async_scoped_session(sessions, scopefunc=asyncio.current_task)
    dual_write_sessions(scoped, writer)
    scoped.add(Event(1))
    await send(scoped, awaited.topic, value="1")
    await scoped.commit()
    await scoped.remove()
    dual_write_sessions(OurSession, writer)
    async with OurSession(awaited.engine) as session:
        await put(session, awaited, 2)
        await session.commit()
    async with async_sessionmaker(awaited.engine)() as another:
        with pytest.raises(IllegalStateError, match="no writer sends to Kafka for this Session"):
            await send(another, awaited.topic, value="3")
    awaited.assert_both_sides_agree("1", "2")


# ---- several tasks ----------------------------------------------------------------------------------------------


on_postgres = pytest.mark.parametrize("awaited", ["psycopg"], indirect=True)


@on_postgres
async def test_commits_of_several_tasks_take_turns_under_one_id(
    awaited: AwaitedScenario, sessions: Sessions, writer: AsyncDualWriter
) -> None:
    async def write(number: int) -> None:
        async with sessions() as session:
            await put(session, awaited, number)
            await session.commit()

    writes = []
    async with writer.transaction() as tx:
        await awaited.insert(tx, 1, "1")
        tx.send(awaited.topic, value="1")
        for number in range(2, 7):
            writes.append(asyncio.create_task(write(number)))
            await until(lambda: len(writer.coordinator.users._queue) == 1 + len(writes))
        writes[3].cancel()
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(each) for each in done if each is not None] == [asyncio.CancelledError]
    assert done[3] is not None
    awaited.assert_both_sides_agree("1", "2", "3", "4", "6")


@on_postgres
async def test_a_commit_that_would_wait_too_long_or_for_itself_is_refused(awaited: AwaitedScenario) -> None:
    async with awaited.awaited_writer() as writer:
        sessions = async_sessionmaker(awaited.engine)
        dual_write_sessions(sessions, writer)

        async def commit(number: int) -> None:
            async with sessions.begin() as session:
                await put(session, awaited, number)

        async with writer.transaction() as tx:
            await awaited.insert(tx, 1, "1")
            tx.send(awaited.topic, value="1")
            owned = writer.coordinator.owned
            with (
                mock.patch.object(owned, "lock_timeout_ms", 50),
                pytest.raises(IllegalStateError, match="not free within 50 ms"),
            ):
                await asyncio.create_task(commit(2))
            async with sessions() as session:
                await put(session, awaited, 3)
                with pytest.raises(IllegalStateError, match="of this same task"):
                    await session.commit()
        await commit(4)
    awaited.assert_both_sides_agree("1", "4")


@on_postgres
async def test_a_listener_that_awaits_right_before_commit_lets_other_tasks_run(
    awaited: AwaitedScenario, sessions: Sessions
) -> None:
    """Their commits must not be taken for this one."""
    first_is_there, second_is_over = asyncio.Event(), asyncio.Event()

    def listen(connection: sa.Connection) -> None:
        if not first_is_there.is_set():
            first_is_there.set()
            await_only(second_is_over.wait())

    async def write_first() -> None:
        async with sessions.begin() as session:
            await put(session, awaited, 1)

    # one that was asked to listen after those of the dual write
    event.listen(awaited.engine.sync_engine, "commit", listen)
    first = asyncio.create_task(write_first())
    await first_is_there.wait()
    async with sessions.begin() as session:
        await put(session, awaited, 2)
    second_is_over.set()
    await first
    async with sessions() as session:  # in the order of the commits
        await session.execute(sa.update(events).where(events.c.id == 1).values(id=3))
        await session.commit()
    awaited.assert_both_sides_agree("2", "1")


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(conditions.until, condition)


# ---- misuse -----------------------------------------------------------------------------------------------------


def test_mismatched_sessions_and_writers_are_refused(awaited: AwaitedScenario) -> None:
    on_sqlite = isinstance(awaited.database, SqliteDatabase)
    writer = awaited.awaited_writer()
    with pytest.raises(ConfigError, match="AsyncDualWriter"):
        dual_write_sessions(sessionmaker(awaited.database.engine), writer)
    pool = AsyncDualWriter(awaited.engine, prefix="p", bootstrap_servers="127.0.0.1:1")
    made = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))
    if on_sqlite:
        with pytest.raises(ConfigError, match="SQLite"):
            dual_write_sessions(made, pool)
    with pytest.raises(IllegalStateError, match="`await` the functions"):
        of_sessions.send(made(), "topic", value="1")  # type: ignore[arg-type]
