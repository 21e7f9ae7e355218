"""`ExactlyOnce` on FastStream itself, with either of its brokers: what FastStream drops before `take` is not lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import faststream.confluent
import faststream.kafka
import pytest
import sqlalchemy as sa
from faststream import AckPolicy
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumers import ConsumedRecord
from dualwrite.recipes.consume.faststream import ExactlyOnce
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.support.conditions import until as wait_until
from tests.support.databases import SqliteDatabase, event_bodies, events, unique

LIBRARIES = {"aiokafka": faststream.kafka, "confluent": faststream.confluent}


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteDatabase]:
    made = SqliteDatabase(tmp_path)
    yield made
    made.close()


async def handle(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
    body = (record.value or b"").decode()
    await tx.connection.execute(sa.insert(events), {"id": record.offset, "event_key": "k", "body": body})


def consume(
    sqlite: SqliteDatabase,
    emulator: Emulator,
    library: str,
    topic: str,
    *,
    batch: bool,
    done: Callable[[], bool],
    before: Callable[[Any], Awaitable[None]] | None = None,
) -> None:
    """Consume with FastStream until a condition holds; `before` is called by the subscriber before `take`."""

    async def run() -> None:
        engine = create_async_engine(sqlite.url.set(drivername="sqlite+aiosqlite"))
        servers = emulator.bootstrap_servers
        broker: Any = LIBRARIES[library].KafkaBroker(servers, log_level=logging.DEBUG)
        async with AsyncDualWriter(engine, bootstrap_servers=servers, transactional_id=unique("member")) as writer:
            billing = ExactlyOnce(writer, handle, group_id="billing", offsets=OffsetsInDatabase(engine))

            async def on_message(message: Any) -> None:
                if before is not None:
                    await before(message)
                await billing.take(message)

            on_message.__annotations__["message"] = LIBRARIES[library].KafkaMessage
            broker.subscriber(
                topic,
                group_id="billing",
                ack_policy=AckPolicy.MANUAL,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                batch=batch,
                parser=billing.parser,
                decoder=billing.decoder,
            )(on_message)
            async with broker:
                await broker.start()
                await asyncio.to_thread(wait_until, done)
        await engine.dispose()

    asyncio.run(run())


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("library", list(LIBRARIES))
def test_records_that_faststream_cannot_read_are_written(
    sqlite: SqliteDatabase, emulator: Emulator, library: str, batch: bool
) -> None:
    """Its parser takes headers for text, and its decoder believes a content type."""
    topic = unique("in")
    emulator.create_topic(topic)
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:
        producer.send(topic, "0")
        producer.send(topic, "1", headers={"binary": b"\xff"})
        producer.send(topic, "2", headers={"none": None})
        producer.send(topic, "{", headers={"content-type": "application/json"})
        producer.send(topic, b"\xc3\xa4", headers={"content-type": "text/plain"})
        producer.send(topic, "5")
    consume(sqlite, emulator, library, topic, batch=batch, done=lambda: "5" in event_bodies(sqlite))
    assert event_bodies(sqlite) == ["0", "1", "2", "{", "ä", "5"]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("library", list(LIBRARIES))
def test_what_does_not_reach_take_is_read_again(
    sqlite: SqliteDatabase, emulator: Emulator, library: str, batch: bool
) -> None:
    """The subscriber, a middleware or a dependency has raised."""
    topic = unique("in")
    emulator.create_topic(topic)
    failures = iter(range(3))

    async def fail_thrice(message: Any) -> None:
        for number in failures:
            raise ValueError(number)

    numbers = itertools.count()
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:

        def some_are_written() -> bool:
            producer.send(topic, str(next(numbers)))
            return len(event_bodies(sqlite)) > 5

        consume(sqlite, emulator, library, topic, batch=batch, done=some_are_written, before=fail_thrice)
    written = event_bodies(sqlite)
    assert written == [str(number) for number in range(len(written))]
