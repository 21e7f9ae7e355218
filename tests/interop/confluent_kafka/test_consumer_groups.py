"""Groups of librdkafka's members, in both protocols."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.interop.conftest import Broker
from tests.interop.wire import DEADLINE_S, GROUP, Code, Wire, wait_until

PROTOCOLS = ("classic", "consumer")


class Members:
    """Consumers of one group that are polled together, as a rebalance needs all of them to be polled."""

    def __init__(self, broker: Broker, group: str, topic: str, protocol: str) -> None:
        self._topic = topic
        self._settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
        if protocol == "classic":
            self._settings |= {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 100}
        self.consumers: list[Any] = []
        self.values: list[bytes] = []

    def join(self) -> Any:
        consumer = confluent_kafka.Consumer(self._settings)
        consumer.subscribe([self._topic])
        self.consumers.append(consumer)
        return consumer

    def leave(self, consumer: Any) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.values.append(message.value())

    def wait_for_partitions(self, *counts: int) -> None:
        def are_assigned() -> bool:
            self.poll()
            return sorted(len(consumer.assignment()) for consumer in self.consumers) == sorted(counts)

        wait_until(are_assigned, 2 * DEADLINE_S)

    def wait_for_values(self, count: int) -> None:
        def are_read() -> bool:
            self.poll()
            return len(self.values) >= count

        wait_until(are_read, 2 * DEADLINE_S)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go(wire: Wire, broker: Broker, topic: str, group: str, protocol: str) -> None:
    shared = f"{topic}-shared"
    wire.create_topic(shared, 4)
    wire.wait_for_coordinator(group, GROUP)
    members = Members(broker, group, shared, protocol)
    first = members.join()
    members.wait_for_partitions(4)
    members.join()
    members.wait_for_partitions(2, 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert described.type.name == protocol.upper()
    assert described.state.name == "STABLE"
    assert len(described.members) == 2
    members.leave(first)
    members.wait_for_partitions(4)
    members.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_another_member_continues_at_the_committed_offset(
    wire: Wire, broker: Broker, topic: str, group: str, protocol: str
) -> None:
    for value in (b"1", b"2", b"3"):
        wire.write(topic, value)
    wire.wait_for_coordinator(group, GROUP)
    members = Members(broker, group, topic, protocol)
    first = members.join()
    members.wait_for_values(3)
    offsets = [confluent_kafka.TopicPartition(topic, 0, 2)]
    first.commit(offsets=offsets, asynchronous=False)
    members.leave(first)
    assert wire.offset_fetch(group, topic) == (Code.NONE, 2)
    members.join()
    members.wait_for_values(4)
    assert members.values == [b"1", b"2", b"3", b"3"]
    members.close()


def test_a_group_changes_its_protocol(wire: Wire, broker: Broker, topic: str, group: str) -> None:
    """KIP-848: a classic group that is empty becomes one of the new protocol, with its offsets."""
    wire.write(topic, b"1")
    wire.write(topic, b"2")
    wire.wait_for_coordinator(group, GROUP)
    for protocol, expected in (("classic", b"1"), ("consumer", b"2")):
        members = Members(broker, group, topic, protocol)
        member = members.join()
        members.wait_for_values(1)
        assert members.values[0] == expected
        member.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 1)], asynchronous=False)
        members.close()
