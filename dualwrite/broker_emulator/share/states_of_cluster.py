"""Access to the state of every share-partition, from whichever node coordinates it: what Kafka calls the persister."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.share.state_coordinator import ShareCoordinator, StateError, StateShard, partition_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualwrite.broker_emulator.cluster.topics import Partition
    from dualwrite.broker_emulator.share.leader import ShareLeader
    from dualwrite.broker_emulator.share.state import StateKey


class ShareNode(Protocol):
    """A node as far as share groups need it."""

    @property
    def share_coordinator(self) -> ShareCoordinator: ...

    @property
    def share_leader(self) -> ShareLeader: ...


class ShareCluster(Protocol):
    """The cluster as far as the state of share groups needs it."""

    @property
    def nodes(self) -> Mapping[int, ShareNode]: ...

    def share_state_partitions(self) -> list[Partition]:
        """Return the partitions of `__share_group_state`, which is created at the first call."""


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
        partitions = self._cluster.share_state_partitions()
        return partitions[partition_of(key, len(partitions))]

    async def initialize(self, key: StateKey, state_epoch: int, start_offset: int) -> None:
        """Give a share-partition a new state, and let its leader forget the old one. Raises StateError."""
        shard = self.shard(key)
        shard.initialize(key, state_epoch, start_offset)
        self._forget(key)
        await shard.replicated()

    async def delete(self, key: StateKey) -> None:
        """Delete the state of a share-partition, and let its leader forget it. Raises StateError."""
        shard = self.shard(key)
        shard.forget(key)
        self._forget(key)
        await shard.replicated()

    def _forget(self, key: StateKey) -> None:
        for node in self._cluster.nodes.values():
            node.share_leader.forget(key)
