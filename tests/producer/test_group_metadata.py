"""Offsets of real consumers of three libraries in a transaction, and of consumers that lost their group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.client.records.record import NoMember
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.errors import AbortableError
from dualwrite.producer import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    aiokafka_group_metadata,
)
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


def aiokafka_consumer(emulator: Emulator) -> Any:
    return aiokafka.AIOKafkaConsumer(
        "events",
        bootstrap_servers=emulator.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
    )


EVENTS_0 = aiokafka.TopicPartition("events", 0)


def test_an_aiokafka_consumer(emulator: Emulator, producer: Producer) -> None:
    async def read_and_commit() -> tuple[ConsumerGroupMetadata, int]:
        async with aiokafka_consumer(emulator) as consumer:
            for _ in range(3):
                await consumer.getone()
            group = aiokafka_group_metadata(consumer)
            offsets = {EVENTS_0: await consumer.position(EVENTS_0)}
            await asyncio.to_thread(producer.send_offsets_to_transaction, offsets, group)
            await asyncio.to_thread(producer.commit_transaction)
            return group, await consumer.committed(EVENTS_0)

    group, committed = asyncio.run(read_and_commit())
    assert (group.group_id, group.generation_id >= 1, group.member_id != "") == ("g", True, True)
    assert committed == 3


def test_a_partition_that_moved_in_the_background_is_refused(emulator: Emulator, producer: Producer) -> None:
    """The consumer is a member again, without the partition whose record it holds."""

    async def read_and_lose() -> None:
        async with aiokafka_consumer(emulator) as consumer:
            await consumer.getone()
            group = aiokafka_group_metadata(consumer)
            async with aiokafka_consumer(emulator):  # starts when both have joined
                now = aiokafka_group_metadata(consumer)
                assert now.generation_id > group.generation_id >= 1
                with pytest.raises(TypeError, match=r"give .*aiokafka_group_metadata\(consumer\)"):
                    producer.send_offsets_to_transaction({EVENTS_0: 1}, consumer)
                with pytest.raises(AbortableError) as caught:
                    await asyncio.to_thread(producer.send_offsets_to_transaction, {EVENTS_0: 1}, group)
                assert caught.value.error_code == ILLEGAL_GENERATION

    asyncio.run(read_and_lose())


# ---- consumers that are no members ------------------------------------------------------------------------------


def stopped_aiokafka(emulator: Emulator) -> Any:
    async def left() -> Any:
        async with aiokafka_consumer(emulator) as consumer:
            await consumer.getone()
        return aiokafka_group_metadata(consumer)

    return asyncio.run(left())


def slow_kafka_python(emulator: Emulator) -> Any:
    """Return the metadata after the heartbeat thread has left the group, for want of a poll."""
    slow = KafkaPython(emulator, max_poll_interval_ms=100, heartbeat_interval_ms=50, session_timeout_ms=6_000)
    try:
        slow.read(1)
        until(lambda: slow.metadata().generation_id < 0)
        return slow.metadata()
    finally:
        slow.close()


def librdkafka_before_it_joined(emulator: Emulator) -> Any:
    consumer = Librdkafka(emulator)
    try:
        return consumer.metadata()
    finally:
        consumer.close()


@pytest.mark.parametrize("metadata_of", [stopped_aiokafka, slow_kafka_python, librdkafka_before_it_joined])
def test_the_metadata_of_a_consumer_that_is_no_member_is_refused(
    emulator: Emulator, producer: Producer, metadata_of: Any
) -> None:
    """Kafka would accept the offsets, although another consumer reads the same records again."""
    metadata = metadata_of(emulator)
    for refused in (metadata, group_of(metadata)):
        with pytest.raises(AbortableError, match="no member of group"):
            producer.send_offsets_to_transaction({EVENTS_0: 1}, refused)
        with pytest.raises(AbortableError, match="no member of group"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()


# ---- not group metadata -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serialized", "group"),
    [
        (b"CGMDv2:\xff\xff\xff\xffg\0\0\1", NoMember("g")),
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
