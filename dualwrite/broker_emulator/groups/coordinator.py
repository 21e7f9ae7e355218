"""The group coordinator of one node: the groups of every `__consumer_offsets` partition that the node leads."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.records import CommittedOffset
from dualwrite.broker_emulator.slices import Steps
from dualwrite.broker_emulator.topics.topics import TopicPartition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.groups.shard import GroupShard
    from dualwrite.broker_emulator.share.state import ShareClusterView
    from dualwrite.broker_emulator.topics.topics import Partition


class GroupCoordinator:
    """Finds the shard of a group and keeps the shards in step with the partitions that the node leads."""

    def __init__(self, cluster: ShareClusterView) -> None:
        self._cluster = cluster
        self._shards: dict[int, GroupShard] = {}
        self._unused: dict[int, Partition] = {}
        """Led partitions without records: their shard is created with the first request for a group."""
        self._loading: set[int] = set()

    # leadership

    def begin_loading(self, index: int) -> None:
        """Become leader of a partition that will be loaded later: requests for its groups get error 14 until then."""
        self._loading.add(index)

    def load_partition(self, partition: Partition) -> None:
        """Become leader of a partition: rebuild its groups and offsets from its records."""
        self._loading.discard(partition.index)
        if partition.log.log_end_offset == 0:
            self._unused[partition.index] = partition
        else:
            self._open(partition)

    def _open(self, partition: Partition) -> GroupShard:
        # imported on first use: many clusters have no groups, and start faster without them
        from dualwrite.broker_emulator.groups.shard import GroupShard

        shard = self._shards[partition.index] = GroupShard(self._cluster, partition)
        return shard

    def unload_partition(self, index: int) -> None:
        """Lose leadership: forget the partition's groups; waiting requests get NOT_COORDINATOR."""
        self._loading.discard(index)
        self._unused.pop(index, None)
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    def halt(self) -> None:
        """Cancel all timers without sending responses, as a node that dies."""
        self._unused.clear()
        for shard in self._shards.values():
            shard.halt()

    # finding groups

    def shard(self, group_id: str) -> GroupShard | ErrorCode:
        """Return the shard of a group; error 14 while its partition is loaded, 16 if another node leads it."""
        index = self._cluster.group_partition(group_id)
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        unused = self._unused.pop(index, None)
        if unused is not None:
            return self._open(unused)
        return ErrorCode.coordinator_load_in_progress if index in self._loading else ErrorCode.not_coordinator

    @property
    def is_loading(self) -> bool:
        """Whether some of the node's partitions are not loaded yet."""
        return bool(self._loading)

    def shards(self) -> Iterator[GroupShard]:
        """Return the shards of all partitions that are led here and have records."""
        return iter(list(self._shards.values()))

    # operations on many groups

    def complete_transaction(self, index: int, producer_id: int, *, commit: bool) -> None:
        """Commit or drop the pending offsets of a producer id whose marker was written to partition `index`."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.offsets.table.complete_transaction(producer_id, commit=commit)

    def expire(self) -> None:
        """Remove offsets and groups whose retention is over; called periodically."""
        for shard in self.shards():
            shard.offsets.expire()

    def forget_topics(self, topics: Collection[str]) -> Steps[None]:
        """Remove the offsets of all groups in deleted topics."""
        for shard in self.shards():
            yield from shard.forget_topics(topics)

    def value(
        self, topic_partition: TopicPartition, offset: int, leader_epoch: int, metadata: str | None
    ) -> CommittedOffset:
        """Return the value to store for a commit made now; brokers before 4.1 do not write topic ids."""
        topic = self._cluster.topics.get(topic_partition.topic)
        writes_id = topic is not None and self._cluster.config.behaviours.offsets_have_topic_ids
        topic_id = topic.topic_id if topic is not None and writes_id else None
        return CommittedOffset(offset, leader_epoch, metadata or "", self._cluster.clock.now_ms(), topic_id)
