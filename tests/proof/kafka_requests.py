"""Requests to a broker of the model beside the producer's own, and their responses; all of them hashable."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from dualwrite.broker_emulator.topics.topics import TopicPartition

TOPIC: Final = "orders"
TRANSACTIONAL_ID: Final = "payments"
GROUP_ID: Final = "billing"

OFFSETS: Final = TopicPartition("__consumer_offsets", 0)
"""The partition that stores the group's offsets."""


def topic_partition(partition: int) -> TopicPartition:
    """Return the name of a partition of the topic."""
    return TopicPartition(TOPIC, partition)


class Produce(NamedTuple):
    """Write one batch of records to a partition."""

    producer_id: int
    producer_epoch: int
    sequence: int
    records: tuple[bytes, ...]
    transaction_version: int
    partition: int = 0


class Produced(NamedTuple):
    """The response to Produce."""

    error_code: int
    base_offset: int = -1


class InFlight(NamedTuple):
    """Several batches that are on their way at once. The reply is the number of one of them, and its response."""

    requests: tuple[Produce, ...]


class Added(NamedTuple):
    """The response to AddPartitionsToTxn, for each of the partitions, and to AddOffsetsToTxn."""

    error_code: int


class CommitOffset(NamedTuple):
    """TxnOffsetCommit: store where the reader of one input stands, pending until the transaction's marker."""

    producer_id: int
    producer_epoch: int
    reader: str
    offset: int
    transaction_version: int


class OffsetCommitted(NamedTuple):
    """The response to `CommitOffset`."""

    error_code: int


class AskFeatures(NamedTuple):
    """ApiVersions."""


class Features(NamedTuple):
    """The response to `AskFeatures`: whether the cluster was upgraded."""

    is_upgraded: bool


class WriteMarker(NamedTuple):
    """WriteTxnMarkers for one partition, of a coordinator or of an operator."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


class EndOf(NamedTuple):
    """Read how readers with read_committed see the records of a pair at these offsets: the name of a `PartitionEnd`.

    Where an operator aborted only the first of them, the response is two `Piece`s.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    partition: int = 0


class Piece(NamedTuple):
    """A part of the records of a pair in a partition, and the name of its end."""

    first_offset: int
    last_offset: int
    record_count: int
    end: str


class RecordsOf(NamedTuple):
    """Read the records of a pair at these offsets."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    partition: int = 0


class RepairOf(NamedTuple):
    """Read whether records of an aborted pair, at these offsets, were published again by a committed transaction.

    `undecided` is open, and is going to be aborted.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    partition: int = 0
    undecided: str = ""


class Blocked(Enum):
    """The response of a broker that has to be asked again later."""

    BLOCKED = "ask again"


BLOCKED: Final = Blocked.BLOCKED
