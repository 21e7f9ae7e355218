"""The crash tests' dual write with `PsycopgDualWriter`, and with `AsyncPsycopgDualWriter` under the blocking names."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction, AsyncPsycopgDualWriter
from tests.crash.awaited import AwaitedWriter
from tests.crash.scenario import POINTS_BEFORE_WRITE_AND_COMMIT, ScenarioOf, Seen, event_texts
from tests.support.databases import PostgresDatabase

ResultT = TypeVar("ResultT")

INSERT = "INSERT INTO events (id, event_key, body) VALUES (%s, 'k', %s)"

LIMITS: dict[str, Any] = {"lock_timeout_ms": 60_000, "resolve_timeout_ms": 60_000, "max_block_ms": 60_000}


def conninfo_of(url: sa.URL) -> str:
    """For psycopg itself."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def make_psycopg_writer(
    url: sa.URL, bootstrap_servers: str, transactional_id: str, pause: PauseHook | None = None, **settings: Any
) -> PsycopgDualWriter:
    return PsycopgDualWriter(
        conninfo_of(url),
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        pause=pause,
        **(LIMITS | settings),
    )


def make_awaited_psycopg_writer(
    url: sa.URL, bootstrap_servers: str, transactional_id: str, pause: PauseHook | None = None, **settings: Any
) -> AsyncPsycopgDualWriter:
    return AsyncPsycopgDualWriter(
        conninfo_of(url),
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        pause=pause,
        **(LIMITS | settings),
    )


def write_psycopg_events(writer: PsycopgDualWriter, topic: str, number: int) -> Seen:
    """Write like `write_events`."""
    tx: PsycopgDualTransaction | None = None
    try:
        with writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(number))):
                tx.connection.execute(INSERT, (number * 10 + index, body))
                tx.send(topic, value=body, key="k")
    except Exception as error:
        return Seen(error, tx.outcome if tx else None)
    return Seen(None, tx.outcome)


async def write_awaited_psycopg_events(writer: AsyncPsycopgDualWriter, topic: str, number: int) -> Seen:
    """Write like `write_events`. A cancellation ends here, which only a test may do."""
    tx: AsyncPsycopgDualTransaction | None = None
    try:
        async with writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(number))):
                await tx.connection.execute(INSERT, (number * 10 + index, body))
                tx.send(topic, value=body, key="k")
    except (Exception, asyncio.CancelledError) as error:
        return Seen(error, tx.outcome if tx else None)
    return Seen(None, tx.outcome)


class PsycopgScenario(ScenarioOf[PsycopgDualWriter]):
    """A scenario whose writers know nothing of SQLAlchemy."""

    database_error = psycopg.Error

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        return POINTS_BEFORE_WRITE_AND_COMMIT

    def writer(
        self, pause: PauseHook | None = None, *, engine: sa.Engine | None = None, **settings: Any
    ) -> PsycopgDualWriter:
        url = (engine or self.database.engine).url
        return make_psycopg_writer(url, self.emulator.bootstrap_servers, self.transactional_id, pause=pause, **settings)

    def write_events(self, writer: PsycopgDualWriter, number: int) -> Seen:
        return write_psycopg_events(writer, self.topic, number)


@dataclass
class AwaitedPsycopgScenario(ScenarioOf[AwaitedWriter[AsyncPsycopgDualWriter]]):
    """A scenario whose writers are awaited and know nothing of SQLAlchemy."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def awaited_writer(self, pause: PauseHook | None = None, **settings: Any) -> AsyncPsycopgDualWriter:
        return make_awaited_psycopg_writer(
            self.database.engine.url, self.emulator.bootstrap_servers, self.transactional_id, pause=pause, **settings
        )

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        return POINTS_BEFORE_WRITE_AND_COMMIT

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> AwaitedWriter[AsyncPsycopgDualWriter]:
        return AwaitedWriter(self.runner, self.awaited_writer(pause, **settings))

    def write_events(self, writer: AwaitedWriter[AsyncPsycopgDualWriter], number: int) -> Seen:
        return self.run(write_awaited_psycopg_events(writer.awaited, self.topic, number))

    async def insert(self, tx: AsyncPsycopgDualTransaction, event_id: int, body: str) -> None:
        await tx.connection.execute(INSERT, (event_id, body))

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.runner.run(coroutine)


@contextmanager
def awaited_psycopg_scenario(database: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    with asyncio.Runner() as runner:
        yield AwaitedPsycopgScenario(database, emulator, runner=runner)
