"""Committed and pending offsets of one `__consumer_offsets` partition.

Pure: rebuilt by replaying the partition's records.

Offsets committed inside a transaction are pending under their producer id until its marker is written: a COMMIT
marker makes them committed unless there are newer ones, an ABORT marker drops them (KIP-98; Kafka keeps them
by producer id, not by epoch). A tombstone removes both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dualwrite.broker_emulator.cluster.topic_partition import TopicPartition
from dualwrite.broker_emulator.groups.records import CommittedOffset, OffsetKey


class _Stored(NamedTuple):
    log_offset: int
    value: CommittedOffset


class OffsetTable:
    """The offsets of the groups that belong to one partition of `__consumer_offsets`."""

    __slots__ = ("_committed", "_open", "_pending")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, _Stored]] = {}
        self._pending: dict[int, dict[OffsetKey, _Stored]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        """By group and partition, the producers with a pending offset."""

    def commit(self, key: OffsetKey, value: CommittedOffset | None, *, log_offset: int) -> None:
        """Apply a record outside of transactions; None is a tombstone."""
        if value is None:
            self._remove(key)
        else:
            self._put(key, _Stored(log_offset, value))

    def commit_pending(self, producer_id: int, key: OffsetKey, value: CommittedOffset, *, log_offset: int) -> None:
        """Apply a record inside the producer's transaction."""
        self._pending.setdefault(producer_id, {})[key] = _Stored(log_offset, value)
        self._open.setdefault(key.group_id, {}).setdefault(_partition(key), set()).add(producer_id)

    def complete_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commit or drop the producer's pending offsets: its marker was written."""
        for key, stored in self._pending.pop(producer_id, {}).items():
            self._close(key, producer_id)
            if commit:
                self._put(key, stored)

    def _put(self, key: OffsetKey, stored: _Stored) -> None:
        """Store an offset unless the current one is later in the log: transactions complete in any order."""
        offsets = self._committed.setdefault(key.group_id, {})
        current = offsets.get(_partition(key))
        if current is None or stored.log_offset > current.log_offset:
            offsets[_partition(key)] = stored

    def _remove(self, key: OffsetKey) -> None:
        name = _partition(key)
        offsets = self._committed.get(key.group_id, {})
        offsets.pop(name, None)
        if not offsets:
            self._committed.pop(key.group_id, None)
        for producer_id in tuple(self._open.get(key.group_id, {}).get(name, ())):
            del self._pending[producer_id][key]
            self._close(key, producer_id)

    def _close(self, key: OffsetKey, producer_id: int) -> None:
        partitions = self._open[key.group_id]
        producers = partitions[_partition(key)]
        producers.discard(producer_id)
        if not producers:
            del partitions[_partition(key)]
        if not partitions:
            del self._open[key.group_id]

    def committed(self, group_id: str, topic_partition: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None."""
        stored = self._committed.get(group_id, {}).get(topic_partition)
        return None if stored is None else stored.value

    def is_unstable(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return whether any transaction has a pending offset for this partition of the group (KIP-447)."""
        return topic_partition in self._open.get(group_id, {})

    def has_pending(self, group_id: str) -> bool:
        """Return whether any transaction has a pending offset of the group."""
        return group_id in self._open

    def all_committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return every committed offset of the group."""
        return {name: stored.value for name, stored in self._committed.get(group_id, {}).items()}

    def partitions(self, group_id: str) -> Iterator[TopicPartition]:
        """Return every partition for which the group has an offset, committed or pending."""
        return iter({**dict.fromkeys(self._committed.get(group_id, {})), **dict.fromkeys(self._open.get(group_id, {}))})

    def groups(self) -> Iterator[str]:
        """Return every group that has an offset, committed or pending."""
        return iter({**dict.fromkeys(self._committed), **dict.fromkeys(self._open)})


def _partition(key: OffsetKey) -> TopicPartition:
    return TopicPartition(key.topic, key.partition)
