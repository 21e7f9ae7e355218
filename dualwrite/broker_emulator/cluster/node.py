"""One broker: the addresses of its listeners, its two coordinators, and how they reach the cluster's partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Timer
from dualwrite.broker_emulator.cluster.cluster import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Cluster,
    NodeGoneError,
    Partition,
)
from dualwrite.broker_emulator.cluster.replication import wait_until_replicated
from dualwrite.broker_emulator.cluster.topic_partition import TopicPartition
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.groups.coordinator import GroupCoordinator
from dualwrite.broker_emulator.log.record_batch import iter_records
from dualwrite.broker_emulator.metrics.counters import NodeCounters
from dualwrite.broker_emulator.no_error import NO_ERROR
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.quotas.enforcement import NodeQuotas
from dualwrite.broker_emulator.security.listener import Endpoint
from dualwrite.broker_emulator.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdManager
from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.registry import Served
    from dualwrite.broker_emulator.net.server import Connection


T = TypeVar("T")


class Node:
    """One life of one broker: a node that starts again is a new object, so that nothing is left of what it knew."""

    def __init__(self, node_id: int, cluster: Cluster, endpoints: Mapping[str, Endpoint]) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.endpoints = endpoints  # what clients are told, by the name of the listener that they came over
        self.is_alive = True
        self.servers: list[asyncio.AbstractServer] = []  # from the emulator, once it listens
        self.timers: list[Timer] = []
        self.connections: set[Connection] = set()
        self.counters = NodeCounters()
        self.served: dict[tuple[int, int], Served] = {}
        """What was asked for so far, by API key and version; no setting that says what is served changes in a life."""
        self.quotas = NodeQuotas(cluster.quotas, cluster.clock, cluster.config)
        self.groups = GroupCoordinator(cluster)
        self.add_partitions_to_txn = AddPartitionsToTxnManager(node_id, cluster)
        self.transactions = TransactionCoordinator(
            node_id=node_id,
            config=self.config,
            clock=cluster.clock,
            log=_TransactionStateLog(node_id, cluster),
            producer_ids=ProducerIdManager(cluster.producer_id_blocks),
            markers=_ClusterMarkers(cluster),
            pause_points=cluster.pause_points,
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def config(self) -> BrokerConfig:
        """What this node goes by, with what was altered for it alone."""
        return self.cluster.config_of(self.node_id)

    # life and death

    def crash(self) -> None:
        """Die at once, as by SIGKILL: what is in work is never finished, and others lead what this node led.

        Must run in the emulator's loop; a request that is served by this very node may call it. Harmless when dead.
        """
        if self.is_alive:
            self.end()
            self.cluster.replace_leader(self)

    async def stop(self) -> None:
        """Leave the cluster in order: others take over first, whoever waits for this node's partitions is told so."""
        if not self.is_alive:
            return
        self.cluster.replace_leader(self)
        await asyncio.sleep(0)  # those who were woken answer
        await asyncio.sleep(0)
        self.end()

    def end(self) -> None:
        """Stop serving and forget everything, without a word to the others."""
        self.is_alive = False
        for server in self.servers:
            server.close()
        for timer in self.timers:
            timer.cancel()
        for connection in list(self.connections):
            connection.kill()
        self.transactions.halt()
        self.groups.halt()
        for task in self._tasks:
            task.cancel()

    async def answer(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` for another broker: it goes on when that one dies. Raises NodeGoneError when this one does."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if not task.cancelled() or (asking is not None and asking.cancelling()):
                raise
            raise NodeGoneError(f"node {self.node_id} died") from None

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # leadership

    def lead(self, partition: Partition) -> None:
        """Become leader, and coordinator of what an internal partition holds. Loading can be held at a pause point."""
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
            self._load_now(partition)

    def _load_now(self, partition: Partition) -> None:
        if partition.topic.name == TRANSACTION_STATE_TOPIC:
            self.transactions.load_partition(partition.index, partition.log.leader_epoch)
        else:
            self.groups.load_partition(partition)

    def resign(self, partition: Partition) -> None:
        """Lead a partition no longer: what an internal one holds is forgotten."""
        coordinator = self._coordinator_on(partition)
        if coordinator is not None:
            coordinator.unload_partition(partition.index)

    def _coordinator_on(self, partition: Partition) -> TransactionCoordinator | GroupCoordinator | None:
        if partition.topic.name == TRANSACTION_STATE_TOPIC:
            return self.transactions
        return self.groups if partition.topic.name == OFFSETS_TOPIC else None

    async def write_marker(
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

        Answers when the marker is replicated. On `__consumer_offsets` the pending offsets are settled before this
        answers (KAFKA-17507).
        """
        partition = self.cluster.partition(*topic_partition)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        if partition.leader_id != self.node_id:
            return ErrorCode.not_leader_or_follower
        log = partition.log
        error = log.append_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            transaction_version=transaction_version,
            now_ms=self.cluster.clock.now_ms(),
        )
        if error is NO_ERROR and not log.is_replicated:
            error = await wait_until_replicated(partition, log.log_end_offset, log.leader_epoch)
        if error is NO_ERROR and topic_partition.topic == OFFSETS_TOPIC:
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
        log = state.log
        error = log.append_own(key, value, now_ms=self._cluster.clock.now_ms())
        if error is NO_ERROR and not log.is_replicated:
            return await wait_until_replicated(state, log.log_end_offset, log.leader_epoch)
        return error

    def replay(self, partition: int) -> Iterable[tuple[bytes, bytes | None]]:
        log = self._cluster.topics[TRANSACTION_STATE_TOPIC].partitions[partition].log
        for batch in log.batches() if log.log_end_offset else ():
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
        partition = self._cluster.partition(*topic_partition)
        if partition is None:
            return None
        leader = self._cluster.nodes.get(partition.leader_id)
        if leader is None:
            return ErrorCode.not_leader_or_follower
        if self._cluster.faults.meets_markers:
            # the API files know this module, so that it can know them no sooner
            from dualwrite.broker_emulator.faults.markers import send_marker_with_faults

            await asyncio.sleep(0)  # whatever befalls the markers, the decision is answered first
            return await send_marker_with_faults(
                leader,
                topic_partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                commit=commit,
                transaction_version=transaction_version,
            )
        return await leader.write_marker(
            topic_partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            transaction_version=transaction_version,
        )
