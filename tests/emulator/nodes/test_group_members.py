"""librdkafka's members of consumer groups, while their coordinator and their leaders die.

Their sessions outlast the election of another node, so no member loses its partitions, and every record is seen once,
by the member that had its partition before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.groups.group import Group
from tests.emulator.member_clients import BATCHES, PARTITIONS, STRATEGIES, Members, assert_each_once
from tests.emulator.nodes.conftest import NODES


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


def membership(emulator: Emulator) -> tuple[int, set[str]]:
    (group,) = emulator.groups()
    assert isinstance(group, Group)
    return group.generation, set(group.members)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_member_loses_its_partitions(emulator: Emulator, strategy: str) -> None:
    members = Members(emulator.bootstrap_servers, strategy)
    try:
        members.join()
        members.join()
        members.wait_until_shared()
        before = membership(emulator)
        dead: list[int] = []
        for number in range(len(BATCHES)):
            disturb(emulator, number, dead)
            members.consume(number)
        assert membership(emulator) == before
    finally:
        members.close()
    assert_each_once(members)
