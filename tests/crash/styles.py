"""Blocks of a pool, as scripts that threads or tasks carry out, with each library."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import sqlalchemy as sa

from dualwrite.errors import DualWriteError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking
from tests.crash.scenario import OrdinaryError
from tests.support.writers import ELSEWHERE, KINDS, closed, entered, got

INSERT: Final = "INSERT INTO events (id, event_key, body) VALUES ({0}, 'k', '{0}')"
PATIENCE_S: Final = 60.0


STYLES: Final = ("psycopg", "sqlalchemy", "psycopg-awaited", "asyncpg-alone", "sqlalchemy-awaited")
"""The kinds of pools on PostgreSQL."""
STYLES_ELSEWHERE: Final = tuple(ELSEWHERE)


@dataclass(eq=False)
class Member:
    """One block: its script, and its result."""

    number: int
    script: Sequence[str]
    tx: Any = None
    seen: list[Any] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    holds: threading.Event = field(default_factory=threading.Event)
    future: Future[None] | None = None

    @property
    def error(self) -> BaseException | None:
        """Why it failed, once it has ended."""
        assert self.future is not None
        return self.future.exception(PATIENCE_S)

    @property
    def outcome(self) -> Outcome | None:
        return None if self.tx is None else self.tx.outcome


class Style:
    """A pool, and how its blocks carry out a script: each in a thread, or in a task of the loop of one thread."""

    def __init__(self, name: str, url: sa.URL, topic: str, **settings: Any) -> None:
        """`name`: one of `STYLES` or `STYLES_ELSEWHERE`."""
        self.name = name
        self.kind = (KINDS | ELSEWHERE)[name]
        self.url = url
        self.topic = topic
        self.settings = settings
        self.pool: Any = None

    def __enter__(self) -> Self:
        if self.kind.is_awaited:
            self.loop = asyncio.new_event_loop()
            self.thread = threading.Thread(target=self.loop.run_forever)
            self.thread.start()
        self.run(self._begin())
        return self

    async def _begin(self) -> None:
        self.source = self.kind.source(self.url)
        self.pool = self.kind.writer(self.source, **self.settings)

    def __exit__(self, *_: object) -> None:
        self.run(closed(self.pool, self.source))
        if self.kind.is_awaited:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()

    def run(self, steps: Coroutine[Any, Any, Any]) -> Any:
        """Carry out a coroutine, in the loop if there is one, and return its result."""
        if self.kind.is_awaited:
            return asyncio.run_coroutine_threadsafe(steps, self.loop).result(PATIENCE_S)
        return blocking.run(steps)

    def recover(self) -> None:
        self.run(got(self.pool.recover()))

    def start(self, number: int, *script: str) -> Member:
        """Start a block with a thread or task of its own."""
        member = Member(number, script or ("put",))
        member.future = self._started(self.run_block(member))
        return member

    def write(self, number: int, *script: str) -> Member:
        """Run a block to its end."""
        member = self.start(number, *script)
        assert member.error is None, member.error
        return member

    def closing(self) -> Future[None]:
        """Begin to close the pool."""

        async def close() -> None:
            await got(self.pool.close())

        return self._started(close())

    def _started(self, steps: Coroutine[Any, Any, None]) -> Future[None]:
        if self.kind.is_awaited:
            return asyncio.run_coroutine_threadsafe(steps, self.loop)
        future: Future[None] = Future()

        def run() -> None:
            try:
                blocking.run(steps)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=run, daemon=True).start()
        return future

    async def run_block(self, member: Member) -> None:
        async with entered(self.pool.transaction()) as member.tx:
            for step in member.script:
                await self._do(step, member)

    async def _execute(self, member: Member, text: str) -> Any:
        return await got(self.kind.execute(member.tx, text))

    async def _do(self, step: str, member: Member) -> None:
        match step:
            case "put":
                await self._execute(member, INSERT.format(member.number))
                self.send(member)
            case "hold":
                member.holds.set()
                if self.kind.is_awaited:
                    await asyncio.to_thread(member.hold.wait, PATIENCE_S)
                else:
                    assert member.hold.wait(PATIENCE_S)
            case "raise":
                raise OrdinaryError
            case "bad":
                await self._execute(member, "SELECT * FROM no_such_table")
            case "swallow":
                with suppress(Exception):
                    await self._execute(member, "SELECT * FROM no_such_table")
            case "refused":
                with suppress(DualWriteError):
                    member.tx.send("not a topic", value="x")
            case "commit" | "rollback":
                with suppress(DualWriteError):
                    await self._end(member, step)
            case "part":
                with suppress(OrdinaryError):
                    async with entered(member.tx.savepoint()):
                        await self._execute(member, INSERT.format(member.number + 1000))
                        member.tx.send(self.topic, key="k", value="part")
                        raise OrdinaryError
            case _:
                member.seen.append(await self._rows(member, step))

    async def _end(self, member: Member, step: str) -> None:
        on = member.tx.session if self.kind.is_on_sqlalchemy else member.tx.connection
        if hasattr(on, step):
            await got(getattr(on, step)())
        else:  # a connection of asyncpg has no such methods
            await self._execute(member, step.upper())

    async def _rows(self, member: Member, query: str) -> list[Any]:
        if self.name == "asyncpg-alone":
            return [tuple(row) for row in await member.tx.connection.fetch(query)]
        found: list[Any] = await got((await self._execute(member, query)).fetchall())
        return found

    def send(self, member: Member) -> None:
        member.tx.send(self.topic, key="k", value=str(member.number))
