"""The crash tests' dual write with `AsyncDualWriter`, in a loop that stands still between the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.asyncpg.writer import AsyncpgDualWriter
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter, Resolution
from tests.crash.scenario import (
    POINTS_BEFORE_COMMIT_REQUEST,
    POINTS_BEFORE_WRITE_AND_COMMIT,
    ScenarioOf,
    Seen,
    event_texts,
)
from tests.support.awaited_databases import awaited_through_faults
from tests.support.databases import PostgresDatabase, SqliteDatabase, events

ResultT = TypeVar("ResultT")
AwaitedT = TypeVar("AwaitedT", bound=AsyncDualWriter | AsyncPsycopgDualWriter | AsyncpgDualWriter)
Insert = Callable[[Any, int, str], Awaitable[None]]


@contextmanager
def entered(runner: asyncio.Runner, manager: AbstractAsyncContextManager[ResultT]) -> Iterator[ResultT]:
    """Be inside `manager`, which is awaited."""

    async def enter() -> ResultT:
        return await manager.__aenter__()

    async def leave(error: BaseException | None) -> bool | None:
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        return await manager.__aexit__(kind, error, traceback)

    value = runner.run(enter())
    try:
        yield value
    except BaseException as error:
        if not runner.run(leave(error)):
            raise
    else:
        runner.run(leave(None))


class AwaitedWriter(Generic[AwaitedT]):
    """A writer for asyncio with the blocking names, so that one test fits both."""

    def __init__(self, runner: asyncio.Runner, writer: AwaitedT) -> None:
        self._runner = runner
        self.awaited = writer

    @property
    def state(self) -> SlotState:
        return self.awaited.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        return self.awaited.in_doubt

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Carry a coroutine out in the writer's loop."""
        return self._runner.run(coroutine)

    def recover(self) -> list[Resolution]:
        return self._runner.run(self.awaited.recover())

    def transaction(self, bind: Any = None) -> AbstractContextManager[Any]:
        return entered(self._runner, self.awaited.transaction(bind))

    def close(self) -> None:
        self._runner.run(self.awaited.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def insert_by_session(tx: AsyncDualTransaction, event_id: int, body: str) -> None:
    await tx.session.execute(sa.insert(events), {"id": event_id, "event_key": "k", "body": body})


async def write_awaited_events(
    writer: AwaitedT, insert: Insert, topic: str, number: int, *, goes_on: bool = False
) -> Seen:
    """Write like `write_events`. A cancellation ends here, which only a test may do.

    If it `goes_on`, one strikes behind the last await of the block, too.
    """
    tx: Any = None
    is_behind = False
    try:
        async with writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(number))):
                await insert(tx, number * 10 + index, body)
                tx.send(topic, value=body, key="k")
        is_behind = True
        if goes_on:
            await asyncio.sleep(0)
    except (Exception, asyncio.CancelledError) as error:
        return Seen(error, tx.outcome if tx else None, is_behind)
    return Seen(None, tx.outcome)


@dataclass
class AwaitedScenarioOf(ScenarioOf[AwaitedWriter[AwaitedT]], Generic[AwaitedT]):
    """A scenario whose writers are awaited, in one loop."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    async def insert(self, tx: Any, event_id: int, body: str) -> None:
        raise NotImplementedError

    def awaited_writer(self, pause: PauseHook | None = None, **settings: Any) -> AwaitedT:
        raise NotImplementedError

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> AwaitedWriter[AwaitedT]:
        return AwaitedWriter(self.runner, self.awaited_writer(pause, **settings))

    def write_events(self, writer: AwaitedWriter[AwaitedT], number: int) -> Seen:
        return writer.run(write_awaited_events(writer.awaited, self.insert, self.topic, number))

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.runner.run(coroutine)


@dataclass
class AwaitedScenario(AwaitedScenarioOf[AsyncDualWriter]):
    """A scenario of `AsyncDualWriter`. To be used in `awaited_scenario`."""

    driver: str = "psycopg"
    engine: AsyncEngine = field(init=False)

    async def insert(self, tx: AsyncDualTransaction, event_id: int, body: str) -> None:
        await insert_by_session(tx, event_id, body)

    def write_events(self, writer: AwaitedWriter[AsyncDualWriter], number: int) -> Seen:
        return writer.run(write_awaited_events(writer.awaited, self.insert, self.topic, number, goes_on=True))

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.database, PostgresDatabase | SqliteDatabase)
        self.engine = awaited_through_faults(self.database, self.driver)

    def awaited_writer(self, pause: PauseHook | None = None, **settings: Any) -> AsyncDualWriter:
        return self.make(AsyncDualWriter, self.engine, pause, **settings)

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        of_postgres = isinstance(self.database, PostgresDatabase)
        return POINTS_BEFORE_WRITE_AND_COMMIT if of_postgres else POINTS_BEFORE_COMMIT_REQUEST

    def assert_nothing_open(self) -> None:
        super().assert_nothing_open()
        checked_out = getattr(self.engine.pool, "checkedout", None)
        assert checked_out is None or checked_out() == 0


@contextmanager
def awaited_scenario(
    database: PostgresDatabase | SqliteDatabase,
    emulator: Emulator,
    driver: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    made: type[AwaitedScenario] | None = None,
) -> Iterator[AwaitedScenario]:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        scenario = (made or AwaitedScenario)(database, emulator, driver=driver, runner=runner)
        yield scenario
        runner.run(scenario.engine.dispose())
