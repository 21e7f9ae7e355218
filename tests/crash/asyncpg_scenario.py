"""The crash tests' dual write with `AsyncpgDualWriter`, under the blocking names."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.asyncpg.writer import AsyncpgDualTransaction, AsyncpgDualWriter
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from tests.crash.awaited import AwaitedWriter
from tests.crash.psycopg_scenario import LIMITS
from tests.crash.scenario import POINTS_BEFORE_WRITE_AND_COMMIT, ScenarioOf, Seen, event_texts
from tests.support.databases import PostgresDatabase

ResultT = TypeVar("ResultT")

INSERT = "INSERT INTO events (id, event_key, body) VALUES ($1, 'k', $2)"


def dsn_of(url: sa.URL) -> str:
    """For asyncpg itself."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def make_asyncpg_writer(
    source: Any, bootstrap_servers: str, transactional_id: str, pause: PauseHook | None = None, **settings: Any
) -> AsyncpgDualWriter:
    return AsyncpgDualWriter(
        dsn_of(source) if isinstance(source, sa.URL) else source,
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        pause=pause,
        **(LIMITS | settings),
    )


async def write_asyncpg_events(writer: AsyncpgDualWriter, topic: str, number: int) -> Seen:
    """Write like `write_events`. A cancellation ends here, which only a test may do."""
    tx: AsyncpgDualTransaction | None = None
    try:
        async with writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(number))):
                await tx.connection.execute(INSERT, number * 10 + index, body)
                tx.send(topic, value=body, key="k")
    except (Exception, asyncio.CancelledError) as error:
        return Seen(error, tx.outcome if tx else None)
    return Seen(None, tx.outcome)


@dataclass
class AsyncpgScenario(ScenarioOf[AwaitedWriter[AsyncpgDualWriter]]):
    """A scenario whose writers are awaited and know nothing of SQLAlchemy."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    loops_of_writers: list[asyncio.Runner] | None = None
    """None: the writers share one loop; else each has one of its own, as a process has, and may be in any thread."""
    database_error = asyncpg.PostgresError

    def awaited_writer(
        self, pause: PauseHook | None = None, *, source: Any = None, **settings: Any
    ) -> AsyncpgDualWriter:
        return make_asyncpg_writer(
            source or self.database.engine.url,
            self.emulator.bootstrap_servers,
            self.transactional_id,
            pause=pause,
            **settings,
        )

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        return POINTS_BEFORE_WRITE_AND_COMMIT

    def writer(
        self, pause: PauseHook | None = None, *, engine: sa.Engine | None = None, **settings: Any
    ) -> AwaitedWriter[AsyncpgDualWriter]:
        runner = self.runner
        if self.loops_of_writers is not None:
            runner = asyncio.Runner()
            self.loops_of_writers.append(runner)
        source = None if engine is None else engine.url
        return AwaitedWriter(runner, self.awaited_writer(pause, source=source, **settings))

    def write_events(self, writer: AwaitedWriter[AsyncpgDualWriter], number: int) -> Seen:
        return writer.run(write_asyncpg_events(writer.awaited, self.topic, number))

    async def insert(self, tx: AsyncpgDualTransaction, event_id: int, body: str) -> None:
        await tx.connection.execute(INSERT, event_id, body)

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.runner.run(coroutine)


@contextmanager
def asyncpg_scenario(
    database: PostgresDatabase, emulator: Emulator, *, loop_of_each_writer: bool = False
) -> Iterator[AsyncpgScenario]:
    loops: list[asyncio.Runner] = []
    with asyncio.Runner() as runner:
        loops_of_writers = loops if loop_of_each_writer else None
        yield AsyncpgScenario(database, emulator, runner=runner, loops_of_writers=loops_of_writers)
        for loop in loops:
            loop.close()
