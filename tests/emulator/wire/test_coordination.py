"""Which node answers which request: requests to the wrong node (KIP-98), with two nodes and one connection to each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka.protocol.admin.topics import CreateTopicsRequest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile, VirtualClock
from tests.emulator.wire.world import COMMIT, World
from tests.interop.wire import NO_IDENTITY, Code, Identity, Wire

rule = pytest.mark.rule
WRONG = Code.NOT_COORDINATOR


@pytest.fixture
def worlds(profile: Profile) -> Iterator[tuple[World, World]]:
    """Two nodes: the coordinator of "x", which leads no partition of "t", and the leader of "t"."""
    config = BrokerConfig(profile=profile, unstable_api_versions_enable=True, offsets_topic_num_partitions=5)
    with Emulator(nodes=2, config=config, clock=VirtualClock(), topics={"t": 1}) as emulator:
        leader = emulator.log("t").leader_id
        emulator.move_coordinator(1 - leader, transactional_id="x")
        emulator.move_coordinator(1 - leader, group="g")
        addresses = emulator.bootstrap_servers.split(",")
        with Wire(addresses[1 - leader]) as coordinator, Wire(addresses[leader]) as other:
            yield World(emulator, coordinator, profile), World(emulator, other, profile)


@rule("InitProducerId / to another node is 16")
@rule("AddPartitionsToTxn / to another node is 16")
@rule("AddOffsetsToTxn / to another node is 16")
@rule("EndTxn / to another node is 16")
@rule("TxnOffsetCommit / to another node is 16")
@rule("DescribeTransactions / to another node is 16")
@rule("ListTransactions / shows what this node coordinates")
def test_not_the_coordinator(worlds: tuple[World, World]) -> None:
    right, wrong = worlds
    identity = right.wire.init_ok("x")
    assert wrong.wire.init("x").error == WRONG
    for version in range(4):
        assert wrong.wire.add("x", identity, ("t", 0), version=version) == [WRONG]
    assert wrong.add_many(("x", identity, True, [("t", 0)]))["x"] == {("t", 0): WRONG}
    assert wrong.add_many(("x", identity, False, [("t", 0)]))["x"] == {("t", 0): WRONG}
    assert wrong.wire.add_offsets("x", identity, "g") == WRONG
    for version in range(6 if right.has_tv2 else 5):
        assert wrong.wire.end("x", identity, commit=COMMIT, version=version).error == WRONG
    assert wrong.wire.txn_offset_commit("x", identity, "g", "t", 5, version=4) == WRONG
    assert wrong.wire.describe("x").error == WRONG
    assert set(right.wire.list_transactions(version=1)[2]) == {"x"}
    assert wrong.wire.list_transactions(version=1)[2] == {}


@rule("InitProducerId / what is wrong with the request itself is said by any node")
def test_checks_before_the_coordinator(worlds: tuple[World, World]) -> None:
    _, wrong = worlds
    assert wrong.wire.init("x", timeout_ms=0).error == Code.INVALID_TRANSACTION_TIMEOUT
    assert wrong.wire.init("").error == Code.INVALID_REQUEST
    assert wrong.wire.init("x", Identity(5, -1)).error == Code.INVALID_REQUEST
    if wrong.profile is Profile.KAFKA_4_3:
        assert wrong.wire.init("x", version=6, keep=True).error == Code.UNSUPPORTED_VERSION


@rule("WriteTxnMarkers / a partition that another node leads is 6")
@rule("Produce / a partition that another node leads is 6")
def test_not_the_leader(worlds: tuple[World, World]) -> None:
    wrong, right = worlds
    assert wrong.write_marker(Identity(1, 0)) == Code.NOT_LEADER_OR_FOLLOWER
    refused = wrong.wire.produce(None, NO_IDENTITY, "t", -1, transactional=False, version=11)
    assert refused.error == Code.NOT_LEADER_OR_FOLLOWER
    assert right.wire.producers("t") == (Code.NONE, {})


@rule("DescribeProducers / a follower answers too, a node without a copy 6")
def test_producers_of_a_copy(worlds: tuple[World, World]) -> None:
    """As observed on two nodes of Apache Kafka 4.4.0."""
    follower, leader = worlds
    identity = leader.wire.init_ok(None)
    assert leader.wire.produce(None, identity, "t", 0, transactional=False, version=11).error == Code.NONE
    assert follower.wire.producers("t") == leader.wire.producers("t")
    assert list(follower.wire.producers("t")[1]) == [identity.producer_id]
    topic = CreateTopicsRequest.CreatableTopic(
        name="single", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    leader.wire.call(CreateTopicsRequest(version=5, topics=[topic], timeout_ms=10_000, validate_only=False))
    codes = [world.wire.producers("single")[0] for world in worlds]
    assert sorted(codes) == [Code.NONE, Code.NOT_LEADER_OR_FOLLOWER]


@rule("Produce / the leader asks the coordinator on another node, and its markers come from there")
def test_across_nodes(worlds: tuple[World, World]) -> None:
    coordinator, leader = worlds
    identity = coordinator.wire.init_ok("x")
    if coordinator.has_tv2:
        assert leader.wire.produce("x", identity, "t", 0).error == Code.NONE
    else:
        assert leader.wire.produce("x", identity, "t", 0, version=11).error == Code.TRANSACTION_ABORTABLE
        assert coordinator.wire.add("x", identity, ("t", 0)) == [Code.NONE]
        assert leader.wire.produce("x", identity, "t", 0, version=11).error == Code.NONE
    coordinator.end("x", identity, commit=COMMIT)
    assert leader.wire.list_offsets("t", isolation=1) == 2


@rule("Producer ids / two coordinators give out of different blocks of 1000")
def test_blocks(worlds: tuple[World, World]) -> None:
    first, second = (world.wire.init_ok(None).producer_id for world in worlds)
    assert first // 1000 != second // 1000
    assert worlds[0].wire.init_ok(None).producer_id == first + 1
