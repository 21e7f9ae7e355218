"""The needs of a transaction coordinator (`service.py`) from its node and its cluster, as protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.suspended_coroutine import Soon
from dualwrite.broker_emulator.topics.topics import TopicPartition


class StateLog(Protocol):
    """The coordinator's view of `__transaction_state`."""

    def append(self, partition: int, key: bytes, value: bytes | None) -> Soon[ErrorCode]:
        """Append one record (a tombstone when `value` is None) with acks=-1; NONE once it is replicated."""

    def replay(self, partition: int, apply: Callable[[bytes, bytes | None], None]) -> None:
        """Pass the key and value of every record of the partition to `apply`, in order."""


class ProducerIdSource(Protocol):
    """The source of fresh producer ids (`producer_ids.ProducerIdManager`)."""

    @property
    def first_epoch(self) -> int:
        """The epoch at which producers without a transactional id start."""

    def next_producer_id(self) -> int:
        """Return a producer id that was never used in the cluster before."""


class Marker(NamedTuple):
    """The end of a producer's transaction, as in WriteTxnMarkers; the fields are `PartitionLog.append_marker`'s."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class MarkerSender(Protocol):
    """Sends one transaction marker to the partition's leader."""

    def send(self, topic_partition: TopicPartition, marker: Marker) -> Soon[ErrorCode | None]:
        """Send the marker and return the leader's response to WriteTxnMarkers; None if the topic was deleted."""
