"""A process that carries records from one topic to a table and another topic."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.recipes.consume import ConsumedRecord, ConsumeTransformWrite, OffsetsInDatabase, OffsetsInTransaction
from dualwrite.recipes.consume_async import AsyncConsumeTransformWrite
from dualwrite.recipes.sqlalchemy import DualTransaction
from dualwrite.recipes.sqlalchemy_async import AsyncDualTransaction
from tests.crash.awaited import make_awaited_writer
from tests.crash.scenario import make_writer
from tests.support.consumers import LIBRARIES, aiokafka_consumer

SESSION_TIMEOUT_MS = 1_000
MAX_RECORDS = 3

# No constraint: what is written twice is there twice.
carried = sa.Table(
    "carried",
    sa.MetaData(),
    sa.Column("number", sa.BigInteger, sa.Identity(), primary_key=True),  # rows without an order come in any order
    sa.Column("place", sa.String(40)),
    sa.Column("body", sa.String(100)),
)


def carry(tx: DualTransaction, record: ConsumedRecord) -> None:
    assert record.value is not None
    place = f"{record.partition}/{record.offset}"
    tx.connection.execute(sa.insert(carried), {"place": place, "body": record.value.decode()})
    tx.send("out", record.value, key=place)


async def carry_awaited(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
    assert record.value is not None
    place = f"{record.partition}/{record.offset}"
    await tx.connection.execute(sa.insert(carried), {"place": place, "body": record.value.decode()})
    tx.send("out", record.value, key=place)


class Task(NamedTuple):
    """What a worker needs to know."""

    database_url: str
    bootstrap_servers: str
    transactional_id: str
    library: str
    place: str


def work(task: Task, end: Connection) -> None:
    """Until it is killed, or told to end."""
    if task.library == "aiokafka":
        asyncio.run(_work_awaited(task, end))
        return
    engine = sa.create_engine(task.database_url)
    place = OffsetsInDatabase(engine) if task.place == "database" else OffsetsInTransaction()
    consumer = LIBRARIES[task.library](task.bootstrap_servers, "carriers", SESSION_TIMEOUT_MS)
    writer = make_writer(engine, task.bootstrap_servers, task.transactional_id)
    pipeline = ConsumeTransformWrite(writer, consumer, ["in"], carry, offsets=place, max_records=MAX_RECORDS)
    while not end.poll():
        pipeline.step(100)
    writer.close()
    consumer.close()


async def _work_awaited(task: Task, end: Connection) -> None:
    engine = create_async_engine(task.database_url)
    place = OffsetsInDatabase(engine) if task.place == "database" else OffsetsInTransaction()
    async with (
        aiokafka_consumer(task.bootstrap_servers, "carriers", SESSION_TIMEOUT_MS) as consumer,
        make_awaited_writer(engine, task.bootstrap_servers, task.transactional_id) as writer,
    ):
        pipeline = AsyncConsumeTransformWrite(
            writer, consumer, ["in"], carry_awaited, offsets=place, max_records=MAX_RECORDS
        )
        while not end.poll():
            await pipeline.step(100)
    await engine.dispose()
