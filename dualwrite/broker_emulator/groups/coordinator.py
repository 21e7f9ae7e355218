"""The group coordinator of one node: commits and fetches offsets. Groups here have no members (yet).

A group is "simple": offsets are committed by whoever names the group. A commit that claims membership of a
generation is refused as Kafka refuses one to a group it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import Profile
from dualwrite.broker_emulator.groups.offset_records import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from dualwrite.broker_emulator.groups.offsets import OffsetTable
from dualwrite.broker_emulator.log.partition_log import AppendOrigin
from dualwrite.broker_emulator.log.record_batch import (
    Record,
    build_batch,
    iter_records,
    parse_end_txn_marker,
    parse_header,
)
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.topic_partition import TopicPartition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster import Cluster, Partition

APPEND_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
}
"""What a failed append to `__consumer_offsets` is called towards the client; anything else keeps its name (2.5)."""


class GroupCoordinator:
    """The groups whose `__consumer_offsets` partition this node leads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._led: dict[int, tuple[Partition, OffsetTable]] = {}
        self._loading: set[int] = set()

    # leadership

    def begin_loading(self, index: int) -> None:
        """Have become leader of a partition that will be loaded later: requests are answered 14 meanwhile."""
        self._loading.add(index)

    def load_partition(self, partition: Partition) -> None:
        """Become leader of a partition: rebuild its offsets from its records."""
        table = OffsetTable()
        for batch in partition.log.batches():
            _replay(table, batch)
        self._loading.discard(partition.index)
        self._led[partition.index] = (partition, table)

    def unload_partition(self, index: int) -> None:
        """Lose leadership: forget the partition's groups."""
        self._loading.discard(index)
        self._led.pop(index, None)

    def led_partition(self, group_id: str) -> Partition | None:
        """The partition that holds the group's offsets, where this node leads it."""
        led = self._led.get(self._cluster.group_partition(group_id))
        return None if led is None else led[0]

    def check(self, group_id: str, generation: int, member_id: str) -> ErrorCode:
        """Whether this node answers for the group (16 if not), and whether it takes commits of this member.

        A generation of a group without members is 22, a member of it 25.
        """
        if self.led_partition(group_id) is None:
            is_loading = self._cluster.group_partition(group_id) in self._loading
            return ErrorCode.coordinator_load_in_progress if is_loading else ErrorCode.not_coordinator
        if generation >= 0:
            return ErrorCode.illegal_generation
        if member_id != "":
            return ErrorCode.unknown_member_id
        return ErrorCode.none

    # offsets

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> ErrorCode:
        """Commit offsets outside of transactions. The group must have passed `check`."""
        partition, table = self._led[self._cluster.group_partition(group_id)]
        base_offset, error = self._append(partition, group_id, offsets, -1, -1, None, 0)
        if error is ErrorCode.none:
            for delta, (topic_partition, value) in enumerate(offsets.items()):
                table.commit(OffsetKey(group_id, *topic_partition), value, log_offset=base_offset + delta)
        return error

    def commit_in_transaction(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        producer_id: int,
        producer_epoch: int,
        guard: VerificationGuard | None,
        transaction_version: int,
    ) -> ErrorCode:
        """Make offsets pending under the producer id. The group must have passed `check`."""
        partition, table = self._led[self._cluster.group_partition(group_id)]
        base_offset, error = self._append(
            partition, group_id, offsets, producer_id, producer_epoch, guard, transaction_version
        )
        if error is ErrorCode.none:
            for delta, (topic_partition, value) in enumerate(offsets.items()):
                key = OffsetKey(group_id, *topic_partition)
                table.commit_pending(producer_id, key, value, log_offset=base_offset + delta)
        return error

    def complete_transaction(self, index: int, producer_id: int, *, commit: bool) -> None:
        """A marker was written to partition `index`: settle what is pending under the producer id."""
        led = self._led.get(index)
        if led is not None:
            led[1].complete_transaction(producer_id, commit=commit)

    def table(self, group_id: str) -> OffsetTable:
        """The offsets of the group. It must have passed `check`."""
        return self._led[self._cluster.group_partition(group_id)][1]

    def _append(
        self,
        partition: Partition,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer_id: int,
        producer_epoch: int,
        guard: VerificationGuard | None,
        transaction_version: int,
    ) -> tuple[int, ErrorCode]:
        if not offsets:
            return -1, ErrorCode.none
        now_ms = self._cluster.clock.now_ms()
        batch = build_batch(
            [(encode_key(OffsetKey(group_id, *name)), encode_value(value)) for name, value in offsets.items()],
            timestamp_ms=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        result = partition.log.append(
            batch,
            now_ms=now_ms,
            guard=guard,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=transaction_version,
        )
        return result.base_offset, APPEND_ERRORS.get(result.error, result.error)

    def value(
        self, topic_partition: TopicPartition, offset: int, leader_epoch: int, metadata: str | None
    ) -> CommittedOffset:
        """What is stored for a commit made now; brokers before 4.1 do not write topic ids."""
        topic = self._cluster.topics.get(topic_partition.topic)
        writes_id = topic is not None and self._cluster.config.profile is not Profile.KAFKA_3_9
        topic_id = topic.topic_id if topic is not None and writes_id else None
        return CommittedOffset(offset, leader_epoch, metadata or "", self._cluster.clock.now_ms(), topic_id)


def _replay(table: OffsetTable, batch: bytes) -> None:
    header = parse_header(batch)
    for record in iter_records(batch):
        if header.is_control:
            marker = parse_end_txn_marker(record)
            if marker is not None:
                table.complete_transaction(header.producer_id, commit=marker.commit)
        else:
            _replay_offset(table, record, header.producer_id if header.is_transactional else None)


def _replay_offset(table: OffsetTable, record: Record, producer_id: int | None) -> None:
    key = None if record.key is None else decode_key(record.key)
    if key is None:
        return
    value = None if record.value is None else decode_value(record.value)
    if producer_id is None:
        table.commit(key, value, log_offset=record.offset)
    else:
        table.commit_pending(producer_id, key, value, log_offset=record.offset)
