"""Subclasses of `str` whose text differs from their value, such as a member of a `(str, Enum)`: the value is meant."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite import DualWriter
from dualwrite.admin import TransactionAdmin
from dualwrite.async_producer import AsyncProducer
from dualwrite.broker_emulator import Emulator
from dualwrite.partition_log import PartitionLog
from dualwrite.producer import ConsumerGroupMetadata, Producer, TopicPartition
from dualwrite.recipes.sqlalchemy.tables import create_lease_table


class Loud(str):
    """Formats itself as another text, and hashes as another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "loud!"

    __format__ = __repr__ = lambda *_: "loud!"  # type: ignore[assignment]
    __hash__ = lambda *_: 42  # noqa: E731

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True


class Text(str, enum.Enum):  # noqa: UP042 - its text is not its value, as in much existing code
    ORDERS = "orders"


TOPIC = pytest.mark.parametrize("topic", [Text.ORDERS, Loud("orders")], ids=["enum", "loud"])


def a_record(producer: Producer, topic: str) -> None:
    producer.send(topic, Loud("v"), key=Loud("k"), headers=[(Loud("h"), Loud("x"))], partition=0).result(10)


def a_value(producer: Producer, topic: str) -> None:
    producer.send("orders", b"v").result(10)
    producer.send(topic, b"v").result(10)


def a_batch(producer: Producer, topic: str) -> None:
    producer.send_batch(topic, [{"value": Loud("v"), "key": Loud("k"), "headers": {Loud("h"): Loud("x")}}]).result(10)


@TOPIC
@pytest.mark.parametrize(("sends", "records"), [(a_record, 1), (a_value, 2), (a_batch, 1)])
def test_a_producer_sends_to_the_value(
    emulator: Emulator, topic: str, sends: Callable[[Producer, str], None], records: int
) -> None:
    settings: dict[str, Any] = {"partitioner": Loud("murmur2_random"), "acks": Loud("all"), "client_id": Loud("me")}
    with Producer(bootstrap_servers=Loud(emulator.bootstrap_servers), **settings) as producer:
        sends(producer, topic)
    found = emulator.records("orders")
    assert len(found) == records
    assert {record.value for record in found} == {b"v"}
    if records == 1:
        assert [(record.key, list(record.headers)) for record in found] == [(b"k", [("h", b"x")])]


@TOPIC
def test_transactional_ids_and_groups_are_the_value(emulator: Emulator, topic: str) -> None:
    async def in_task() -> None:
        async with AsyncProducer(
            bootstrap_servers=[Loud(emulator.bootstrap_servers)], transactional_id=Loud("async")
        ) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(topic, b"v")

    asyncio.run(in_task())
    with Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id=Loud("sync")) as producer:
        producer.init_transactions()
        with producer.transaction():
            for group in (Loud("g"), ConsumerGroupMetadata(Loud("g"), -1, Loud(""))):
                producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, group)
    assert {transaction.transactional_id for transaction in emulator.transactions()} == {"async", "sync"}
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
        assert admin.describe_transaction(Loud("sync")).transactional_id == "sync"
        assert [found.transactional_id for found in admin.transactions_of_prefix(Loud("sy"))] == ["sync"]
        assert list(admin.describe_transactions([Loud("async")])) == ["async"]
        assert list(admin.describe_topics([topic])) == ["orders"]
        assert list(admin.describe_producers([TopicPartition(topic, 0)])) == [("orders", 0)]
        assert admin.find_hanging(topic) == ()


@TOPIC
def test_dual_writes_are_of_the_value(emulator: Emulator, tmp_path: Path, topic: str) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'database'}")
    create_lease_table(engine)
    kafka: dict[str, Any] = {"bootstrap_servers": emulator.bootstrap_servers}
    with DualWriter(engine, transactional_id=Loud("d"), **kafka) as writer, writer.transaction() as tx:
        tx.send(topic, b"d")
    with DualWriter(engine, prefix=Loud("p"), **kafka) as pool, pool.transaction() as tx:
        tx.send(topic, b"p")
    assert [record.value for record in emulator.records("orders")] == [b"d", b"p"]
    with engine.connect() as connection:
        ids = {row[0] for row in connection.execute(sa.text("SELECT transactional_id FROM kafka_transaction_state"))}
    assert ids == {"d", "p-0"}
    assert {used.transactional_id.partition(".")[0] for used in emulator.transactions()} == ids


@TOPIC
def test_a_log_is_of_the_value(emulator: Emulator, topic: str) -> None:
    config = {"bootstrap.servers": emulator.bootstrap_servers}
    log = PartitionLog(config, topic, timeout_ms=30_000, unreachable_timeout_ms=5_000, most_bytes=1000)
    try:
        assert log.append(b"v") == 0
    finally:
        log.close()
    assert [record.value for record in emulator.records("orders")] == [b"v"]
