"""The ways of `benchmarks.dual_write` with asyncpg alone, each worker a task.

Each worker has a connection, or for dual writes uses those of the pool; none keeps prepared statements, as those that
the pool opens do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.clients import TransactAsync
from benchmarks.dual_write_work import PSYCOPG_INSERT, PSYCOPG_INSERT_OUTBOX, Work
from benchmarks.psycopg_ways import AsyncWay
from dualwrite import AsyncpgDualWriter

_INSERT = PSYCOPG_INSERT.replace("%s, %s", "$1, $2")
_INSERT_OUTBOX = PSYCOPG_INSERT_OUTBOX.replace("%s, %s", "$1, $2")


@asynccontextmanager
async def database_alone(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    key_of_next = work.keys(worker)
    connection = await asyncpg.connect(work.conninfo, statement_cache_size=0)

    async def transact() -> None:
        async with connection.transaction():
            await connection.execute(_INSERT, key_of_next(), work.body)

    yield transact
    await connection.close()


@asynccontextmanager
async def with_outbox(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    key_of_next = work.keys(worker)
    connection = await asyncpg.connect(work.conninfo, statement_cache_size=0)

    async def transact() -> None:
        key = key_of_next()
        async with connection.transaction():
            await connection.execute(_INSERT, key, work.body)
            await connection.execute(_INSERT_OUTBOX, key, work.body)
            work.note_block_end(key)

    yield transact
    await connection.close()


def dual_write(**settings: Any) -> AsyncWay:
    @asynccontextmanager
    async def way(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
        key_of_next = work.keys(worker)
        pool = work.shared_pool(AsyncpgDualWriter, work.conninfo, **settings)

        async def transact() -> None:
            key = key_of_next()
            async with pool.transaction() as tx:
                await tx.connection.execute(_INSERT, key, work.body)
                tx.send(work.job.topic, work.body, key)
                work.note_block_end(key)

        yield transact

    return way
