"""What the log of a partition proves about a prepared transaction: decisions, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dualwrite.client.transactions.manifest import PartitionManifest


class PartitionEnd(Enum):
    """How a transaction ended in one partition, as consumers with read_committed see it."""

    COMMITTED = "its records are visible"
    ABORTED = "its records are stored, and never visible"
    GONE = "its records are not stored at these offsets any more: deleted, compacted, lost, or the topic is another"


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """How a transaction ended in each partition of its manifest."""

    by_partition: Mapping[PartitionManifest, PartitionEnd]

    @property
    def committed(self) -> bool:
        """Whether it is proven to be committed in every partition. False if it has none, which proves nothing."""
        ends = self.by_partition.values()
        return bool(ends) and all(end is PartitionEnd.COMMITTED for end in ends)

    @property
    def aborted(self) -> tuple[PartitionManifest, ...]:
        """The partitions in which it was aborted: its records there can be read, and published again."""
        return self._those(PartitionEnd.ABORTED)

    @property
    def gone(self) -> tuple[PartitionManifest, ...]:
        """The partitions in which nothing is left to tell the end."""
        return self._those(PartitionEnd.GONE)

    def _those(self, wanted: PartitionEnd) -> tuple[PartitionManifest, ...]:
        return tuple(partition for partition, end in self.by_partition.items() if end is wanted)
