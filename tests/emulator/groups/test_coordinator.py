"""The group coordinator rebuilds itself from its log."""

from __future__ import annotations

import asyncio

import pytest

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.cluster.topics import Partition, TopicPartition
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.faults import Faults
from dualwrite.broker_emulator.groups.offsets import Committer
from dualwrite.broker_emulator.groups.shard import GroupShard, TransactionOfOffsets
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.transactions.ports import Marker

PARTITION = TopicPartition("t", 0)
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


@pytest.fixture
def node() -> Node:
    config = BrokerConfig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    cluster = Cluster(config, VirtualClock(), Faults())
    node = cluster.nodes[0] = Node(0, cluster, {})
    cluster.create_internal_topics()
    cluster.create_topic("t", 1)
    node.groups.load_partition(offsets_partition(node))
    return node


def offsets_partition(node: Node) -> Partition:
    return node.cluster.topics["__consumer_offsets"].partitions[0]


def shard(node: Node) -> GroupShard:
    found = node.groups.shard("g")
    assert isinstance(found, GroupShard)
    return found


def commit(node: Node, offset: int) -> None:
    value = node.groups.value(PARTITION, offset, -1, "")
    assert asyncio.run(shard(node).commit("g", Committer(), {PARTITION: value})) == 0


def commit_in_transaction(node: Node, offset: int) -> None:
    log = offsets_partition(node).log
    guard = log.begin_verification(**PRODUCER, base_sequence=-1, supports_epoch_bump=True)
    assert try_to_commit_in_transaction(node, offset, guard) == 0


def try_to_commit_in_transaction(node: Node, offset: int, guard: VerificationGuard | None) -> int:
    offsets = {PARTITION: node.groups.value(PARTITION, offset, -1, "")}
    transaction = TransactionOfOffsets(**PRODUCER, guard=guard)
    return asyncio.run(shard(node).commit_in_transaction("g", Committer(), offsets, transaction))


def write_marker(node: Node, *, commit: bool) -> None:
    name = TopicPartition("__consumer_offsets", 0)
    marker = Marker(**PRODUCER, coordinator_epoch=0, commit=commit, transaction_version=0)
    assert node.write_marker(name, marker) == 0  # at once: nothing holds the replication up


def reload(node: Node) -> None:
    node.groups.unload_partition(0)
    assert node.groups.shard("g") == 16
    node.groups.begin_loading(0)
    assert node.groups.shard("g") == 14
    node.groups.load_partition(offsets_partition(node))


def seen(node: Node) -> tuple[int | None, bool]:
    table = shard(node).offsets
    committed = table.committed("g", PARTITION)
    return None if committed is None else committed.offset, table.is_unstable("g", PARTITION)


def test_committed_and_pending_offsets_survive_a_reload(node: Node) -> None:
    commit(node, 3)
    commit_in_transaction(node, 5)
    assert seen(node) == (3, True)
    reload(node)
    assert seen(node) == (3, True)
    write_marker(node, commit=True)
    assert seen(node) == (5, False)
    reload(node)
    assert seen(node) == (5, False)


def test_aborted_offsets_stay_aborted_after_a_reload(node: Node) -> None:
    commit(node, 3)
    commit_in_transaction(node, 5)
    write_marker(node, commit=False)
    reload(node)
    assert seen(node) == (3, False)


def test_without_verification_nothing_becomes_pending(node: Node) -> None:
    assert try_to_commit_in_transaction(node, 5, None) == 48
    assert seen(node) == (None, False)
