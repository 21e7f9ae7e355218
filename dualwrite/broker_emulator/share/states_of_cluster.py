"""Access to the state of every share-partition, on the node that coordinates it: Kafka's persister."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.configs.effective import broker_value
from dualwrite.broker_emulator.share.state import StateError
from dualwrite.broker_emulator.share.state_coordinator import ShareCoordinator, StateShard, partition_of
from dualwrite.broker_emulator.topics.topics import SHARE_STATE_CONFIGS, SHARE_STATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualwrite.broker_emulator.config import BrokerConfig
    from dualwrite.broker_emulator.share.leader import ShareLeader
    from dualwrite.broker_emulator.share.state import StateKey
    from dualwrite.broker_emulator.topics.topics import Partition, Topic


class ShareNode(Protocol):
    """The part of a node that share groups use."""

    @property
    def share_coordinator(self) -> ShareCoordinator: ...

    @property
    def share_leader(self) -> ShareLeader: ...

    def take_over(self, partition: Partition) -> None: ...


class ShareCluster(Protocol):
    """The part of the cluster that the state of share groups uses."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def nodes(self) -> Mapping[int, ShareNode]: ...

    @property
    def topics(self) -> Mapping[str, Topic]: ...

    def create_topic(
        self, name: str, partitions: int, *, configs: Mapping[str, str | None] | None, replication_factor: int | None
    ) -> Topic:
        """Create a topic."""


class ShareStates:
    """The states of all share-partitions of the cluster."""

    def __init__(self, cluster: ShareCluster) -> None:
        self._cluster = cluster

    def shard(self, key: StateKey) -> StateShard:
        """Return the shard of a share-partition. Raises StateError (15) if no node can serve it now."""
        partition = self.partition(key)
        node = self._cluster.nodes.get(partition.leader_id)
        if node is None:
            raise StateError(ErrorCode.coordinator_not_available)
        return node.share_coordinator.shard(partition.index)

    def partition(self, key: StateKey) -> Partition:
        """Return the partition of `__share_group_state` that has the state."""
        partitions = self._partitions()
        return partitions[partition_of(key, len(partitions))]

    def _partitions(self) -> list[Partition]:
        """Return the partitions of `__share_group_state`; the first call creates the topic."""
        topic = self._cluster.topics.get(SHARE_STATE_TOPIC)
        if topic is None:
            nodes = self._cluster.nodes
            count = int(broker_value(self._cluster.config, "share.coordinator.state.topic.num.partitions") or 1)
            topic = self._cluster.create_topic(
                SHARE_STATE_TOPIC, count, configs=SHARE_STATE_CONFIGS, replication_factor=len(nodes)
            )
            for partition in topic.partitions:
                if partition.leader_id in nodes:
                    nodes[partition.leader_id].take_over(partition)
        return topic.partitions

    async def initialize(self, key: StateKey, state_epoch: int, start_offset: int) -> None:
        """Give a share-partition a new state, and make its leader forget the old one. Raises StateError."""
        shard = self.shard(key)
        shard.initialize(key, state_epoch, start_offset)
        self._forget(key)
        await shard.replicated()

    async def delete(self, key: StateKey) -> None:
        """Delete the state of a share-partition, and make its leader forget it. Raises StateError."""
        shard = self.shard(key)
        shard.forget(key)
        self._forget(key)
        await shard.replicated()

    def _forget(self, key: StateKey) -> None:
        for node in self._cluster.nodes.values():
            node.share_leader.forget(key)
