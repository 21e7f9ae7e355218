"""Processes of the chaos test that write, each in one of the ways, or recover what others left.

Those of a pool share its prefix, and the threads or tasks of a process share its pool. Rivals take one transactional id
from each other; one that is fenced makes a new writer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.errors import FencedError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.recovery.service import RecoveryReport, RecoveryService
from tests.crash.chaos_job import (
    AFTER_TROUBLE_S,
    EXPECTED,
    NICENESS,
    GivenUpError,
    Job,
    Journal,
    Orders,
    bodies_of,
    statement_of,
)
from tests.crash.chaos_ways import DELIVERIES, RIVAL, key_of, prefix_of
from tests.support.writers import KINDS, closed, entered, got

GIVES_UP: Final = 0.1
"""The share of blocks that are given up."""
RECOVERS: Final = 0.03
LONGEST_LIFE: Final = 60
"""The longest life of a rival's writer, in blocks."""
MIN_AGE_MS: Final = 500
ROUND_S: Final = 0.3


def pool_settings(job: Job, way: str, writers: int, pause: PauseHook | None = None) -> dict[str, Any]:
    return {
        "prefix": prefix_of(job, way),
        "delivery": DELIVERIES[way],
        "max_writers": writers,
        "acquire_timeout_ms": 10_000,
        "lease_ms": job.lease_ms,
        "lock_timeout_ms": 60_000,
        "resolve_timeout_ms": 60_000,
        "pause": pause,
        **job.producer,
    }


def rival_settings(job: Job, pause: PauseHook) -> dict[str, Any]:
    return {
        "transactional_id": job.rival_id,
        "lock_timeout_ms": 2_000,
        "resolve_timeout_ms": 60_000,
        "pause": pause,
        **job.producer,
    }


class Worker:
    """One process, whose threads or tasks do a dual write after the other by one writer."""

    def __init__(self, job: Job, name: str, orders: Orders, way: str, library: str) -> None:
        self._job = job
        self._name = name
        self._way = way
        self._kind = KINDS[library]
        self._is_rival = way == RIVAL
        self._writers = 1 if self._is_rival else job.writers
        pause = orders.reach
        self._settings = rival_settings(job, pause) if self._is_rival else pool_settings(job, way, job.writers, pause)
        self._chance = random.Random(name)
        self._journal = Journal(job, name)
        self._numbers = itertools.count(1)
        self._stopped = threading.Event()
        threading.Thread(target=orders.obey, args=(self._stopped.set,), daemon=True).start()

    def work(self) -> None:
        (asyncio.run if self._kind.is_awaited else blocking.run)(self._work())

    async def _work(self) -> None:
        while not self._stopped.is_set():
            source = self._kind.source(sa.make_url(self._job.database_url))
            writer = self._kind.writer(source, **self._settings)
            try:
                await self._all([self._write_on(writer, number) for number in range(self._writers)])
            finally:
                await closed(writer, source)

    async def _all(self, writing: list[Coroutine[Any, Any, None]]) -> None:
        if self._kind.is_awaited:
            await asyncio.gather(*writing)
            return
        with ThreadPoolExecutor(len(writing)) as threads:
            for ended in [threads.submit(blocking.run, each) for each in writing]:
                ended.result()

    async def _write_on(self, writer: Any, thread: int) -> None:
        blocks = self._chance.randint(1, LONGEST_LIFE)
        while not self._stopped.is_set():
            is_recovery = self._is_rival and self._chance.random() < RECOVERS
            error = await self._recover(writer) if is_recovery else await self._write(writer, thread)
            blocks -= 1
            if self._is_rival and (isinstance(error, FencedError) or not blocks):
                return
            seconds = self._chance.uniform(0, self._job.rest_s) + AFTER_TROUBLE_S * (error is not None)
            await (asyncio.sleep if self._kind.is_awaited else blocking.sleep)(seconds)

    async def _write(self, writer: Any, thread: int) -> BaseException | None:
        name = f"{self._name}/{thread}/{next(self._numbers)}"
        key = key_of(self._way, name, self._chance)
        with self._journal.block(name, key) as block:
            async with entered(writer.transaction()) as tx:
                block.tx = tx
                await got(self._kind.execute(tx, statement_of(name, key)))
                for body in bodies_of(name):
                    tx.send(self._job.topic, value=body, key=key)
                if self._chance.random() < GIVES_UP:
                    raise GivenUpError
        return block.error

    async def _recover(self, writer: Any) -> Exception | None:
        try:
            await got(writer.recover())
        except EXPECTED as error:
            return error
        return None


def work_as_writer(job: Job, name: str, kind: str, orders: Any) -> None:
    """Run a process of a kind such as `store-psycopg`: a way and a library."""
    os.nice(NICENESS)
    way, _, library = kind.partition("-")
    Worker(job, name, Orders(orders), way, library).work()


def work_as_recovery(job: Job, name: str, kind: str, orders: Any) -> None:
    """Recover all ids, early, until told to stop."""
    os.nice(NICENESS)
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
