"""Blocks of a pool, as scripts that threads or tasks carry out, with each library."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dualwrite.errors import DualWriteError
from dualwrite.recipes.asyncpg.writer import AsyncpgDualWriter
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.asyncpg_scenario import dsn_of
from tests.crash.psycopg_scenario import conninfo_of

INSERT: Final = "INSERT INTO events (id, event_key, body) VALUES ({0}, 'k', '{0}')"
PATIENCE_S: Final = 60.0


class OrdinaryError(Exception):
    pass


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
    """A pool, and how its blocks carry out a script."""

    on_sqlalchemy = False

    def __init__(self, url: sa.URL, topic: str, **settings: Any) -> None:
        self.url = url
        self.topic = topic
        self.settings = settings
        self.pool: Any = None

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError

    def start(self, number: int, *script: str) -> Member:
        """Start a block with a thread or task of its own."""
        member = Member(number, script or ("put",))
        member.future = self._started(member)
        return member

    def write(self, number: int, *script: str) -> Member:
        """Run a block to its end."""
        member = self.start(number, *script)
        assert member.error is None, member.error
        return member

    def _started(self, member: Member) -> Future[None]:
        raise NotImplementedError

    def closing(self) -> Future[None]:
        """Begin to close the pool."""
        raise NotImplementedError

    def sql(self, text: str) -> Any:
        return sa.text(text) if self.on_sqlalchemy else text

    def send(self, member: Member) -> None:
        member.tx.send(self.topic, key="k", value=str(member.number))


class ThreadStyle(Style):
    def __enter__(self) -> Self:
        self.pool = self.make()
        return self

    def make(self) -> Any:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.close()

    def _started(self, member: Member) -> Future[None]:
        future: Future[None] = Future()

        def run() -> None:
            try:
                with self.pool.transaction() as member.tx:
                    for step in member.script:
                        self.do(step, member)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=run, daemon=True).start()
        return future

    def closing(self) -> Future[None]:
        future: Future[None] = Future()

        def close() -> None:
            try:
                self.pool.close()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        threading.Thread(target=close, daemon=True).start()
        return future

    def execute(self, member: Member, text: str) -> Any:
        on = member.tx.session if self.on_sqlalchemy else member.tx.connection
        return on.execute(self.sql(text))

    def do(self, step: str, member: Member) -> None:
        match step:
            case "put":
                self.execute(member, INSERT.format(member.number))
                self.send(member)
            case "hold":
                member.holds.set()
                assert member.hold.wait(PATIENCE_S)
            case "raise":
                raise OrdinaryError
            case "bad":
                self.execute(member, "SELECT * FROM no_such_table")
            case "swallow":
                with suppress(Exception):
                    self.execute(member, "SELECT * FROM no_such_table")
            case "refused":
                with suppress(DualWriteError):
                    member.tx.send("not a topic", value="x")
            case "commit":
                with suppress(DualWriteError):
                    (member.tx.session if self.on_sqlalchemy else member.tx.connection).commit()
            case "rollback":
                with suppress(DualWriteError):
                    (member.tx.session if self.on_sqlalchemy else member.tx.connection).rollback()
            case "part":
                with suppress(OrdinaryError), member.tx.savepoint():
                    self.execute(member, INSERT.format(member.number + 1000))
                    member.tx.send(self.topic, key="k", value="part")
                    raise OrdinaryError
            case _:
                member.seen.append(self.execute(member, step).fetchall())


class PsycopgThreads(ThreadStyle):
    def make(self) -> Any:
        return PsycopgDualWriter(conninfo_of(self.url), **self.settings)


class SqlAlchemyThreads(ThreadStyle):
    on_sqlalchemy = True

    def make(self) -> Any:
        self.engine = sa.create_engine(self.url.set(drivername="postgresql+psycopg"))
        return DualWriter(self.engine, **self.settings)

    def __exit__(self, *how: Any) -> None:
        super().__exit__(*how)
        self.engine.dispose()


class TaskStyle(Style):
    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.run(self.begin())
        return self

    async def begin(self) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        await self.pool.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, steps: Any) -> Any:
        """Carry out a coroutine in the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(steps, self.loop).result(PATIENCE_S)

    def closing(self) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self.pool.close(), self.loop)

    def _started(self, member: Member) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self.run_block(member), self.loop)

    async def run_block(self, member: Member) -> None:
        async with self.pool.transaction() as member.tx:
            for step in member.script:
                await self.do(step, member)

    async def execute(self, member: Member, text: str) -> Any:
        on = member.tx.session if self.on_sqlalchemy else member.tx.connection
        return await on.execute(self.sql(text))

    async def do(self, step: str, member: Member) -> None:
        match step:
            case "put":
                await self.execute(member, INSERT.format(member.number))
                self.send(member)
            case "hold":
                member.holds.set()
                await asyncio.to_thread(member.hold.wait, PATIENCE_S)
            case "raise":
                raise OrdinaryError
            case "bad":
                await self.execute(member, "SELECT * FROM no_such_table")
            case "swallow":
                with suppress(Exception):
                    await self.execute(member, "SELECT * FROM no_such_table")
            case "refused":
                with suppress(DualWriteError):
                    member.tx.send("not a topic", value="x")
            case "commit":
                with suppress(DualWriteError):
                    await (member.tx.session if self.on_sqlalchemy else member.tx.connection).commit()
            case "rollback":
                with suppress(DualWriteError):
                    await (member.tx.session if self.on_sqlalchemy else member.tx.connection).rollback()
            case "part":
                with suppress(OrdinaryError):
                    async with member.tx.savepoint():
                        await self.execute(member, INSERT.format(member.number + 1000))
                        member.tx.send(self.topic, key="k", value="part")
                        raise OrdinaryError
            case _:
                found = await self.execute(member, step)
                member.seen.append(found.fetchall() if self.on_sqlalchemy else await found.fetchall())


class PsycopgTasks(TaskStyle):
    async def begin(self) -> None:
        self.pool = AsyncPsycopgDualWriter(conninfo_of(self.url), **self.settings)


class AsyncpgTasks(TaskStyle):
    async def begin(self) -> None:
        self.pool = AsyncpgDualWriter(dsn_of(self.url), **self.settings)

    async def do(self, step: str, member: Member) -> None:
        match step:
            case "commit" | "rollback":  # a connection has no such methods
                with suppress(DualWriteError):
                    await self.execute(member, step.upper())
            case "put" | "hold" | "raise" | "bad" | "swallow" | "refused" | "part":
                await super().do(step, member)
            case _:
                member.seen.append([tuple(row) for row in await member.tx.connection.fetch(step)])


class SqlAlchemyTasks(TaskStyle):
    on_sqlalchemy = True

    async def begin(self) -> None:
        self.engine: AsyncEngine = create_async_engine(self.url.set(drivername="postgresql+psycopg"))
        self.pool = AsyncDualWriter(self.engine, **self.settings)

    async def end(self) -> None:
        await super().end()
        await self.engine.dispose()


STYLES: Final[list[Callable[..., AbstractContextManager[Any]]]] = [
    PsycopgThreads,
    SqlAlchemyThreads,
    PsycopgTasks,
    AsyncpgTasks,
    SqlAlchemyTasks,
]
