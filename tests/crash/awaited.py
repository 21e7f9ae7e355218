"""The crash tests' dual write with `AsyncDualWriter`, in a loop that stands still between the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
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

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        block = self.awaited.transaction()
        tx = self._runner.run(block.__aenter__())
        try:
            yield tx
        except BaseException as error:
            if not self._runner.run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._runner.run(block.__aexit__(None, None, None))

    def close(self) -> None:
        self._runner.run(self.awaited.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class AwaitedScenario(ScenarioOf[AwaitedWriter[AsyncDualWriter]]):
    """A scenario whose writers are awaited. To be used in `awaited_scenario`."""

    driver: str = "psycopg"
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    engine: AsyncEngine = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.database, PostgresDatabase | SqliteDatabase)
        self.engine = awaited_through_faults(self.database, self.driver)

    def awaited_writer(self, pause: PauseHook | None = None, **settings: Any) -> AsyncDualWriter:
        return make_awaited_writer(
            self.engine, self.emulator.bootstrap_servers, self.transactional_id, pause=pause, **settings
        )

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        return POINTS_BEFORE_WRITE_AND_COMMIT if self.driver == "psycopg" else POINTS_BEFORE_COMMIT_REQUEST

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> AwaitedWriter[AsyncDualWriter]:
        return AwaitedWriter(self.runner, self.awaited_writer(pause, **settings))

    def write_events(self, writer: AwaitedWriter[AsyncDualWriter], number: int) -> Seen:
        return self.run(write_awaited_events(writer.awaited, self.topic, number))

    async def insert(self, tx: AsyncDualTransaction, event_id: int, body: str) -> None:
        await tx.session.execute(sa.insert(events), {"id": event_id, "event_key": "k", "body": body})

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.runner.run(coroutine)

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


def make_awaited_writer(
    engine: AsyncEngine,
    bootstrap_servers: str,
    transactional_id: str,
    pause: PauseHook | None = None,
    **settings: Any,
) -> AsyncDualWriter:
    limits: dict[str, Any] = {"lock_timeout_ms": 60_000, "resolve_timeout_ms": 60_000, "max_block_ms": 60_000}
    return AsyncDualWriter(
        engine,
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        pause=pause,
        **(limits | settings),
    )


async def write_awaited_events(writer: AsyncDualWriter, topic: str, number: int) -> Seen:
    """Write like `write_events`. A cancellation ends here, which only a test may do."""
    tx: AsyncDualTransaction | None = None
    try:
        async with writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(number))):
                await tx.session.execute(sa.insert(events), {"id": number * 10 + index, "event_key": "k", "body": body})
                tx.send(topic, value=body, key="k")
        await asyncio.sleep(0)  # where a cancellation strikes behind the last await of the block
    except (Exception, asyncio.CancelledError) as error:
        return Seen(error, tx.outcome if tx else None)
    return Seen(None, tx.outcome)
