"""The ways of `benchmarks.dual_write` with psycopg alone, for threads and for asyncio.

Each worker has a connection, or for dual writes uses those of the pool; all are in autocommit mode, as usual with
psycopg's `connection.transaction()`, and prepare statements as psycopg does by default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import psycopg

from benchmarks.clients import Transact, TransactAsync
from benchmarks.dual_write_work import PSYCOPG_INSERT, PSYCOPG_INSERT_OUTBOX, Work
from dualwrite import AsyncProducer, AsyncPsycopgDualWriter, PsycopgDualWriter

Way = Callable[[Work, str], AbstractContextManager[Transact]]
AsyncWay = Callable[[Work, str], AbstractAsyncContextManager[TransactAsync]]


@contextmanager
def database_alone(work: Work, worker: str) -> Iterator[Transact]:
    key_of_next = work.keys(worker)
    with psycopg.connect(work.conninfo, autocommit=True) as connection:

        def transact() -> None:
            with connection.transaction():
                connection.execute(PSYCOPG_INSERT, (key_of_next(), work.body))

        yield transact


@contextmanager
def with_outbox(work: Work, worker: str) -> Iterator[Transact]:
    key_of_next = work.keys(worker)
    with psycopg.connect(work.conninfo, autocommit=True) as connection:

        def transact() -> None:
            key = key_of_next()
            with connection.transaction():
                connection.execute(PSYCOPG_INSERT, (key, work.body))
                connection.execute(PSYCOPG_INSERT_OUTBOX, (key, work.body))
                work.note_block_end(key)

        yield transact


def dual_write(**settings: Any) -> Way:
    @contextmanager
    def way(work: Work, worker: str) -> Iterator[Transact]:
        key_of_next = work.keys(worker)
        pool = work.shared_pool(PsycopgDualWriter, work.conninfo, prepare_threshold=5, **settings)

        def transact() -> None:
            key = key_of_next()
            with pool.transaction() as tx:
                tx.connection.execute(PSYCOPG_INSERT, (key, work.body))
                tx.send(work.job.topic, work.body, key)
                work.note_block_end(key)

        yield transact

    return way


# ---- in one loop ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def async_database_alone(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    key_of_next = work.keys(worker)
    async with await psycopg.AsyncConnection.connect(work.conninfo, autocommit=True) as connection:

        async def transact() -> None:
            async with connection.transaction():
                await connection.execute(PSYCOPG_INSERT, (key_of_next(), work.body))

        yield transact


@asynccontextmanager
async def async_kafka_alone(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    key_of_next = work.keys(worker)
    async with AsyncProducer(bootstrap_servers=work.job.bootstrap_servers, transactional_id=worker) as producer:
        await producer.init_transactions()

        async def transact() -> None:
            await producer.begin_transaction()
            await producer.send(work.job.topic, work.body, key_of_next())
            await producer.commit_transaction()

        yield transact


@asynccontextmanager
async def async_outbox(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    key_of_next = work.keys(worker)
    async with await psycopg.AsyncConnection.connect(work.conninfo, autocommit=True) as connection:

        async def transact() -> None:
            key = key_of_next()
            async with connection.transaction():
                await connection.execute(PSYCOPG_INSERT, (key, work.body))
                await connection.execute(PSYCOPG_INSERT_OUTBOX, (key, work.body))
                work.note_block_end(key)

        yield transact


def async_dual_write(**settings: Any) -> AsyncWay:
    @asynccontextmanager
    async def way(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
        key_of_next = work.keys(worker)
        pool = work.shared_pool(AsyncPsycopgDualWriter, work.conninfo, prepare_threshold=5, **settings)

        async def transact() -> None:
            key = key_of_next()
            async with pool.transaction() as tx:
                await tx.connection.execute(PSYCOPG_INSERT, (key, work.body))
                tx.send(work.job.topic, work.body, key)
                work.note_block_end(key)

        yield transact

    return way
