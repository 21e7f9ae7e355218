"""librdkafka's members of consumer groups (KIP-848) while members are killed and coordinators die or move."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from tests.support.conditions import until

PARTITIONS = 6
DEADLINE_S = 30.0
QUICK = BrokerConfig(
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_session_timeout_ms=2_000,
    offsets_topic_num_partitions=3,
    transaction_state_log_num_partitions=3,
)
MEMBER = """
import sys
import confluent_kafka
settings = {"bootstrap.servers": sys.argv[1], "group.id": "g", "group.protocol": "consumer"}
consumer = confluent_kafka.Consumer(settings)
consumer.subscribe(["t"])
while True:
    consumer.poll(0.1)
"""


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(config=QUICK, nodes=2, topics={"t": PARTITIONS, "copy": PARTITIONS}) as broker:
        yield broker


def consumer(emulator: Emulator, **settings: Any) -> Any:
    fixed = {"bootstrap.servers": emulator.bootstrap_servers, "group.id": "g", "group.protocol": "consumer"}
    chosen = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0, **settings}
    made = confluent_kafka.Consumer({**fixed, **chosen})
    made.subscribe(["t"])
    return made


def produce(emulator: Emulator, start: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": emulator.bootstrap_servers, "log_level": 0})
    for number in range(start, start + count):
        producer.produce("t", value=str(number), key=str(number))
    producer.flush(DEADLINE_S)


def poll_until(consumers: list[Any], condition: Callable[[], bool], values: list[int] | None = None) -> None:
    def is_so() -> bool:
        for member in consumers:
            message = member.poll(0.02)
            if message is not None and message.error() is None and values is not None:
                values.append(int(message.value()))
        return condition()

    until(is_so, DEADLINE_S)


def sizes(emulator: Emulator) -> list[int]:
    """Return the number of partitions of each member, if all members have their target assignments."""
    groups = [group for group in emulator.groups() if isinstance(group, ConsumerGroup)]
    if not groups or groups[0].state != "Stable":
        return []
    return sorted(len(member.assigned) for member in groups[0].members.values())


def test_members_come_and_go_are_killed_and_outlive_their_coordinator(emulator: Emulator) -> None:
    values: list[int] = []
    produce(emulator, 0, 60)
    members = [consumer(emulator), consumer(emulator)]
    killed = subprocess.Popen([sys.executable, "-c", MEMBER, emulator.bootstrap_servers])
    try:
        poll_until(members, lambda: sizes(emulator) == [2, 2, 2], values)
    finally:
        killed.kill()
        killed.wait()
    poll_until(members, lambda: sizes(emulator) == [3, 3], values)
    poll_until(members, lambda: set(values) == set(range(60)), values)
    coordinator = emulator.coordinator(group="g")
    emulator.crash_node(coordinator)
    produce(emulator, 60, 60)
    members.append(consumer(emulator))
    poll_until(members, lambda: sizes(emulator) == [2, 2, 2], values)
    poll_until(members, lambda: set(values) == set(range(120)), values)
    emulator.start_node(coordinator)
    members.pop(0).close()
    poll_until(members, lambda: sizes(emulator) == [3, 3])
    for member in members:
        member.close()
    assert emulator.groups()[0].state == "Empty"


class Copier:
    """Consumes, and produces each value again, with the offsets in the same transaction."""

    def __init__(self, emulator: Emulator, name: str) -> None:
        self.consumer = consumer(emulator, **{"isolation.level": "read_committed"})
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": emulator.bootstrap_servers, "transactional.id": name, "log_level": 0}
        )
        self.producer.init_transactions(DEADLINE_S)

    def copy_some(self) -> None:
        messages = [message for message in self.consumer.consume(10, 0.05) if message.error() is None]
        if not messages:
            return
        self.producer.begin_transaction()
        try:
            for message in messages:
                self.producer.produce("copy", value=message.value(), key=message.key())
            # the offsets of the messages, not the positions: a partition revoked since then has none
            read = {message.partition(): message.offset() + 1 for message in messages}
            self.producer.send_offsets_to_transaction(
                [confluent_kafka.TopicPartition("t", partition, offset) for partition, offset in read.items()],
                self.consumer.consumer_group_metadata(),
                DEADLINE_S,
            )
            self.producer.commit_transaction(DEADLINE_S)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(DEADLINE_S)
            self._rewind()

    def _rewind(self) -> None:
        for position in self.consumer.committed(self.consumer.assignment(), DEADLINE_S):
            if position.offset < 0:
                position.offset = confluent_kafka.OFFSET_BEGINNING
            self.consumer.seek(position)

    def close(self) -> None:
        self.consumer.close()


def test_exactly_once_with_members_that_come_and_go_and_a_coordinator_that_moves(emulator: Emulator) -> None:
    produce(emulator, 0, 300)
    copiers = [Copier(emulator, "copier-1")]
    for _ in range(3):
        copiers[0].copy_some()
    copiers.append(Copier(emulator, "copier-2"))
    moved = False

    def is_copied() -> bool:
        nonlocal moved
        for copier in copiers:
            copier.copy_some()
        if not moved and sizes(emulator) == [3, 3]:
            emulator.move_coordinator(1 - emulator.coordinator(group="g"), group="g")
            moved = True
        return moved and len(copied(emulator)) >= 300

    until(is_copied, DEADLINE_S)
    for copier in copiers:
        copier.close()
    assert Counter(copied(emulator)) == Counter(range(300))


def copied(emulator: Emulator) -> list[int]:
    """Return the committed records."""
    settings = {"bootstrap.servers": emulator.bootstrap_servers, "group.id": "reader", "log_level": 0}
    reader = confluent_kafka.Consumer(
        {**settings, "isolation.level": "read_committed", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    reader.assign([confluent_kafka.TopicPartition("copy", index, 0) for index in range(PARTITIONS)])
    found: list[int] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = reader.poll(DEADLINE_S)
        assert message is not None
        value, partition = message.value(), message.partition()
        if message.error() is None:
            assert value is not None
            found.append(int(value))
        else:
            assert partition is not None
            ended.add(partition)
    reader.close()
    return found
