"""A process that carries records from one topic to a table and another topic."""

from __future__ import annotations

import asyncio
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import sqlalchemy as sa
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.errors import ConsumedLogReplacedError
from dualwrite.recipes.consume.consume import (
    ConsumedRecord,
    ConsumeTransformWrite,
    OffsetsInDatabase,
    OffsetsInTransaction,
)
from dualwrite.recipes.consume.consume_async import AsyncConsumeTransformWrite
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.crash.scenario import make
from tests.support.consumers import LIBRARIES, aiokafka_consumer

SESSION_TIMEOUT_MS = 1_000
MAX_RECORDS = 3
ANOTHER_LOG = 7
"""The exit status of a worker that will not go on by itself."""

# No constraint: duplicates show.
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
    """The parameters of a worker."""

    database_url: str
    bootstrap_servers: str
    transactional_id: str
    library: str
    place: str
    has_trouble: bool = False
    """The handler locks rows that others lock for longer than it waits, and the consumer has errors of its own."""


shelves = sa.Table("shelves", carried.metadata, sa.Column("shelf", sa.Integer, primary_key=True))
LOCK_TIMEOUT_MS = 30
ERROR_EACH = 7


class Erring:
    """A confluent-kafka consumer, some of whose batches carry an error."""

    def __init__(self, consumer: Any, error: Any) -> None:
        self._consumer = consumer
        self._error = error
        self._batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, *arguments: Any) -> list[Any]:
        self._batches += 1
        messages: list[Any] = self._consumer.consume(*arguments)
        return messages if self._batches % ERROR_EACH else [self, *messages]

    def error(self) -> Any:
        """As if it were a message."""
        return self._error


def carry_among_locks(tx: DualTransaction, record: ConsumedRecord) -> None:
    tx.connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
    _lock_shelf(tx.connection, record)
    carry(tx, record)


async def carry_among_locks_awaited(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
    await tx.connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
    await tx.connection.run_sync(_lock_shelf, record)
    await carry_awaited(tx, record)


def _lock_shelf(connection: sa.Connection, record: ConsumedRecord) -> None:
    row = sa.select(shelves).where(shelves.c.shelf == record.partition)
    connection.execute(row.with_for_update())


def no_poison(tx: Any, record: ConsumedRecord, error: Exception) -> None:
    raise AssertionError(f"{record} is no poison") from error


async def no_poison_awaited(tx: Any, record: ConsumedRecord, error: Exception) -> None:
    raise AssertionError(f"{record} is no poison") from error


def work(task: Task, end: Connection) -> None:
    """Work until it is killed, or told to end, or the log is another one (`ANOTHER_LOG`)."""
    try:
        if task.library == "aiokafka":
            asyncio.run(_work_awaited(task, end))
        else:
            _work(task, end)
    except ConsumedLogReplacedError as error:
        print(error, file=sys.stderr)
        sys.exit(ANOTHER_LOG)


def _work(task: Task, end: Connection) -> None:
    engine = sa.create_engine(task.database_url)
    place = OffsetsInDatabase(engine) if task.place == "database" else OffsetsInTransaction()
    consumer = LIBRARIES[task.library](task.bootstrap_servers, "carriers", SESSION_TIMEOUT_MS)
    if task.has_trouble and task.library.startswith("confluent"):
        consumer = Erring(consumer, KafkaError(KafkaError._TRANSPORT, "made up"))
    writer = make(DualWriter, engine, task.bootstrap_servers, task.transactional_id)
    handle = carry_among_locks if task.has_trouble else carry
    options: dict[str, Any] = {"offsets": place, "max_records": MAX_RECORDS, "poison": no_poison}
    pipeline = ConsumeTransformWrite(writer, consumer, ["in"], handle, **options)
    try:
        while not end.poll():
            try:
                pipeline.step(100)
            except KafkaException as error:
                if "made up" not in str(error):
                    raise
    finally:
        writer.close()
        consumer.close()


async def _work_awaited(task: Task, end: Connection) -> None:
    engine = create_async_engine(task.database_url)
    place = OffsetsInDatabase(engine) if task.place == "database" else OffsetsInTransaction()
    async with (
        aiokafka_consumer(task.bootstrap_servers, "carriers", SESSION_TIMEOUT_MS) as consumer,
        make(AsyncDualWriter, engine, task.bootstrap_servers, task.transactional_id) as writer,
    ):
        handle = carry_among_locks_awaited if task.has_trouble else carry_awaited
        options: dict[str, Any] = {"offsets": place, "max_records": MAX_RECORDS, "poison": no_poison_awaited}
        pipeline = AsyncConsumeTransformWrite(writer, consumer, ["in"], handle, **options)
        while not end.poll():
            await pipeline.step(100)
    await engine.dispose()
