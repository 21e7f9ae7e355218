"""The crash tests' dual write with `AsyncpgDualWriter`, under the blocking names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.asyncpg.writer import AsyncpgDualTransaction, AsyncpgDualWriter
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from tests.crash.awaited import AwaitedScenarioOf, AwaitedWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import POINTS_BEFORE_WRITE_AND_COMMIT
from tests.support.databases import PostgresDatabase

INSERT = "INSERT INTO events (id, event_key, body) VALUES ($1, 'k', $2)"


async def insert_by_asyncpg(tx: AsyncpgDualTransaction, event_id: int, body: str) -> None:
    await tx.connection.execute(INSERT, event_id, body)


@dataclass
class AsyncpgScenario(AwaitedScenarioOf[AsyncpgDualWriter]):
    """A scenario whose writers are awaited and know nothing of SQLAlchemy."""

    async def insert(self, tx: AsyncpgDualTransaction, event_id: int, body: str) -> None:
        await insert_by_asyncpg(tx, event_id, body)

    loops_of_writers: list[asyncio.Runner] | None = None
    """None: the writers share one loop; else each has one of its own, as a process has, and may be in any thread."""
    database_error = asyncpg.PostgresError

    def awaited_writer(
        self, pause: PauseHook | None = None, *, source: Any = None, **settings: Any
    ) -> AsyncpgDualWriter:
        return self.make(AsyncpgDualWriter, source or conninfo_of(self.database.engine.url), pause, **settings)

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
        source = None if engine is None else conninfo_of(engine.url)
        return AwaitedWriter(runner, self.awaited_writer(pause, source=source, **settings))


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
