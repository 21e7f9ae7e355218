"""Offsets of real consumers of three libraries in a transaction, and of consumers that lost their group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.errors import AbortableError
from dualwrite.producer import ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from tests.producer.conftest import MakeProducer
from tests.support.conditions import until

aiokafka: Any = import_module("aiokafka")
confluent_kafka: Any = import_module("confluent_kafka")
kafka: Any = import_module("kafka")

ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    with Emulator(config=config, topics={"orders": 1, "events": 1}) as running:
        yield running


@pytest.fixture
def producer(make_producer: MakeProducer) -> Producer:
    with make_producer(None) as filling:
        for number in range(3):
            filling.send("events", b"%d" % number)
        filling.flush()
    transactional = make_producer("mover", two_phase_commit=False)
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.send("orders", b"moved")
    return transactional


class Librdkafka:
    def __init__(self, emulator: Emulator, **settings: Any) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": emulator.bootstrap_servers,
                "group.id": "grüppe",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **named,
            }
        )
        self.consumer.subscribe(["events"])

    def read(self, count: int) -> None:
        read: list[Any] = []

        def enough() -> bool:
            read.extend(self.consumer.consume(count - len(read), 0.1))
            return len(read) >= count

        until(enough)

    def metadata(self) -> Any:
        return self.consumer.consumer_group_metadata()

    def positions(self) -> Any:
        return self.consumer.position(self.consumer.assignment())

    def committed(self) -> int:
        (committed,) = self.consumer.committed([confluent_kafka.TopicPartition("events", 0)], 10)
        return int(committed.offset)

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    def __init__(self, emulator: Emulator, **settings: Any) -> None:
        self.partition = kafka.TopicPartition("events", 0)
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=emulator.bootstrap_servers,
            group_id="grüppe",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **settings,
        )
        # its assignor gives nothing of a topic whose metadata has not come yet, and does not try again
        until(lambda: bool(self.consumer.partitions_for_topic("events")))
        self.consumer.subscribe(["events"])

    def read(self, count: int) -> None:
        read: list[Any] = []

        def has_read() -> bool:
            read.extend(self.consumer.poll(100, max_records=count).get(self.partition, []))
            return bool(read)

        until(has_read)

    def metadata(self) -> Any:
        return self.consumer.group_metadata()

    def positions(self) -> Any:
        return {self.partition: kafka.OffsetAndMetadata(self.consumer.position(self.partition), "", -1)}

    def committed(self) -> int:
        return int(self.consumer.committed(self.partition) or -1)

    def close(self) -> None:
        self.consumer.close()


LIBRARIES = [Librdkafka, KafkaPython]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("static", [False, True])
def test_positions_are_committed_under_the_consumers_membership(
    emulator: Emulator, producer: Producer, library: Any, static: bool
) -> None:
    consumer = library(emulator, **({"group_instance_id": "one"} if static else {}))
    try:
        consumer.read(3)
        group = group_of(consumer.metadata())
        assert (group.group_id, group.group_instance_id) == ("grüppe", "one" if static else None)
        assert group.generation_id >= 1
        assert group.member_id
        producer.send_offsets_to_transaction(consumer.positions(), consumer.metadata())
        producer.commit_transaction()
        until(lambda: consumer.committed() == 3)
    finally:
        consumer.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_member_that_was_thrown_out_cannot_commit(emulator: Emulator, producer: Producer, library: Any) -> None:
    """Another consumer has its partitions and reads the same records again, so its transaction must not count."""
    consumer = library(emulator)
    consumer.read(3)
    metadata, positions = consumer.metadata(), consumer.positions()
    consumer.close()
    successor = library(emulator)
    try:
        successor.read(3)
        with pytest.raises(AbortableError) as caught:
            producer.send_offsets_to_transaction(positions, metadata)
        assert caught.value.error_code == UNKNOWN_MEMBER_ID
        producer.abort_transaction()
        assert successor.committed() < 0
        producer.begin_transaction()
        producer.send_offsets_to_transaction(successor.positions(), successor.metadata())
        producer.commit_transaction()
        until(lambda: successor.committed() == 3)
    finally:
        successor.close()


def test_an_old_generation_of_a_living_member_is_refused(emulator: Emulator, producer: Producer) -> None:
    consumer = Librdkafka(emulator)
    try:
        consumer.read(3)
        now = group_of(consumer.metadata())
        before = ConsumerGroupMetadata(now.group_id, now.generation_id - 1, now.member_id)
        with pytest.raises(AbortableError) as caught:
            producer.send_offsets_to_transaction(consumer.positions(), before)
        assert caught.value.error_code == ILLEGAL_GENERATION
        producer.abort_transaction()
    finally:
        consumer.close()


def test_an_aiokafka_consumer(emulator: Emulator, producer: Producer) -> None:
    async def read_and_commit() -> tuple[ConsumerGroupMetadata, int]:
        consumer = aiokafka.AIOKafkaConsumer(
            "events",
            bootstrap_servers=emulator.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            for _ in range(3):
                await consumer.getone()
            partition = aiokafka.TopicPartition("events", 0)
            offsets = {partition: await consumer.position(partition)}
            await asyncio.to_thread(producer.send_offsets_to_transaction, offsets, consumer)
            await asyncio.to_thread(producer.commit_transaction)
            return group_of(consumer), await consumer.committed(partition)
        finally:
            await consumer.stop()

    group, committed = asyncio.run(read_and_commit())
    assert (group.group_id, group.generation_id >= 1, group.member_id != "") == ("g", True, True)
    assert committed == 3


# ---- not group metadata -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serialized", "group"),
    [
        (b"CGMDv2:\xff\xff\xff\xffg\0\0\1", ConsumerGroupMetadata("g", -1, "", None)),
        (b"CGMDv2:\x05\0\0\0g\0m\0\0i\0", ConsumerGroupMetadata("g", 5, "m", "i")),
        (b"CGMDv2:\x05\0\0\0g\0m\0\0\0", ConsumerGroupMetadata("g", 5, "m", "")),
    ],
)
def test_group_metadata_serialized_by_librdkafka_is_understood(serialized: bytes, group: ConsumerGroupMetadata) -> None:
    assert group_of(serialized) == group


WHOLE = b"CGMDv2:\x05\0\0\0g\0m\0\0i\0"


@pytest.mark.parametrize(
    "damaged",
    [
        *(WHOLE[:length] for length in range(len(WHOLE))),
        WHOLE + b"x",
        WHOLE.replace(b"v2", b"v3"),
        WHOLE.replace(b"\0i", b"\2i"),
        b"CGMDv2:\x05\0\0\0\0m\0\1",
        b"CGMDv2:\x05\0\0\0\xff\0m\0\1",
    ],
)
def test_bytes_that_are_not_librdkafkas(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="are not group metadata in a known format of librdkafka"):
        group_of(damaged)


@pytest.mark.parametrize("wrong", [None, 5, object(), {"group_id": "g"}])
def test_things_that_are_no_group(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"the group metadata is .*nothing was sent: give"):
        group_of(wrong)


def test_a_consumer_without_a_group() -> None:
    with pytest.raises(ValueError, match="without a group"):
        group_of("")
    with pytest.raises(ValueError, match="without a group"):
        group_of(kafka.structs.ConsumerGroupMetadata(None, -1, "", None))


def test_positions_of_all_kinds() -> None:
    partition = TopicPartition("t", 1)
    assert positions_of({("t", 1): 5}) == {partition: OffsetAndMetadata(5)}
    assert positions_of({partition: kafka.OffsetAndMetadata(5, "m", 2)}) == {partition: OffsetAndMetadata(5, "m", 2)}
    assert positions_of({partition: aiokafka.structs.OffsetAndMetadata(5, "m")}) == {
        partition: OffsetAndMetadata(5, "m")
    }
    listed = [confluent_kafka.TopicPartition("t", 1, 5), confluent_kafka.TopicPartition("t", 2)]
    listed[1].offset = -1001
    assert positions_of(listed) == {partition: OffsetAndMetadata(5)}
    for wrong in ({partition: -1}, {partition: -1001}, [confluent_kafka.TopicPartition("t", 1, -1)]):
        with pytest.raises(ValueError, match="cannot be that of the next record"):
            positions_of(wrong)
    with pytest.raises(TypeError, match="not a mapping by partition"):
        positions_of("t")
