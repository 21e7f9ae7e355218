"""The same dual write by each of the ways to a Postgres, under blocking names, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import psycopg
import sqlalchemy as sa

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.dual_write import Resolution
from tests.crash.psycopg_scenario import conninfo_of
from tests.support.writers import KINDS, closed, entered, got

TOPIC = "events"
TABLE = "CREATE TABLE IF NOT EXISTS events (id int PRIMARY KEY)"

_LIMITS: dict[str, Any] = {"lock_timeout_ms": 1_000, "resolve_timeout_ms": 1_000}


class Face:
    """A writer of one kind; one for asyncio has a loop in a thread of its own."""

    def __init__(self, kind: str, url: sa.URL, bootstrap_servers: str, transactional_id: str) -> None:
        self._kind = KINDS[kind]
        self._loop: asyncio.AbstractEventLoop | None = None
        if self._kind.is_awaited:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        self._source = self._kind.source(url)
        self.writer = self._kind.writer(
            self._source, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **_LIMITS
        )
        self._writing: asyncio.Task[None] | None = None

    def write(self, number: int, *before: str) -> None:
        """One dual write of a row and a record, with other statements before it."""

        async def write() -> None:
            if self._loop is not None:
                self._writing = asyncio.current_task()
            async with entered(self.writer.transaction()) as tx:
                for statement in (*before, f"INSERT INTO events VALUES ({number})"):
                    await got(self._kind.execute(tx, statement))
                tx.send(TOPIC, value=str(number))

        self._run(write())

    def cancel(self) -> None:
        """Interrupt the write that is under way."""
        assert self._loop is not None, "a thread cannot be cancelled"
        assert self._writing is not None
        self._loop.call_soon_threadsafe(self._writing.cancel)

    def recover(self) -> list[Resolution]:
        found: list[Resolution] = self._run(got(self.writer.recover()))
        return found

    def _run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            return blocking.run(steps)
        return asyncio.run_coroutine_threadsafe(steps, self._loop).result(30)

    def close(self) -> None:
        if self._loop is None:
            blocking.run(closed(self.writer, self._source))
        elif not self._loop.is_closed():
            self._run(closed(self.writer, self._source))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


AWAITED = tuple(name for name, kind in KINDS.items() if kind.is_awaited)


class Writing(threading.Thread):
    """One dual write in a thread of its own."""

    def __init__(self, face: Face, number: int) -> None:
        super().__init__(daemon=True)
        self._face = face
        self._number = number
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._face.write(self._number)
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        """The error that it raised, once it has ended."""
        self.join(30)
        assert not self.is_alive()
        return self.error


def rows(url: sa.URL) -> list[int]:
    """The numbers in the table."""
    with psycopg.connect(conninfo_of(url)) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM events ORDER BY id")]


def closed_whatever(face: Face) -> None:
    """Close a writer whose database may be gone."""
    with suppress(Exception):
        face.close()
