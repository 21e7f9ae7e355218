"""`ExactlyOnce` on FastStream itself, on either of its brokers: dropped messages, lost partitions, and stops."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import faststream.confluent
import faststream.kafka
import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition
from faststream import AckPolicy, BaseMiddleware
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError
from dualwrite.producer import Producer
from dualwrite.recipes.consume.consume_async import AsyncHandler, AsyncPoisonHandler
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumers import ConsumedRecord
from dualwrite.recipes.consume.faststream import ExactlyOnce
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase, SqliteDatabase, event_bodies, events, unique
from tests.support.topics import create_anew, read_topic

LIBRARIES = {"aiokafka": faststream.kafka, "confluent": faststream.confluent}


OUT = "out"


async def write(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
    """Insert a row, whose id is the offset; so a second one of the same record would be refused."""
    body = (record.value or b"").decode()
    await tx.connection.execute(sa.insert(events), {"id": record.offset, "event_key": "k", "body": body})


async def write_and_send(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
    await write(tx, record)
    tx.send(OUT, record.value)


@dataclass(frozen=True)
class Site:
    """The common resources of the group's members."""

    database: Database
    emulator: Emulator
    library: str
    topic: str = field(default_factory=lambda: unique("in"))
    batch: bool = True
    raised: list[Exception] = field(default_factory=list)
    """The errors that `take` has raised."""

    def __post_init__(self) -> None:
        self.emulator.create_topic(self.topic)

    @asynccontextmanager
    async def member(
        self,
        handle: AsyncHandler = write,
        before: Callable[[Any], Awaitable[None]] | None = None,
        middlewares: Sequence[Any] = (),
        poison: AsyncPoisonHandler | None = None,
        foreign: AckPolicy | None = None,
        times: int = 1,
    ) -> AsyncIterator[Any]:
        """Consume with a FastStream broker of its own, whose subscriber calls `before`, then `take` so many times.

        `foreign`: the policy of a subscriber that the application has made by itself.
        """
        of_library: Any = LIBRARIES[self.library]
        is_sqlite = self.database.url.drivername.startswith("sqlite")
        engine = create_async_engine(
            self.database.url.set(drivername="sqlite+aiosqlite") if is_sqlite else self.database.url
        )
        servers = self.emulator.bootstrap_servers
        async with AsyncDualWriter(engine, bootstrap_servers=servers, prefix=unique("member")) as pool:
            billing = ExactlyOnce(pool, handle, group_id="billing", offsets=OffsetsInDatabase(engine), poison=poison)
            broker = of_library.KafkaBroker(
                servers, log_level=logging.DEBUG, graceful_timeout=0.1, middlewares=middlewares
            )

            async def on_message(message: Any) -> None:
                if before is not None:
                    await before(message)
                failed: Exception | None = None
                for _ in range(times):
                    try:
                        await billing.take(message)
                    except Exception as error:
                        self.raised.append(error)
                        failed = error
                if failed is not None:
                    raise failed

            on_message.__annotations__["message"] = of_library.KafkaMessage
            if foreign is None:
                billing.subscriber(broker, self.topic, batch=self.batch)(on_message)
            else:
                made = broker.subscriber(
                    self.topic, group_id="billing", auto_offset_reset="earliest", batch=self.batch, ack_policy=foreign
                )
                made(on_message)
            async with broker:
                await broker.start()
                yield broker
        await engine.dispose()

    def consume(self, done: Callable[[], bool], **options: Any) -> None:
        """Consume until a condition holds."""

        async def run() -> None:
            async with self.member(**options):
                await asyncio.to_thread(until, done)

        asyncio.run(run())

    def bodies(self) -> list[str]:
        return event_bodies(self.database)

    def producer(self) -> Producer:
        return Producer(bootstrap_servers=self.emulator.bootstrap_servers, linger_ms=0)


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def site(sqlite: SqliteDatabase, emulator: Emulator, library: str) -> Site:
    return Site(sqlite, emulator, library)


@pytest.fixture
def with_rows(postgres: PostgresDatabase, emulator: Emulator, library: str) -> Site:
    """On a database whose transactions wait for rows of others."""
    return Site(postgres, emulator, library)


@pytest.fixture(params=[True, False], ids=["batch", "single"])
def either(request: pytest.FixtureRequest, sqlite: SqliteDatabase, emulator: Emulator, library: str) -> Site:
    """A subscriber of batches, and one of single messages."""
    return Site(sqlite, emulator, library, batch=request.param)


def test_records_that_faststream_cannot_read_are_written(either: Site) -> None:
    """FastStream's parser takes headers for text, and its decoder believes a content type."""
    with either.producer() as producer:
        producer.send(either.topic, "0")
        producer.send(either.topic, "1", headers={"binary": b"\xff"})
        producer.send(either.topic, "2", headers={"none": None})
        producer.send(either.topic, "{", headers={"content-type": "application/json"})
        producer.send(either.topic, b"\xc3\xa4", headers={"content-type": "text/plain"})
        producer.send(either.topic, "5")
    either.consume(lambda: "5" in either.bodies())
    assert either.bodies() == ["0", "1", "2", "{", "ä", "5"]


