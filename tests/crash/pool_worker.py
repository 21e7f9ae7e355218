"""A process of the chaos test: threads or tasks do dual writes through one pool until it is told to stop, or killed.

What each dual write told its caller goes to a journal, a line at a time, which outlives the process.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from dualwrite.errors import DualWriteError, IllegalStateError, OutcomeUnknown
from dualwrite.recipes.decisions import Outcome
from dualwrite.recipes.dual_writes import DualWrite
from dualwrite.recipes.group_commit import AsyncPsycopgGroupCommit, GroupedDualWrite
from dualwrite.recipes.pool import DualTransaction, DualWriterPool
from dualwrite.recipes.psycopg import PsycopgDualTransaction
from dualwrite.recipes.psycopg_pool import PsycopgDualWriterPool
from dualwrite.recipes.psycopg_pool_async import AsyncPsycopgDualWriterPool

events = sa.Table("chaos_events", sa.MetaData(), sa.Column("body", sa.String(60), primary_key=True))

EXPECTED = (DualWriteError, sa.exc.SQLAlchemyError, psycopg.Error)
LEASE_MS = 2_000
NICENESS = 10
RECORDS_PER_WRITE = 2

INSERT = "INSERT INTO chaos_events VALUES (%s)"
KINDS = ("sqlalchemy", "psycopg", "grouped")

COMMITTED = "committed"
ROLLED_BACK = "rolled-back"
UNKNOWN = "unknown"
MISTAKE = "mistake"


@dataclass(frozen=True)
class Job:
    """What every worker is told."""

    database_url: str
    bootstrap_servers: str
    prefix: str
    topic: str
    writers: int
    journals: Path
    rest_s: float
    """The longest that a thread or task rests between two dual writes."""

    def pool(self, engine: sa.Engine, writers: int) -> DualWriterPool:
        return DualWriterPool(engine, **self._settings(writers))

    def psycopg_pool(self, writers: int) -> PsycopgDualWriterPool:
        """The same, without SQLAlchemy."""
        url = sa.make_url(self.database_url).set(drivername="postgresql")
        return PsycopgDualWriterPool(url.render_as_string(hide_password=False), **self._settings(writers))

    def awaited_pool(self, writers: int) -> AsyncPsycopgDualWriterPool:
        """The same, for tasks."""
        url = sa.make_url(self.database_url).set(drivername="postgresql")
        return AsyncPsycopgDualWriterPool(url.render_as_string(hide_password=False), **self._settings(writers))

    def _settings(self, writers: int) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "max_writers": writers,
            "bootstrap_servers": self.bootstrap_servers,
            "acquire_timeout_ms": 10_000,
            "lease_ms": LEASE_MS,
            "lock_timeout_ms": 5_000,
            "resolve_timeout_ms": 5_000,
            "max_block_ms": 15_000,
            "reconnect_backoff_max_ms": 200,
        }


class Worker:
    """One process."""

    def __init__(self, job: Job, name: str, *, on_psycopg: bool) -> None:
        self._job = job
        self._name = name
        engine = sa.create_engine(job.database_url, pool_size=job.writers, pool_pre_ping=True)
        self._pool = job.psycopg_pool(job.writers) if on_psycopg else job.pool(engine, job.writers)
        self._stopped = threading.Event()
        self._journal = _journal(job, name)

    def work(self, orders: Connection) -> None:
        threads = [threading.Thread(target=self._write_on, args=(number,)) for number in range(self._job.writers)]
        for thread in threads:
            thread.start()
        orders.poll(None)  # a word from the parent, or its end
        self._stopped.set()
        for thread in threads:
            thread.join()
        self._pool.close()

    def _write_on(self, thread: int) -> None:
        chance = random.Random(f"{self._name}/{thread}")
        number = 0
        while not self._stopped.is_set():
            number += 1
            self._write(f"{self._name}/{thread}/{number}", give_up=chance.random() < 0.1)
            if self._job.rest_s:
                self._stopped.wait(chance.uniform(0, self._job.rest_s))

    def _write(self, name: str, *, give_up: bool) -> None:
        tx: DualTransaction | PsycopgDualTransaction | None = None
        try:
            with self._pool.transaction() as tx:
                for body in bodies_of(name):
                    _insert(tx, body)
                    tx.send(self._job.topic, value=body, key=name)
                if give_up:
                    raise _GivenUpError
            told = COMMITTED
        except _GivenUpError:
            told = ROLLED_BACK
        except IllegalStateError as error:
            told = f"{MISTAKE} {error!r}"
        except EXPECTED as error:
            told = _told(tx, error)
            self._stopped.wait(0.05)  # a server may be away: leave it time to come back
        except BaseException as error:
            told = f"{MISTAKE} {error!r}"
        os.write(self._journal, f"{name} {told}\n".encode())


class GroupedWorker:
    """One process, whose tasks commit together."""

    def __init__(self, job: Job, name: str) -> None:
        self._job = job
        self._name = name
        self._is_stopped = False
        self._journal = _journal(job, name)

    def work(self, orders: Connection) -> None:
        asyncio.run(self._work(orders))

    async def _work(self, orders: Connection) -> None:
        async with self._job.awaited_pool(self._job.writers) as pool, AsyncPsycopgGroupCommit(pool) as group_commit:
            tasks = [asyncio.create_task(self._write_on(group_commit, task)) for task in range(self._job.writers)]
            await asyncio.to_thread(orders.poll, None)
            self._is_stopped = True
            await asyncio.gather(*tasks)

    async def _write_on(self, group_commit: AsyncPsycopgGroupCommit, task: int) -> None:
        chance = random.Random(f"{self._name}/{task}")
        number = 0
        while not self._is_stopped:
            number += 1
            await self._write(group_commit, f"{self._name}/{task}/{number}", give_up=chance.random() < 0.1)
            if self._job.rest_s:
                await asyncio.sleep(chance.uniform(0, self._job.rest_s))

    async def _write(self, group_commit: AsyncPsycopgGroupCommit, name: str, *, give_up: bool) -> None:
        tx: GroupedDualWrite | None = None
        try:
            async with group_commit.transaction() as tx:
                for body in bodies_of(name):
                    await tx.connection.execute(INSERT, (body,))
                    tx.send(self._job.topic, value=body, key=name)
                if give_up:
                    raise _GivenUpError
            told = COMMITTED
        except _GivenUpError:
            told = ROLLED_BACK
        except IllegalStateError as error:
            told = f"{MISTAKE} {error!r}"
        except EXPECTED as error:
            told = _told(tx, error)
            await asyncio.sleep(0.05)  # a server may be away: leave it time to come back
        except BaseException as error:
            told = f"{MISTAKE} {error!r}"
        os.write(self._journal, f"{name} {told}\n".encode())


def _journal(job: Job, name: str) -> int:
    return os.open(job.journals / f"{name}.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)


class _GivenUpError(Exception):
    """The block changes its mind."""


def _insert(tx: DualTransaction | PsycopgDualTransaction, body: str) -> None:
    if isinstance(tx, PsycopgDualTransaction):
        tx.connection.execute(INSERT, (body,))
    else:
        tx.session.execute(sa.insert(events), {"body": body})


def _told(tx: DualWrite | GroupedDualWrite | None, error: Exception) -> str:
    if tx is not None and tx.outcome is not None:
        return COMMITTED if tx.outcome is Outcome.COMMITTED else ROLLED_BACK
    return UNKNOWN if isinstance(error, OutcomeUnknown) else ROLLED_BACK


def bodies_of(name: str) -> list[str]:
    return [f"{name}:{index}" for index in range(RECORDS_PER_WRITE)]


def work(job: Job, name: str, kind: str, orders: Connection) -> None:
    """What a worker process of one of `KINDS` does; others go first, as it hardly pauses."""
    os.nice(NICENESS)
    worker = GroupedWorker(job, name) if kind == "grouped" else Worker(job, name, on_psycopg=kind == "psycopg")
    worker.work(orders)
