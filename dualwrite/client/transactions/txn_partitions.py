"""Which partitions and groups the coordinator knows to be in the transaction, before transaction.version 2.

There a client says so before it writes (AddPartitionsToTxn, AddOffsetsToTxn); from version 2 on brokers do (KIP-890).
"""

from __future__ import annotations

from collections.abc import Collection

from dualwrite.client.records.record import TopicPartition


class Registration:
    """Of one transaction at a time; `clear()` begins the next."""

    def __init__(self) -> None:
        self.confirmed = False
        """Whether the coordinator has answered that something is in the transaction."""
        self._partitions: set[TopicPartition] = set()
        self._wanted: dict[TopicPartition, None] = {}
        self._groups: set[str] = set()

    def may_write(self, topic: str, partition: int) -> bool:
        """Whether this partition is in the transaction; if not, it is to be added."""
        wanted = TopicPartition(topic, partition)
        if wanted in self._partitions:
            return True
        self._wanted[wanted] = None
        return False

    @property
    def has_wanted(self) -> bool:
        """Whether anything is to be added."""
        return bool(self._wanted)

    @property
    def wanted(self) -> tuple[TopicPartition, ...]:
        """What is to be added."""
        return tuple(self._wanted)

    def add_partitions(self, added: Collection[TopicPartition]) -> None:
        """The coordinator has them."""
        self.confirmed = True
        self._partitions.update(added)
        for partition in added:
            self._wanted.pop(partition, None)

    def has_group(self, group_id: str) -> bool:
        """Whether the group's offsets are in the transaction."""
        return group_id in self._groups

    def add_group(self, group_id: str) -> None:
        """The coordinator has it."""
        self.confirmed = True
        self._groups.add(group_id)

    def clear(self) -> None:
        """The transaction is over."""
        if self._partitions or self._wanted or self._groups:
            self._partitions.clear()
            self._wanted.clear()
            self._groups.clear()
        self.confirmed = False
