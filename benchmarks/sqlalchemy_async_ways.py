"""The ways of `benchmarks.dual_write` with SQLAlchemy's AsyncSession, in one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from benchmarks.clients import TransactAsync
from benchmarks.dual_write_work import INSERT, INSERT_OUTBOX, Work
from benchmarks.psycopg_ways import AsyncWay
from dualwrite import AsyncDualWriter


@asynccontextmanager
async def database_alone(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    """Commit one row."""
    key_of_next = work.keys(worker)

    async def transact() -> None:
        async with AsyncSession(work.async_engine) as session, session.begin():
            await session.execute(INSERT, {"key": key_of_next(), "body": work.body})

    yield transact


@asynccontextmanager
async def with_outbox(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
    """Write the record as a row of the same commit; `benchmarks.outbox_relay` publishes it."""
    key_of_next = work.keys(worker)

    async def transact() -> None:
        key = key_of_next()
        async with AsyncSession(work.async_engine) as session, session.begin():
            await session.execute(INSERT, {"key": key, "body": work.body})
            await session.execute(INSERT_OUTBOX, {"key": key, "body": work.body})
            work.note_block_end(key)

    yield transact


def dual_write(**settings: Any) -> AsyncWay:
    """Use one pool for all tasks."""

    @asynccontextmanager
    async def way(work: Work, worker: str) -> AsyncIterator[TransactAsync]:
        key_of_next = work.keys(worker)
        pool = work.shared_pool(AsyncDualWriter, work.async_engine, **settings)

        async def transact() -> None:
            key = key_of_next()
            async with pool.transaction() as tx:
                await tx.session.execute(INSERT, {"key": key, "body": work.body})
                tx.send(work.job.topic, work.body, key)
                work.note_block_end(key)

        yield transact

    return way
