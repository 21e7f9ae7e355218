"""A process of the chaos test: threads or tasks do dual writes through one pool until it is told to stop, or killed."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, Literal

import sqlalchemy as sa

from dualwrite.delivery import Outbox
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.chaos_job import (
    AFTER_TROUBLE_S,
    INSERT,
    GivenUpError,
    Job,
    Journal,
    Orders,
    bodies_of,
    events,
)

GIVEN_UP: Final = 0.1
"""The share of blocks that are given up."""


Kind = Literal["pool", "outbox"]
"""How the blocks of a pool come to Kafka: each by its own dual write, or by an outbox."""


def settings_of(kind: Kind) -> dict[str, Any]:
    return {"delivery": Outbox()} if kind == "outbox" else {}


def pool_settings(job: Job, writers: int, pause: PauseHook | None = None) -> dict[str, Any]:
    return {
        "prefix": job.prefix,
        "max_writers": writers,
        "acquire_timeout_ms": 10_000,
        "lease_ms": job.lease_ms,
        "lock_timeout_ms": 60_000,
        "resolve_timeout_ms": 60_000,
        "pause": pause,
        **job.away,
        **job.producer,
    }


class PoolWorker:
    """One process, whose threads share a pool."""

    def __init__(self, job: Job, name: str, orders: Orders, *, on_psycopg: bool, kind: Kind = "pool") -> None:
        self._job = job
        self._name = name
        self._orders = orders
        settings = pool_settings(job, job.writers, orders.reach) | settings_of(kind)
        self._pool: DualWriter | PsycopgDualWriter = (
            PsycopgDualWriter(job.conninfo, **settings)
            if on_psycopg
            else DualWriter(sa.create_engine(job.database_url, pool_size=job.writers, pool_pre_ping=True), **settings)
        )
        self._stopped = threading.Event()
        self._journal = Journal(job, name)

    def work(self) -> None:
        threads = [threading.Thread(target=self._write_on, args=(number,)) for number in range(self._job.writers)]
        for thread in threads:
            thread.start()
        self._orders.obey(self._stopped.set)
        for thread in threads:
            thread.join()
        self._pool.close()

    def _write_on(self, thread: int) -> None:
        chance = random.Random(f"{self._name}/{thread}")
        number = 0
        while not self._stopped.is_set():
            number += 1
            self._write(f"{self._name}/{thread}/{number}", give_up=chance.random() < GIVEN_UP)
            if self._job.rest_s:
                self._stopped.wait(chance.uniform(0, self._job.rest_s))

    def _write(self, name: str, *, give_up: bool) -> None:
        with self._journal.block(name) as block, self._pool.transaction() as tx:
            block.tx = tx
            for body in bodies_of(name):
                _insert(tx, body)
                tx.send(self._job.topic, value=body, key=name)
            if give_up:
                raise GivenUpError
        if block.is_trouble:
            self._stopped.wait(AFTER_TROUBLE_S)


def _insert(tx: DualTransaction | PsycopgDualTransaction, body: str) -> None:
    if isinstance(tx, PsycopgDualTransaction):
        tx.connection.execute(INSERT, (body,))
    else:
        tx.session.execute(sa.insert(events), {"body": body})


class TaskWorker:
    """One process, whose tasks share a pool."""

    def __init__(self, job: Job, name: str, orders: Orders, kind: Kind = "pool") -> None:
        self._job = job
        self._name = name
        self._orders = orders
        self._kind = kind
        self._is_stopped = False
        self._journal = Journal(job, name)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with AsyncExitStack() as stack:
            settings = pool_settings(self._job, self._job.writers, self._orders.reach) | settings_of(self._kind)
            pool = await stack.enter_async_context(AsyncPsycopgDualWriter(self._job.conninfo, **settings))
            tasks = [asyncio.create_task(self._write_on(pool, task)) for task in range(self._job.writers)]
            await asyncio.to_thread(self._orders.obey, self._stop)
            await asyncio.gather(*tasks)

    def _stop(self) -> None:
        self._is_stopped = True

    async def _write_on(self, blocks: Any, task: int) -> None:
        chance = random.Random(f"{self._name}/{task}")
        number = 0
        while not self._is_stopped:
            number += 1
            await self._write(blocks, f"{self._name}/{task}/{number}", give_up=chance.random() < GIVEN_UP)
            if self._job.rest_s:
                await asyncio.sleep(chance.uniform(0, self._job.rest_s))

    async def _write(self, blocks: Any, name: str, *, give_up: bool) -> None:
        with self._journal.block(name) as block:
            async with blocks.transaction() as tx:
                block.tx = tx
                for body in bodies_of(name):
                    await tx.connection.execute(INSERT, (body,))
                    tx.send(self._job.topic, value=body, key=name)
                if give_up:
                    raise GivenUpError
        if block.is_trouble:
            await asyncio.sleep(AFTER_TROUBLE_S)


POOL_KINDS: Final[dict[str, Callable[[Job, str, Orders], PoolWorker | TaskWorker]]] = {
    "sqlalchemy": lambda job, name, orders: PoolWorker(job, name, orders, on_psycopg=False),
    "psycopg": lambda job, name, orders: PoolWorker(job, name, orders, on_psycopg=True),
    "tasks": TaskWorker,
    "outbox_sqlalchemy": lambda job, name, orders: PoolWorker(job, name, orders, on_psycopg=False, kind="outbox"),
    "outbox_psycopg": lambda job, name, orders: PoolWorker(job, name, orders, on_psycopg=True, kind="outbox"),
    "outbox_tasks": lambda job, name, orders: TaskWorker(job, name, orders, "outbox"),
}


def work_through_pool(job: Job, name: str, kind: str, orders: Any) -> None:
    """Run a process of one of `POOL_KINDS`."""
    os.nice(job.niceness)
    POOL_KINDS[kind](job, name, Orders(orders)).work()
