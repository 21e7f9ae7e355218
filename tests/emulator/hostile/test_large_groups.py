"""Groups with ten thousand topics: others are served while the broker decides about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.emulator.hostile.turns import until_some_turn
from tests.emulator.inside import await_in_loop, is_deciding

MANY = 2_000
NAMES = tuple(f"t{index}" for index in range(MANY))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    with Emulator(config=config, nodes=2, topics=dict.fromkeys(NAMES, 1)) as broker:
        yield broker


@pytest.fixture
def client(emulator: Emulator) -> Iterator[RawClient]:
    with _client(emulator) as raw:
        yield raw


def _client(emulator: Emulator) -> RawClient:
    leader = emulator.call_in_loop(lambda: emulator.cluster.topics["__consumer_offsets"].partitions[0].leader_id)
    return RawClient(emulator.bootstrap_servers.split(",")[leader])


def _heartbeat(group: str, member: str, epoch: int = 0, names: tuple[str, ...] | None = NAMES) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": milliseconds(60_000),
        "subscribed_topic_names": names,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": () if epoch == 0 else None,
    }


def test_all_of_several_that_join_at_a_time_are_members(emulator: Emulator) -> None:
    members = ("one", "two", "three")
    with ExitStack() as stack:
        clients = [stack.enter_context(_client(emulator)) for _ in members]
        numbers = [
            client.send("consumer_group_heartbeat", 1, **_heartbeat("crowded", member))
            for client, member in zip(clients, members, strict=True)
        ]
        for client, number in zip(clients, numbers, strict=True):
            assert client.receive("consumer_group_heartbeat", 1, number).error_code is ErrorCode.none
        options = {"group_ids": ("crowded",), "include_authorized_operations": False}
        described = clients[0].call("consumer_group_describe", 0, **options)
    assert {member.member_id for member in described.groups[0].members} == set(members)


def test_a_coordinator_that_resigns_while_it_decides_stores_nothing(emulator: Emulator, client: RawClient) -> None:
    def leader() -> int:
        return emulator.cluster.topics["__consumer_offsets"].partitions[0].leader_id

    async def move() -> None:
        await until_some_turn(lambda: is_deciding(emulator, "moved"))
        partition = emulator.cluster.topics["__consumer_offsets"].partitions[0]
        emulator.operations.move_leader(partition, 1 - leader())

    number = client.send("consumer_group_heartbeat", 1, **_heartbeat("moved", "one"))
    await_in_loop(emulator, move())
    assert client.receive("consumer_group_heartbeat", 1, number).error_code is ErrorCode.not_coordinator
    with _client(emulator) as other:
        described = other.call("consumer_group_describe", 0, group_ids=("moved",), include_authorized_operations=False)
    assert described.groups[0].error_code is ErrorCode.group_id_not_found
