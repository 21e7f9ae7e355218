"""The arguments and results of `send`, `send_batch` and `send_offsets_to_transaction`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

RecordHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""The headers of a record as `send()` takes them; a str is sent as UTF-8."""


class TopicPartition(NamedTuple):
    """A partition of a topic. Any (topic, partition) tuple is accepted instead."""

    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """Where a record is stored. `timestamp_ms` is the broker's if the topic uses LogAppendTime, else the record's."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record for `send_batch()`, with the arguments of `send()`."""

    value: Any = None
    key: Any = None
    headers: RecordHeaders | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class ReadyRecord(NamedTuple):
    """A validated record, as bytes."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    timestamp_ms: int


class StoredRecords(NamedTuple):
    """Consecutive records: `record_count` of them from `offset` on (-1: the broker no longer knows the offset)."""

    topic: str
    partition: int
    offset: int
    record_count: int


class OffsetAndMetadata(NamedTuple):
    """A consumed position: `offset` is that of the next record to read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """The consumer group whose offsets these are (KIP-447).

    Consumers that assign partitions themselves need only `group_id`.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class NoMember(ConsumerGroupMetadata):
    """The metadata of a client's consumer that is no member of its group, from which Kafka would accept any offset."""