def test_a_message_that_does_not_reach_take_is_read_again(either: Site) -> None:
    """The subscriber, a middleware or a dependency has raised."""
    failures = iter(range(3))

    async def fail_thrice(message: Any) -> None:
        for number in failures:
            raise ValueError(number)

    numbers = itertools.count()
    with either.producer() as producer:

        def some_are_written() -> bool:
            producer.send(either.topic, str(next(numbers)))
            return len(either.bodies()) > 5

        either.consume(some_are_written, before=fail_thrice)
    written = either.bodies()
    assert written == [str(number) for number in range(len(written))]


class FailsOnReceipt(BaseMiddleware[Any, Any]):
    """Fails twice before a message with `value` is parsed."""

    value = b""
    failures_left = 0

    async def on_receive(self) -> None:
        several = self.msg if isinstance(self.msg, tuple) else (self.msg,)
        values = [each.value() if callable(each.value) else each.value for each in several]
        if self.value in values and FailsOnReceipt.failures_left:
            FailsOnReceipt.failures_left -= 1
            raise ValueError(values)


@pytest.mark.parametrize("number", [0, 3])
def test_a_message_dropped_by_a_middleware_before_parsing_is_read_again(
    either: Site, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message of the group, which has no row yet, and a later one."""
    monkeypatch.setattr(FailsOnReceipt, "value", str(number).encode())
    monkeypatch.setattr(FailsOnReceipt, "failures_left", 2)
    numbers = itertools.count()
    with either.producer() as producer:

        def some_are_written() -> bool:
            producer.send(either.topic, str(next(numbers)))
            return len(either.bodies()) > 8

        either.consume(some_are_written, middlewares=[FailsOnReceipt])
    written = either.bodies()
    assert FailsOnReceipt.failures_left == 0
    assert written == [str(number) for number in range(len(written))]


def test_records_from_the_failing_one_on_are_delivered_again(either: Site) -> None:
    values = send_five(either)
    failures = ["once", "twice"]

    async def handle(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        await write_and_send(tx, record)
        if record.value == b"2" and failures:
            raise ValueError(failures.pop())

    either.consume(lambda: either.bodies() == values, handle=handle)
    assert list(map(str, either.raised)) == (["once"] if either.batch else ["twice", "once"])
    assert_written_once(either, values)


def test_a_message_is_taken_once(either: Site) -> None:
    """When it failed, it comes again; when it is written, taking it again does nothing."""
    values = send_five(either)
    failures = [ValueError("once")]

    async def handle(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        await write_and_send(tx, record)
        if record.value == b"0" and failures:
            raise failures.pop()

    either.consume(lambda: either.bodies() == values, handle=handle, times=2)
    assert list(map(type, either.raised)) == ([] if either.batch else [ValueError, ConfigError])
    assert_written_once(either, values)


def test_a_poison_record_is_set_aside_and_its_neighbours_are_written(either: Site) -> None:
    send_five(either)
    refused: list[tuple[int, str]] = []

    async def handle(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        await write_and_send(tx, record)
        if record.value in (b"1", b"3"):
            raise ValueError(record.offset)

    async def poison(tx: AsyncDualTransaction, record: ConsumedRecord, error: Exception) -> None:
        refused.append((record.offset, str(error)))

    either.consume(lambda: either.bodies() == ["0", "2", "4"], handle=handle, poison=poison)
    assert refused == [(1, "1"), (3, "3")]
    assert_written_once(either, ["0", "2", "4"])


@pytest.mark.parametrize("policy", list(AckPolicy))
async def test_a_subscriber_that_was_made_by_the_application_is_refused(site: Site, policy: AckPolicy) -> None:
    """With offsets that FastStream commits before it calls the subscriber, the messages are gone."""
    values = send_five(site)
    async with site.member(write_and_send, foreign=policy):
        await asyncio.to_thread(until, lambda: len(site.raised) > 0)
    assert {type(error) for error in site.raised} == {ConfigError}
    assert "the subscriber was not made by this ExactlyOnce" in str(site.raised[0])
    assert site.bodies() == []
    if policy is not AckPolicy.ACK_FIRST:
        await asyncio.to_thread(until, lambda: all(group.state == "Empty" for group in site.emulator.groups()))
        async with site.member(write_and_send):
            await asyncio.to_thread(until, lambda: site.bodies() == values)


def commit_offset(site: Site, offset: int) -> None:
    """Move the group's offset in Kafka, as another program of the group does, or `--reset-offsets`."""
    consumer = Consumer({"bootstrap.servers": site.emulator.bootstrap_servers, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition(site.topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_a_quiet_partition_is_positioned_at_its_row_when_it_is_assigned(site: Site) -> None:
    """The group's offset in Kafka is ahead of the row, and no message comes that would show it."""
    values = send_five(site)
    site.consume(lambda: site.bodies() == values)
    with site.producer() as producer:
        for value in ("5", "6", "7"):
            producer.send(site.topic, value)
    commit_offset(site, 8)
    site.consume(lambda: len(site.bodies()) == 8)
    assert site.bodies() == [*values, "5", "6", "7"]


@pytest.mark.parametrize("records", [2, 8], ids=["shorter", "longer"])
def test_a_recreated_topic_is_not_taken_for_the_old_one(
    site: Site, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    values = send_five(site)
    site.consume(lambda: site.bodies() == values)
    create_anew(site.emulator, site.topic, 1)
    with site.producer() as producer:
        for number in range(records):
            producer.send(site.topic, f"new {number}")
    site.consume(lambda: f"topic '{site.topic}' was deleted and created again" in caplog.text)
    assert site.bodies() == values


def test_settings_on_which_the_promises_depend_are_refused(sqlite: SqliteDatabase) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    pool = AsyncDualWriter(engine, bootstrap_servers="127.0.0.1:1", prefix="refused")
    for of_library, setting in ((faststream.kafka, "listener"), (faststream.confluent, "on_assign")):
        billing = ExactlyOnce(pool, write, group_id="billing", offsets=OffsetsInDatabase(engine))
        broker: Any = of_library.KafkaBroker("127.0.0.1:1")
        for name in (setting, "group_id", "ack_policy", "parser", "decoder", "max_workers", "partitions"):
            with pytest.raises(ConfigError, match=name):
                billing.subscriber(broker, "in", **{name: None})
        billing.subscriber(broker, "in")
        with pytest.raises(ConfigError, match="already"):
            billing.subscriber(broker, "in")


class Held:
    """A handler whose first dual write waits inside its block."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        await write_and_send(tx, record)
        self.entered.set()
        await self.may_end.wait()


def send_five(site: Site) -> list[str]:
    site.emulator.create_topic(OUT)
    values = [str(number) for number in range(5)]
    with site.producer() as producer:
        for value in values:
            producer.send(site.topic, value)
    return values


async def leave_group(consumer: Any) -> None:
    """Give the partitions up; the block that is in progress does not hear of it."""
    if hasattr(consumer, "consumer"):  # FastStream's wrapper around confluent-kafka's consumer
        consumer.consumer.unsubscribe()
    else:
        await consumer.stop()


def assert_written_once(site: Site, values: list[str]) -> None:
    assert site.bodies() == values
    assert [value for _, value in read_topic(site.emulator.bootstrap_servers, OUT)] == values


async def test_the_partition_is_lost_in_the_middle_of_a_block(with_rows: Site) -> None:
    """The other member reads the same records, waits for the row, and finds it moved."""
    site = with_rows
    values = send_five(site)
    consumers: list[Any] = []

    async def note(message: Any) -> None:
        consumers.append(message.consumer)

    def one_waits() -> bool:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND wait_event_type = 'Lock'"
        with site.database.aside.connect() as connection:
            return bool(connection.scalar(sa.text(waiting)))

    held = Held()
    async with site.member(held, note), asyncio.timeout(60):
        await held.entered.wait()
        await leave_group(consumers[0])
        async with site.member(write_and_send):
            await asyncio.to_thread(until, one_waits)
            held.may_end.set()
            await asyncio.to_thread(until, lambda: site.bodies()[-1:] == values[-1:])
    assert_written_once(site, values)


async def test_a_member_frozen_in_its_block_loses_the_block_to_the_databases_timeout(
    postgres: PostgresDatabase, emulator: Emulator
) -> None:
    """Without it the successor would wait for the row for as long as the member is frozen."""
    site = Site(postgres, emulator, "aiokafka")
    values = send_five(site)
    with postgres.aside.begin() as connection:
        connection.execute(sa.text("ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '1s'"))
    consumers: list[Any] = []

    async def note(message: Any) -> None:
        consumers.append(message.consumer)

    held = Held()
    async with site.member(held, note), asyncio.timeout(60):
        await held.entered.wait()
        await leave_group(consumers[0])
        async with site.member(write_and_send):
            await asyncio.to_thread(until, lambda: site.bodies()[-1:] == values[-1:])
            held.may_end.set()
    assert_written_once(site, values)


@pytest.mark.parametrize("library", ["aiokafka"], indirect=True)
async def test_a_stopped_consumer_ends_its_subscriber(site: Site) -> None:
    async with site.member() as broker, asyncio.timeout(60):
        (subscriber,) = broker.subscribers
        (loop,) = subscriber.tasks
        await subscriber.consumer.stop()
        await loop


async def test_the_service_is_stopped_in_the_middle_of_a_block(with_rows: Site) -> None:
    """Longer than FastStream waits for it: the block is cancelled, and the next service writes its records."""
    site = with_rows
    values = send_five(site)
    held = Held()
    async with site.member(held), asyncio.timeout(60):
        await held.entered.wait()
    assert site.bodies() == []
    async with site.member(write_and_send), asyncio.timeout(60):
        await asyncio.to_thread(until, lambda: site.bodies()[-1:] == values[-1:])
    assert_written_once(site, values)
