"""Choose the partition of a record that names none. Called under the producer's lock, except custom partitioners."""

from __future__ import annotations

from typing import Final

from dualwrite.client.records.accumulator import Batch
from dualwrite.partitioners import Partitioner, partitioning


class PartitionChoice:
    """The setting `partitioner` of one producer. Records without a key fill one batch after the other (KIP-480)."""

    def __init__(self, setting: str | Partitioner) -> None:
        self.by_key, self.by_record, self.empty_key_is_none = partitioning(setting)
        # by topic, the batch that keyless records fill or filled last; for most records `send()` reads only this
        self.filling: Final[dict[str, Batch]] = {}

    def before_lock(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, partitions: int
    ) -> int | None:
        """Return the partition that a custom partitioner chooses, or `partition` as it is.

        A custom partitioner is the application's code, so it must not run under the lock.
        """
        if self.by_record is None or partition is not None or partitions == 0:
            return partition
        return self.by_record(topic, key, value, partitions)

    def choose(self, topic: str, key: bytes | None, partitions: int) -> int:
        """Return the key's partition; without a key, the one after the last batch's, which is full or sent."""
        if key is not None and self.by_key is not None:
            return self.by_key(key, partitions)
        filled = self.filling.get(topic)
        return 0 if filled is None else (filled.partition + 1) % partitions
