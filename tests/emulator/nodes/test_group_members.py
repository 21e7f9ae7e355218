"""Members of consumer groups of three makes, while their coordinator and their leaders die.

Their sessions outlast the election of another node, so no member loses its partitions, and every record is seen once,
by the member that had its partition before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.groups.group import Group
from tests.emulator.nodes.conftest import NODES
from tests.emulator.nodes.moving_clients import TIMEOUT_S
from tests.emulator.test_group_clients import PARTITIONS, Consumers, KafkaPythonMember, produce
from tests.emulator.test_killed_broker_clients import BATCHES, aiokafka_join, aiokafka_leave, committed_offsets, read
from tests.support.conditions import until


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(offsets_topic_num_partitions=3)
    with Emulator(nodes=NODES, config=config, topics={"t": PARTITIONS}) as broker:
        yield broker


def crash_coordinator(emulator: Emulator) -> int:
    return crash(emulator, emulator.coordinator(group="g"))


def crash_leader_only(emulator: Emulator) -> int:
    """A node that leads a partition and does not coordinate."""
    leaders = {emulator.log("t", index).leader_id for index in range(PARTITIONS)}
    return crash(emulator, min(leaders - {emulator.coordinator(group="g")}))


def crash(emulator: Emulator, node_id: int) -> int:
    emulator.crash_node(node_id)
    return node_id


CRASHES: list[Callable[[Emulator], int]] = [crash_coordinator, crash_leader_only]


def disturb(emulator: Emulator, number: int, dead: list[int]) -> None:
    """Before each batch but the first: crash nodes, and restart the node of the previous batch."""
    if number == 0:
        return
    for node_id in dead:
        emulator.start_node(node_id)
    dead[:] = [CRASHES[number % len(CRASHES)](emulator)]


def committed(emulator: Emulator) -> list[int]:
    return committed_offsets(emulator.bootstrap_servers.split(",")[emulator.coordinator(group="g")])


def membership(emulator: Emulator) -> tuple[int, set[str]]:
    (group,) = emulator.groups()
    assert isinstance(group, Group)
    return group.generation, set(group.members)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_librdkafka(emulator: Emulator, strategy: str) -> None:
    backoff = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}
    consumers = Consumers(emulator, partition_assignment_strategy=strategy, **backoff)
    consumers.join("a")
    consumers.join("b")
    consumers.poll_until(consumers.is_shared)
    before = membership(emulator)
    dead: list[int] = []
    for number, batch in enumerate(BATCHES):
        disturb(emulator, number, dead)
        produce(emulator, batch)
        consumers.poll_until(lambda count=number + 1: len(consumers.messages) == count * PARTITIONS)  # type: ignore[misc]
        for member in consumers.members.values():
            member.commit(asynchronous=False)
    assert membership(emulator) == before
    consumers.close()
    assert_each_once([message.value().decode() for message in consumers.messages])


def test_kafka_python(emulator: Emulator) -> None:
    members = [KafkaPythonMember(emulator), KafkaPythonMember(emulator)]
    try:
        until(lambda: [len(member.partitions) for member in members] == [PARTITIONS // 2] * 2)
        before = membership(emulator)
        dead: list[int] = []
        for number, batch in enumerate(BATCHES):
            disturb(emulator, number, dead)
            produce(emulator, batch)
            until(lambda count=number + 1: committed(emulator) == [count] * PARTITIONS)  # type: ignore[misc]
        assert membership(emulator) == before
    finally:
        for member in members:
            member.leave()
    assert_each_once([value for member in members for value in member.values])


def test_aiokafka(emulator: Emulator) -> None:
    assert_each_once(asyncio.run(asyncio.wait_for(aiokafka_members(emulator), TIMEOUT_S)))


async def aiokafka_members(emulator: Emulator) -> list[str]:
    values: list[str] = []
    members = [await aiokafka_join(emulator), await aiokafka_join(emulator)]
    while [len(member.assignment()) for member in members] != [PARTITIONS // 2] * 2:
        assert await read(members) == []
    before = membership(emulator)
    dead: list[int] = []
    for number, batch in enumerate(BATCHES):
        await asyncio.to_thread(disturb, emulator, number, dead)
        await asyncio.to_thread(produce, emulator, batch)
        while len(values) < (number + 1) * PARTITIONS:
            values += await read(members)
        for member in members:
            await member.commit()
    assert membership(emulator) == before
    for member in members:
        await aiokafka_leave(member)
    return values


def assert_each_once(values: list[str]) -> None:
    assert sorted(values) == [value for batch in BATCHES for value in batch]
