"""The crash tests' dual write with `PsycopgDualWriter`, and with `AsyncPsycopgDualWriter` under the blocking names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction, AsyncPsycopgDualWriter
from tests.crash.awaited import AwaitedScenarioOf
from tests.crash.scenario import POINTS_BEFORE_WRITE_AND_COMMIT, ScenarioOf, Seen, event_texts
from tests.support.databases import PostgresDatabase

INSERT = "INSERT INTO events (id, event_key, body) VALUES (%s, 'k', %s)"


def conninfo_of(url: sa.URL) -> str:
    """For psycopg itself."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


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


async def insert_by_psycopg(tx: AsyncPsycopgDualTransaction, event_id: int, body: str) -> None:
    await tx.connection.execute(INSERT, (event_id, body))


class PsycopgScenario(ScenarioOf[PsycopgDualWriter]):
    """A scenario whose writers know nothing of SQLAlchemy."""

    database_error = psycopg.Error

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        return POINTS_BEFORE_WRITE_AND_COMMIT

    def writer(
        self, pause: PauseHook | None = None, *, engine: sa.Engine | None = None, **settings: Any
    ) -> PsycopgDualWriter:
        return self.make(PsycopgDualWriter, conninfo_of((engine or self.database.engine).url), pause, **settings)

    def write_events(self, writer: PsycopgDualWriter, number: int) -> Seen:
        return write_psycopg_events(writer, self.topic, number)


@dataclass
class AwaitedPsycopgScenario(AwaitedScenarioOf[AsyncPsycopgDualWriter]):
    """A scenario whose writers are awaited and know nothing of SQLAlchemy."""

    database_error = psycopg.Error

    async def insert(self, tx: AsyncPsycopgDualTransaction, event_id: int, body: str) -> None:
        await insert_by_psycopg(tx, event_id, body)

    def awaited_writer(self, pause: PauseHook | None = None, **settings: Any) -> AsyncPsycopgDualWriter:
        return self.make(AsyncPsycopgDualWriter, conninfo_of(self.database.engine.url), pause, **settings)

    @property
    def points_before_commit_request(self) -> Sequence[PausePoint]:
        return POINTS_BEFORE_WRITE_AND_COMMIT


@contextmanager
def awaited_psycopg_scenario(database: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    with asyncio.Runner() as runner:
        yield AwaitedPsycopgScenario(database, emulator, runner=runner)
