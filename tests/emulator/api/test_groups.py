"""Consumer groups over the wire: membership, offsets of members, administration, records and failover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, PausePoint
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.groups.group import GroupState
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.emulator.api.group_requests import (
    SESSION_MS,
    delete,
    delete_offset,
    describe,
    heartbeat,
    join,
    join_fields,
    leave,
    listed,
    sync,
    sync_fields,
)
from tests.emulator.api.offset_requests import commit, settle
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.support.conditions import until

HOUR_MS = 3_600_000


@pytest.fixture
def emulator(config: BrokerConfig) -> Iterator[Emulator]:
    with Emulator(config=config, clock=VirtualClock(), topics={"t": 1, "other": 1}) as broker:
        yield broker


def stable_member(client: RawClient, **values: Any) -> Any:
    joined = join(client, **values)
    instance = values.get("group_instance_id")
    assert sync(client, joined, group_instance_id=instance).assignment == joined.member_id.encode()
    return joined


def group_of(emulator: Emulator) -> Any:
    return next(group for group in emulator.groups() if group.group_id == "g")


# membership


def test_a_waiting_request_is_replaced_by_a_newer_one_of_its_member(emulator: Emulator, client: RawClient) -> None:
    stable_member(client)
    with RawClient(emulator.bootstrap_servers) as lost, RawClient(emulator.bootstrap_servers) as again:
        asked = lost.call("join_group", 9, **join_fields(9))
        lost.send("join_group", 9, **join_fields(9, member_id=asked.member_id))
        until(lambda: group_of(emulator).state is GroupState.PREPARING_REBALANCE)
        waiting = again.send("join_group", 9, **join_fields(9, member_id=asked.member_id))
        assert lost.is_closed()
        emulator.advance_clock(SESSION_MS)
        assert again.receive("join_group", 9, waiting).error_code == 0


# time


# offsets of members


@pytest.mark.parametrize(("version", "error"), [(8, 22), (9, 69)])
def test_a_generation_of_an_unknown_group(client: RawClient, version: int, error: int) -> None:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = ({"name": "t", "partitions": (partition,)},)
    request = {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "m", "topics": topics}
    response = client.call("offset_commit", version, **request)
    assert response.topics[0].partitions[0].error_code == error


def test_offsets_of_members_that_are_no_consumers(client: RawClient) -> None:
    stable_member_of_connect = join(client, protocol_type="connect")
    assert stable_member_of_connect.error_code == 0
    assert delete_offset(client, "t") == (68, [])


def test_offsets_go_with_their_topic(emulator: Emulator, client: RawClient) -> None:
    commit(client, "g", 1, topic="other")
    client.delete_topic("other")
    emulator.create_topic("other")
    assert client.offset_fetch("g", "other").committed_offset == -1


# expiry


@pytest.fixture
def short_memory() -> Iterator[Emulator]:
    """Start an emulator that keeps offsets for an hour."""
    config = BrokerConfig(offsets_retention_minutes=60, transaction_max_timeout_ms=10 * HOUR_MS)
    with Emulator(config=config, clock=VirtualClock(), topics={"t": 1, "other": 1}) as broker:
        yield broker


def test_offsets_and_groups_expire(short_memory: Emulator) -> None:
    with RawClient(short_memory.bootstrap_servers) as client:
        joined = stable_member(client)
        commit(client, "g", 1, member_id=joined.member_id, generation_id_or_member_epoch=1)
        commit(client, "simple", 1)
        leave(client, (joined.member_id, None))
        short_memory.advance_clock(HOUR_MS - 600_000)
        assert client.offset_fetch("g", "t").committed_offset == 1
        assert len(short_memory.groups()) == 2
        short_memory.advance_clock(600_000)
        assert short_memory.groups() == []
        assert client.offset_fetch("g", "t").committed_offset == -1
        assert client.offset_fetch("simple", "t").committed_offset == -1


def test_nothing_expires_under_an_open_transaction(short_memory: Emulator) -> None:
    with RawClient(short_memory.bootstrap_servers) as client:
        commit(client, "g", 1)
        commit(client, "g", 1, topic="other")
        producer = client.init_producer_id("x", transaction_timeout=milliseconds(10 * HOUR_MS))
        assert client.txn_offset_commit("x", producer, "g", "t", 5) == 0
        short_memory.advance_clock(2 * HOUR_MS)
        fetched = [client.offset_fetch("g", topic, require_stable=False) for topic in ("t", "other")]
        assert [row.committed_offset for row in fetched] == [1, -1]
        assert [group.group_id for group in short_memory.groups()] == ["g"]
        settle(short_memory, client, producer, commit=True)
        assert client.offset_fetch("g", "t").committed_offset == 5
        short_memory.advance_clock(2 * HOUR_MS)
        assert short_memory.groups() == []


# records and failover


def client_of(emulator: Emulator, node_id: int) -> RawClient:
    return RawClient(emulator.bootstrap_servers.split(",")[node_id])


@pytest.fixture
def two_nodes(config: BrokerConfig) -> Iterator[Emulator]:
    with Emulator(nodes=2, config=config, clock=VirtualClock(), topics={"t": 1}) as broker:
        yield broker


def test_members_go_on_at_another_coordinator(two_nodes: Emulator) -> None:
    old = two_nodes.coordinator(group="g")
    with client_of(two_nodes, old) as client, client_of(two_nodes, old) as waiting_client:
        joined = stable_member(client)
        commit(client, "g", 7, member_id=joined.member_id, generation_id_or_member_epoch=1)
        asked = waiting_client.call("join_group", 9, **join_fields(9))
        waiting = waiting_client.send("join_group", 9, **join_fields(9, member_id=asked.member_id))
        until(lambda: group_of(two_nodes).state is GroupState.PREPARING_REBALANCE)
        two_nodes.move_coordinator(1 - old, group="g")
        assert waiting_client.receive("join_group", 9, waiting).error_code == 16
        assert heartbeat(client, joined) == 16
        assert describe(client).error_code == 16
        assert delete(client, "g") == [16]
        assert delete_offset(client, "t") == (16, [])
        assert listed(client) == []
    with client_of(two_nodes, 1 - old) as client:
        assert heartbeat(client, joined) == 0
        assert commit(client, "g", 8, member_id=joined.member_id, generation_id_or_member_epoch=1) == 0
        assert client.offset_fetch("g", "t").committed_offset == 8
        two_nodes.advance_clock(SESSION_MS)
        assert heartbeat(client, joined) == 25


def test_while_the_group_is_loaded(two_nodes: Emulator) -> None:
    old = two_nodes.coordinator(group="g")
    with client_of(two_nodes, old) as client:
        joined = stable_member(client)
    held = two_nodes.hold(PausePoint.BEFORE_LOAD)
    two_nodes.move_coordinator(1 - old, group="g")
    held.wait_reached()
    with client_of(two_nodes, 1 - old) as client:
        assert heartbeat(client, joined) == 0  # any heartbeat gets 0
        assert join(client, member_id=joined.member_id).error_code == 14
        assert sync(client, joined).error_code == 14
        assert commit(client, "g", 1, member_id=joined.member_id, generation_id_or_member_epoch=1) == 14
        assert client.call("list_groups", 5, states_filter=(), types_filter=()).error_code == 14
        groups = ({"group_id": "g", "topics": None},)
        assert client.call("offset_fetch", 8, groups=groups, require_stable=True).groups[0].error_code == 14
        held.release()
        until(lambda: commit(client, "g", 1, member_id=joined.member_id, generation_id_or_member_epoch=1) == 0)


def test_answers_wait_for_replication(emulator: Emulator, client: RawClient) -> None:
    joined = join(client)
    held = emulator.hold_replication("__consumer_offsets", partition_for("g", 5))
    waiting = client.send("sync_group", 5, **sync_fields(joined))
    assert client.is_silent()
    held.release()
    assert client.receive("sync_group", 5, waiting).assignment == joined.member_id.encode()


def test_an_assignment_that_was_not_replicated_is_lost(two_nodes: Emulator) -> None:
    old = two_nodes.coordinator(group="g")
    with client_of(two_nodes, old) as client:
        joined = join(client)
        held = two_nodes.hold_replication("__consumer_offsets", partition_for("g", 5))
        waiting = client.send("sync_group", 5, **sync_fields(joined))
        until(lambda: group_of(two_nodes).state is GroupState.STABLE)
        two_nodes.move_coordinator(1 - old, group="g")
        assert client.receive("sync_group", 5, waiting).error_code == 16
        held.release()
    with client_of(two_nodes, 1 - old) as client:
        assert heartbeat(client, joined) == 25
        assert group_of(two_nodes).members == {}


def test_a_group_outlives_the_process_in_its_data_directory(config: BrokerConfig, tmp_path: Path) -> None:
    clock = VirtualClock()
    with Emulator(config=config, clock=clock, topics={"t": 1}, data_dir=tmp_path) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            joined = stable_member(client)
            commit(client, "g", 7, member_id=joined.member_id, generation_id_or_member_epoch=1)
            producer = client.init_producer_id("x")
            member = {"member_id": joined.member_id, "generation_id": 1}
            assert client.txn_offset_commit("x", producer, "g", "t", 9, **member) == 0
    with Emulator(config=config, clock=clock, topics={"t": 1}, data_dir=tmp_path) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            assert heartbeat(client, joined) == 0
            assert sync(client, joined).assignment == joined.member_id.encode()
            assert client.offset_fetch("g", "t").error_code == 88
            settle(emulator, client, producer, commit=True)
            assert client.offset_fetch("g", "t").committed_offset == 9
