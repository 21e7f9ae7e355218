"""librdkafka's members of consumer groups (KIP-848) while members are killed and coordinators die or move."""

from __future__ import annotations

import subprocess
import sys
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
