"""Committed and pending offsets of one `__consumer_offsets` partition.

Pure: rebuilt by replaying the partition's records.

Offsets committed inside a transaction are pending under their producer id until its marker is written: a COMMIT
marker makes them the committed ones where they are newer, an ABORT marker drops them (KIP-98; Kafka keeps them
by producer id, not by epoch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dualwrite.broker_emulator.groups.offset_records import CommittedOffset, OffsetKey
from dualwrite.broker_emulator.topic_partition import TopicPartition


class _Stored(NamedTuple):
    log_offset: int
    value: CommittedOffset | None  # None: a tombstone


class OffsetTable:
    """The offsets of the groups that belong to one partition of `__consumer_offsets`."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, _Stored]] = {}
        self._pending: dict[int, dict[OffsetKey, _Stored]] = {}

    def commit(self, key: OffsetKey, value: CommittedOffset | None, *, log_offset: int) -> None:
        """A record outside of transactions; None is a tombstone."""
        self._put(key, _Stored(log_offset, value))

    def commit_pending(
        self, producer_id: int, key: OffsetKey, value: CommittedOffset | None, *, log_offset: int
    ) -> None:
        """A record inside the producer's transaction."""
        self._pending.setdefault(producer_id, {})[key] = _Stored(log_offset, value)

    def complete_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The producer's marker was written. An older pending offset does not replace a newer committed one."""
        for key, stored in self._pending.pop(producer_id, {}).items():
            current = self._committed.get(key.group_id, {}).get(TopicPartition(key.topic, key.partition))
            if commit and (current is None or stored.log_offset > current.log_offset):
                self._put(key, stored)

    def _put(self, key: OffsetKey, stored: _Stored) -> None:
        self._committed.setdefault(key.group_id, {})[TopicPartition(key.topic, key.partition)] = stored

    def committed(self, group_id: str, topic_partition: TopicPartition) -> CommittedOffset | None:
        """The committed offset, or None."""
        stored = self._committed.get(group_id, {}).get(topic_partition)
        return None if stored is None else stored.value

    def is_unstable(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Whether any transaction has a pending offset for this partition of the group (KIP-447)."""
        key = OffsetKey(group_id, *topic_partition)
        return any(key in pending for pending in self._pending.values())

    def partitions(self, group_id: str) -> Iterator[TopicPartition]:
        """Every partition that the group has an offset for, committed or pending."""
        known = dict.fromkeys(tp for tp, stored in self._committed.get(group_id, {}).items() if stored.value)
        for pending in self._pending.values():
            known.update(dict.fromkeys(TopicPartition(k.topic, k.partition) for k in pending if k.group_id == group_id))
        return iter(known)
