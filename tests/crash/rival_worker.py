"""Processes of the chaos test with one transactional id each: rivals, the only writer of a key, and a recovery of all.

Rivals take one id from each other; one that is fenced makes a new writer. An only writer has an id and a key of its
own, which its replacement inherits. So the order of that key is known: it is that of the names of blocks.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.errors import FencedError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.recovery.service import RecoveryReport, RecoveryService
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.chaos_job import (
    AFTER_TROUBLE_S,
    EXPECTED,
    NEW_WRITER,
    Block,
    GivenUpError,
    Job,
    Journal,
    Orders,
    bodies_of,
    insert,
)
from tests.support.writers import closed, entered, got

LONGEST_LIFE: Final = 60
"""The longest life of a writer, in blocks."""
RECOVERS: Final = 0.03
GIVES_UP: Final = 0.1
MIN_AGE_MS: Final = 500
ROUND_S: Final = 0.3


class Writer:
    """One writer of any kind. A blocking one never suspends."""

    def __init__(self, kind: str, job: Job, transactional_id: str, orders: Orders) -> None:
        make, source_of = _WRITERS[kind]
        self._source = source_of(job)
        self._writer = make(
            self._source,
            transactional_id=transactional_id,
            lock_timeout_ms=2_000,
            resolve_timeout_ms=60_000,
            pause=orders.reach,
            **job.away,
            **job.producer,
        )
        self._is_awaited = "async" in kind

    async def write(self, block: Block, topic: str, *, key: str, give_up: bool) -> None:
        async with entered(self._writer.transaction()) as tx:
            block.tx = tx
            for body in bodies_of(block.name):
                await got(insert(tx, body))
                tx.send(topic, value=body, key=key)
            if give_up:
                raise GivenUpError

    async def recover(self) -> None:
        await got(self._writer.recover())

    async def close(self) -> None:
        await closed(self._writer, self._source)

    async def rest(self, seconds: float) -> None:
        await (asyncio.sleep if self._is_awaited else blocking.sleep)(seconds)


_WRITERS: Final[dict[str, tuple[Callable[..., Any], Callable[[Job], Any]]]] = {
    "sqlalchemy": (DualWriter, lambda job: sa.create_engine(job.database_url, pool_size=1, pool_pre_ping=True)),
    "psycopg": (PsycopgDualWriter, lambda job: job.conninfo),
    "async-sqlalchemy": (
        AsyncDualWriter,
        lambda job: create_async_engine(job.database_url, pool_size=1, pool_pre_ping=True),
    ),
    "async-psycopg": (AsyncPsycopgDualWriter, lambda job: job.conninfo),
}


class Rival:
    """One process: a writer after the other. Without a `key`, that of each record is the name of its block."""

    def __init__(
        self,
        job: Job,
        name: str,
        orders: Orders,
        kind: str,
        transactional_id: str,
        key: str | None = None,
    ) -> None:
        self._job = job
        self._transactional_id = transactional_id
        self._key = key
        self._name = name
        self._orders = orders
        self._kind = kind
        self._chance = random.Random(name)
        self._journal = Journal(job, name)
        self._is_stopped = False
        self._number = 0

    def obey(self) -> None:
        self._orders.obey(self._stop)

    def _stop(self) -> None:
        self._is_stopped = True

    async def work(self) -> None:
        while not self._is_stopped:
            self._journal.note(self._name, NEW_WRITER, "")
            writer = Writer(self._kind, self._job, self._transactional_id, self._orders)
            try:
                await self._use(writer)
            finally:
                await writer.close()

    async def _use(self, writer: Writer) -> None:
        for _ in range(self._chance.randint(1, LONGEST_LIFE)):
            if self._is_stopped:
                return
            error = await self._recover(writer) if self._chance.random() < RECOVERS else await self._write(writer)
            if isinstance(error, FencedError):
                return
            await writer.rest(self._chance.uniform(0, self._job.rest_s) + AFTER_TROUBLE_S * (error is not None))

    async def _write(self, writer: Writer) -> BaseException | None:
        self._number += 1
        with self._journal.block(f"{self._name}/{self._number}", self._key) as block:
            gives_up = self._chance.random() < GIVES_UP
            await writer.write(block, self._job.topic, key=self._key or block.name, give_up=gives_up)
        return block.error

    async def _recover(self, writer: Writer) -> BaseException | None:
        try:
            await writer.recover()
        except EXPECTED as error:
            return error
        return None


RIVAL_KINDS: Final = tuple(f"rival-{kind}" for kind in _WRITERS)
ONLY_KINDS: Final = tuple(f"only-{kind}" for kind in _WRITERS)


def work_as_rival(job: Job, name: str, kind: str, orders: Any) -> None:
    """Run a process of one of `RIVAL_KINDS`."""
    os.nice(job.niceness)
    _work(Rival(job, name, Orders(orders), _writer_of(kind), job.rival_id), kind)


def _writer_of(kind: str) -> str:
    return kind.partition("-")[2]


def _work(rival: Rival, kind: str) -> None:
    listener = threading.Thread(target=rival.obey, daemon=True)
    listener.start()
    if "async" in kind:
        asyncio.run(rival.work())
    else:
        blocking.run(rival.work())


def key_of(name: str) -> str:
    """Return the key of an only writer, the same in every life of its process."""
    return name.partition(".")[0]


def work_as_only_writer(job: Job, name: str, kind: str, orders: Any) -> None:
    """Run a process of one of `ONLY_KINDS`."""
    os.nice(job.niceness)
    key = key_of(name)
    _work(Rival(job, name, Orders(orders), _writer_of(kind), f"{job.prefix}-only-{key}", key), kind)


RECOVERY: Final = "recovery"


def work_as_recovery(job: Job, name: str, kind: str, orders: Any) -> None:
    """Recover all ids, early, until told to stop."""
    os.nice(job.niceness)
    journal = Journal(job, name)
    stopped = threading.Event()
    threading.Thread(target=Orders(orders).obey, args=(stopped.set,), daemon=True).start()

    def heard(report: RecoveryReport) -> None:
        for found in report.found:
            journal.note(name, "found", repr(found))

    def failed(error: Exception) -> None:
        journal.note(name, "failed", repr(error))

    with RecoveryService(
        sa.create_engine(job.database_url, pool_pre_ping=True),
        prefix=job.prefix,
        min_age_ms=MIN_AGE_MS,
        timeout_ms=10_000,
        bootstrap_servers=job.bootstrap_servers,
    ) as service:
        service.run(ROUND_S, stopped=stopped, heard=heard, failed=failed)
