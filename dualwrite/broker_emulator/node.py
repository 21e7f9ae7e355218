"""One broker: its listener's address, its two coordinators, and how they reach the cluster's partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from dualwrite.broker_emulator.cluster import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, Cluster, Partition
from dualwrite.broker_emulator.groups.coordinator import GroupCoordinator
from dualwrite.broker_emulator.log.partition_log import AppendOrigin
from dualwrite.broker_emulator.log.record_batch import build_batch, iter_records
from dualwrite.broker_emulator.topic_partition import TopicPartition
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdManager
from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

if TYPE_CHECKING:
    from dualwrite.broker_emulator.server import Connection


class Node:
    """One broker of the cluster."""

    def __init__(self, node_id: int, cluster: Cluster, host: str, port: int) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.host = host
        self.port = port
        self.connections: set[Connection] = set()
        self.groups = GroupCoordinator(cluster)
        self.add_partitions_to_txn = AddPartitionsToTxnManager(node_id, cluster)
        self.transactions = TransactionCoordinator(
            node_id=node_id,
            config=cluster.config,
            clock=cluster.clock,
            log=_TransactionStateLog(node_id, cluster),
            producer_ids=ProducerIdManager(cluster.producer_id_blocks),
            markers=_ClusterMarkers(cluster),
            pause_points=cluster.pause_points,
        )

    def lead(self, partition: Partition) -> None:
        """Become the coordinator of what an internal partition holds; nothing to do for any other partition."""
        if partition.topic.name == TRANSACTION_STATE_TOPIC:
            self.transactions.load_partition(partition.index, partition.log.leader_epoch)
        elif partition.topic.name == OFFSETS_TOPIC:
            self.groups.load_partition(partition)

    def write_marker(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> ErrorCode:
        """End a producer's transaction on one partition, as WriteTxnMarkers asks its leader to.

        On `__consumer_offsets` the pending offsets are settled before this answers (KAFKA-17507).
        """
        partition = self.cluster.partition(*topic_partition)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        if partition.leader_id != self.node_id:
            return ErrorCode.not_leader_or_follower
        error = partition.log.append_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            transaction_version=transaction_version,
            now_ms=self.cluster.clock.now_ms(),
        )
        if error is ErrorCode.none and topic_partition.topic == OFFSETS_TOPIC:
            self.groups.complete_transaction(topic_partition.partition, producer_id, commit=commit)
        return error


class _TransactionStateLog:
    """`__transaction_state` for one node's coordinator: only what the node leads can be written."""

    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self._node_id = node_id
        self._cluster = cluster

    async def append(self, partition: int, key: bytes, value: bytes | None) -> ErrorCode:
        state = self._cluster.topics[TRANSACTION_STATE_TOPIC].partitions[partition]
        if state.leader_id != self._node_id:
            return ErrorCode.not_leader_or_follower
        now_ms = self._cluster.clock.now_ms()
        batch = build_batch([(key, value)], timestamp_ms=now_ms)
        return state.log.append(batch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR, transaction_version=0).error

    def replay(self, partition: int) -> Iterable[tuple[bytes, bytes | None]]:
        for batch in self._cluster.topics[TRANSACTION_STATE_TOPIC].partitions[partition].log.batches():
            for record in iter_records(batch):
                assert record.key is not None, "a record without a key in __transaction_state"
                yield record.key, record.value


class _ClusterMarkers:
    """Carries markers to whichever node leads the partition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def send(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> ErrorCode | None:
        leader = self._cluster.leader(*topic_partition)
        if leader is None:
            return None
        if self._cluster.faults.meets_markers:
            # the API files know this module, so that it can know them no sooner
            from dualwrite.broker_emulator.faults.markers import send_marker_with_faults

            return await send_marker_with_faults(
                leader,
                topic_partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                commit=commit,
                transaction_version=transaction_version,
            )
        return leader.write_marker(
            topic_partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            transaction_version=transaction_version,
        )
