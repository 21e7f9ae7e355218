"""A process of the chaos test: threads or tasks do dual writes through one pool until it is told to stop, or killed."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import sqlalchemy as sa

from dualwrite.delivery import Outbox
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.chaos_job import (
    AFTER_TROUBLE_S,
    GivenUpError,
    Job,
    Journal,
    Orders,
    bodies_of,
    insert,
)
from tests.support.writers import entered, got

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
    """One process, whose threads or tasks share a pool."""

    def __init__(self, job: Job, name: str, orders: Orders, library: str, kind: Kind = "pool") -> None:
        self._job = job
        self._name = name
        self._orders = orders
        self._settings = pool_settings(job, job.writers, orders.reach) | settings_of(kind)
        self._library = library
        self._stopped = threading.Event()
        self._journal = Journal(job, name)

    def work(self) -> None:
        if self._library == "tasks":
            asyncio.run(self._work_in_tasks())
            return
        pool = (
            PsycopgDualWriter(self._job.conninfo, **self._settings)
            if self._library == "psycopg"
            else DualWriter(
                sa.create_engine(self._job.database_url, pool_size=self._job.writers, pool_pre_ping=True),
                **self._settings,
            )
        )
        with ThreadPoolExecutor(self._job.writers) as threads:
            writing = [
                threads.submit(blocking.run, self._write_on(pool, number)) for number in range(self._job.writers)
            ]
            self._orders.obey(self._stopped.set)
            for thread in writing:
                thread.result()
        pool.close()

    async def _work_in_tasks(self) -> None:
        async with AsyncPsycopgDualWriter(self._job.conninfo, **self._settings) as pool:
            tasks = [asyncio.create_task(self._write_on(pool, number)) for number in range(self._job.writers)]
            await asyncio.to_thread(self._orders.obey, self._stopped.set)
            await asyncio.gather(*tasks)

    async def _write_on(self, pool: Any, number_of_writer: int) -> None:
        chance = random.Random(f"{self._name}/{number_of_writer}")
        number = 0
        while not self._stopped.is_set():
            number += 1
            name = f"{self._name}/{number_of_writer}/{number}"
            await self._write(pool, name, give_up=chance.random() < GIVEN_UP)
            if self._job.rest_s:
                await self._rest(chance.uniform(0, self._job.rest_s))

    async def _write(self, pool: Any, name: str, *, give_up: bool) -> None:
        with self._journal.block(name) as block:
            async with entered(pool.transaction()) as tx:
                block.tx = tx
                for body in bodies_of(name):
                    await got(insert(tx, body))
                    tx.send(self._job.topic, value=body, key=name)
                if give_up:
                    raise GivenUpError
        if block.is_trouble:
            await self._rest(AFTER_TROUBLE_S)

    async def _rest(self, seconds: float) -> None:
        if self._library == "tasks":
            await asyncio.sleep(seconds)
        else:
            self._stopped.wait(seconds)


POOL_KINDS: Final[dict[str, tuple[str, Kind]]] = {
    "sqlalchemy": ("sqlalchemy", "pool"),
    "psycopg": ("psycopg", "pool"),
    "tasks": ("tasks", "pool"),
    "outbox_sqlalchemy": ("sqlalchemy", "outbox"),
    "outbox_psycopg": ("psycopg", "outbox"),
    "outbox_tasks": ("tasks", "outbox"),
}


def work_through_pool(job: Job, name: str, kind: str, orders: Any) -> None:
    """Run a process of one of `POOL_KINDS`."""
    os.nice(job.niceness)
    PoolWorker(job, name, Orders(orders), *POOL_KINDS[kind]).work()
