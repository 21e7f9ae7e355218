"""The partitions of one producer's records that name none. Under the producer's lock, but for custom partitioners."""

from __future__ import annotations

from typing import Final

from dualwrite.client.records.accumulator import Batch
from dualwrite.partitioners import Partitioner, partitioning


class PartitionChoice:
    """By the setting `partitioner`; records without a key fill one batch after the other (KIP-480)."""

    def __init__(self, setting: str | Partitioner) -> None:
        self.by_key, self.by_record, self.empty_key_is_none = partitioning(setting)
        # by topic, what is or was filled last; read by `send()` itself, which needs no other answer for most records
        self.filling: Final[dict[str, Batch]] = {}

    def before_lock(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, partitions: int
    ) -> int | None:
        """A partitioner that sees every record is somebody else's code: it must not be called under the lock."""
        if self.by_record is None or partition is not None or partitions == 0:
            return partition
        return self.by_record(topic, key, value, partitions)

    def choose(self, topic: str, key: bytes | None, partitions: int) -> int:
        """The key's partition; without one the next, because the batch that is filled has no room or has been sent."""
        if key is not None and self.by_key is not None:
            return self.by_key(key, partitions)
        filled = self.filling.get(topic)
        return 0 if filled is None else (filled.partition + 1) % partitions
