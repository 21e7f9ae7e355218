"""One broker: the addresses of its listeners, its two coordinators, and their access to the cluster's partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Timer
from dualwrite.broker_emulator.cluster.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode, NodeGoneError
from dualwrite.broker_emulator.cluster.counters import NodeCounters
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.groups.coordinator import GroupCoordinator
from dualwrite.broker_emulator.log.reading import UnreadableRecordError, replay
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import BatchHeader
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.quotas.enforcement import NodeQuotas
from dualwrite.broker_emulator.security.listener import Endpoint
from dualwrite.broker_emulator.suspended_coroutine import Soon
from dualwrite.broker_emulator.topics.replication import lacks_replicas, wait_until_replicated
from dualwrite.broker_emulator.topics.topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Partition,
    TopicPartition,
)
from dualwrite.broker_emulator.transactions.ports import Marker
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdManager
from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

if TYPE_CHECKING:
    from dualwrite.broker_emulator.messages.call import ClientConnection
    from dualwrite.broker_emulator.share.leader import ShareLeader
    from dualwrite.broker_emulator.share.state_coordinator import ShareCoordinator


logger = logging.getLogger(__name__)

T = TypeVar("T")


SendMarker = Callable[[ClusterNode, TopicPartition, Marker], Soon[ErrorCode]]
"""Sends a marker to the leader of its partition."""


class Node:
    """One broker from start to end. A restarted node is a new object, so that it remembers nothing."""

    def __init__(
        self, node_id: int, cluster: Cluster, endpoints: Mapping[str, Endpoint], send_with_faults: SendMarker
    ) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.endpoints = endpoints  # the addresses that clients connect to, by listener
        self.is_alive = True
        self.servers: list[asyncio.AbstractServer] = []  # set by the emulator once the node listens
        self.timers: list[Timer] = []
        self.connections: set[ClientConnection] = set()
        self.counters = NodeCounters()
        self.quotas = NodeQuotas(cluster.quotas, cluster.clock, cluster.config)
        self.groups = GroupCoordinator(cluster)
        self.add_partitions_to_txn = AddPartitionsToTxnManager(node_id, cluster)
        self.transactions = TransactionCoordinator(
            node_id=node_id,
            config=self.config,
            clock=cluster.clock,
            log=_TransactionStateLog(node_id, cluster),
            producer_ids=ProducerIdManager(cluster.producer_id_blocks),
            markers=_ClusterMarkers(cluster, send_with_faults),
            pause_points=cluster.pause_points,
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def config(self) -> BrokerConfig:
        """The settings of this node, including those altered for it alone."""
        return self.cluster.config_of(self.node_id)

    @cached_property
    def share_coordinator(self) -> ShareCoordinator:
        """The coordinator of share groups' state, for the partitions of `__share_group_state` that the node leads."""
        # imported on first use: many clusters have no share groups, and start faster without them
        from dualwrite.broker_emulator.share.state_coordinator import ShareCoordinator

        return ShareCoordinator(self.cluster)

    @cached_property
    def share_leader(self) -> ShareLeader:
        """The records in flight of share groups, in the partitions that the node leads."""
        from dualwrite.broker_emulator.share.leader import ShareLeader

        return ShareLeader(self.cluster)

    # life and death

    def crash(self) -> None:
        """Die at once, as by SIGKILL: requests in progress are never finished; other nodes take over its partitions.

        Must run in the emulator's loop, even from a request that this node serves. No effect on a dead node.
        """
        if self.is_alive:
            self.end()
            self.cluster.changes.make_at_once(self.cluster.elections.replacement(self))

    async def stop(self) -> None:
        """Shut down in order: other nodes take over its partitions first; requests that wait for these get an error."""
        if not self.is_alive:
            return
        changes = self.cluster.changes
        async with changes:
            await changes.make(self.cluster.elections.replacement(self))
        await asyncio.sleep(0)  # the woken requests send their responses
        await asyncio.sleep(0)
        self.crash()  # other nodes also take over partitions that it has come to lead meanwhile

    def end(self) -> None:
        """Stop serving and forget everything, without handing over to other nodes."""
        self.is_alive = False
        for server in self.servers:
            server.close()
        for timer in self.timers:
            timer.cancel()
        for connection in list(self.connections):
            connection.kill()
        self.transactions.halt()
        self.groups.halt()
        if "share_leader" in vars(self):
            self.share_leader.halt()
        for task in self._tasks:
            task.cancel()

    def disconnected(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended, and the state that lasts only as long as it does."""
        self.connections.discard(connection)
        if self.is_alive and "share_leader" in vars(self):
            self._start(self.share_leader.disconnected(connection))

    async def run_for_peer(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` for another broker, to the end even if that broker dies. Raises NodeGoneError if this node dies."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise NodeGoneError(f"node {self.node_id} died") from None

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # leadership

    def lead(self, partition: Partition) -> None:
        """Become leader, and coordinator if the partition is internal. A test can hold the loading at a pause point.

        Raises UnreadableRecordError if a record of the partition cannot be read; the node then does not coordinate it.
        """
        coordinator = self._coordinator_on(partition)
        if coordinator is None:
            return
        if self.cluster.pause_points.active:
            coordinator.begin_loading(partition.index)
            self._start(self._load(partition, partition.log.leader_epoch))
        else:
            self._load_now(partition)

    async def _load(self, partition: Partition, leader_epoch: int) -> None:
        await self.cluster.pause_points.reach(
            PausePoint.BEFORE_LOAD, node_id=self.node_id, leader_epoch=leader_epoch, **partition.name._asdict()
        )
        if partition.is_led_by(self.node_id, leader_epoch):
            try:
                self._load_now(partition)
            except UnreadableRecordError as error:
                logger.error("%s", error)

    def _load_now(self, partition: Partition) -> None:
        if partition.topic.name == TRANSACTION_STATE_TOPIC:
            self.transactions.load_partition(partition.index, partition.log.leader_epoch)
        elif partition.topic.name == SHARE_STATE_TOPIC:
            self.share_coordinator.load_partition(partition)
        else:
            self.groups.load_partition(partition)

    def take_over(self, partition: Partition) -> None:
        """Become leader while the cluster runs; a coordinator whose log cannot be read stays in its loading state."""
        try:
            self.lead(partition)
        except UnreadableRecordError as error:
            logger.error("%s", error)
            coordinator = self._coordinator_on(partition)
            if coordinator is not None:
                coordinator.begin_loading(partition.index)

    def resign(self, partition: Partition) -> None:
        """Cease to be leader, and coordinator if the partition is internal; the coordinator forgets its state."""
        coordinator = self._coordinator_on(partition)
        if coordinator is not None:
            coordinator.unload_partition(partition.index)
        if "share_leader" in vars(self):
            self.share_leader.resign(partition)

    def _coordinator_on(
        self, partition: Partition
    ) -> TransactionCoordinator | GroupCoordinator | ShareCoordinator | None:
        if partition.topic.name == TRANSACTION_STATE_TOPIC:
            return self.transactions
        if partition.topic.name == SHARE_STATE_TOPIC:
            return self.share_coordinator
        return self.groups if partition.topic.name == OFFSETS_TOPIC else None

    def write_marker(self, topic_partition: TopicPartition, marker: Marker) -> Soon[ErrorCode]:
        """Write a transaction marker to one partition, as its leader does for WriteTxnMarkers.

        The result arrives once the marker is replicated. On `__consumer_offsets`, pending offsets are committed or
        dropped before that (KAFKA-17507).
        """
        partition = self.cluster.partition(*topic_partition)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        if partition.leader_id != self.node_id:
            return ErrorCode.not_leader_or_follower
        log = partition.log
        error = log.append_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            commit=marker.commit,
            transaction_version=marker.transaction_version,
            now_ms=self.cluster.clock.now_ms(),
        )
        if error is not NO_ERROR:
            return error
        if not log.is_replicated:
            return self._complete_once_replicated(partition, marker, log.log_end_offset, log.leader_epoch)
        self._complete_offsets(partition, marker)
        return NO_ERROR

    async def _complete_once_replicated(
        self, partition: Partition, marker: Marker, end_offset: int, leader_epoch: int
    ) -> ErrorCode:
        error = await wait_until_replicated(partition, end_offset, leader_epoch)
        if error is NO_ERROR:
            self._complete_offsets(partition, marker)
        return error

    def _complete_offsets(self, partition: Partition, marker: Marker) -> None:
        """Commit or drop the offsets of a transaction if the partition is one of `__consumer_offsets`."""
        if partition.topic.name == OFFSETS_TOPIC:
            self.groups.complete_transaction(partition.index, marker.producer_id, commit=marker.commit)


class _TransactionStateLog:
    """`__transaction_state` for one node's coordinator, which can write only to partitions that the node leads."""

    def __init__(self, node_id: int, cluster: Cluster) -> None:
        self._node_id = node_id
        self._cluster = cluster

    def append(self, partition: int, key: bytes, value: bytes | None) -> Soon[ErrorCode]:
        state = self._cluster.topics[TRANSACTION_STATE_TOPIC].partitions[partition]
        if state.leader_id != self._node_id:
            return ErrorCode.not_leader_or_follower
        if lacks_replicas(state, self._cluster.nodes):
            return ErrorCode.not_enough_replicas
        log = state.log
        error = log.append_own(key, value, now_ms=self._cluster.clock.now_ms())
        if error is NO_ERROR and not log.is_replicated:
            return wait_until_replicated(state, log.log_end_offset, log.leader_epoch)
        return error

    def replay(self, partition: int, apply: Callable[[bytes, bytes | None], None]) -> None:
        log = self._cluster.topics[TRANSACTION_STATE_TOPIC].partitions[partition].log

        def apply_data(header: BatchHeader, record: Record) -> None:
            if not header.is_control and record.key is not None:
                apply(record.key, record.value)

        replay(log, apply_data)


class _ClusterMarkers:
    """Sends markers to the leaders of their partitions."""

    def __init__(self, cluster: Cluster, send_with_faults: SendMarker) -> None:
        self._cluster = cluster
        self._send_with_faults = send_with_faults

    def send(self, topic_partition: TopicPartition, marker: Marker) -> Soon[ErrorCode | None]:
        partition = self._cluster.partition(*topic_partition)
        if partition is None:
            return None
        leader = self._cluster.nodes.get(partition.leader_id)
        if leader is None:
            return ErrorCode.not_leader_or_follower
        if self._cluster.faults.meets_markers:
            return self._send_with_faults(leader, topic_partition, marker)
        return leader.write_marker(topic_partition, marker)
