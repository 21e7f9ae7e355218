"""The records of one dual write, kept in order until the database is about to decide.

Nothing is sent before that. So a block that fails costs Kafka nothing, one without records never asks for the state
row, the row is locked for as short as can be, and a savepoint that is rolled back takes its records with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, RecordMetadata, TopicPartition
from dualwrite.client.records.record_future import BaseRecordFuture
from dualwrite.client.records.validation import (
    Serializers,
    check_topic,
    checked_headers,
    checked_partition,
    checked_timestamp_ms,
    encoded,
)
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.errors import IllegalStateError, TransactionTooLargeError

DEFAULT_MAX_BUFFERED_BYTES: Final = 33_554_432
"""As much as a producer buffers by default, so that one flush takes it."""

_RECORD_OVERHEAD_BYTES: Final = 100


class BufferedRecord:
    """One record of a dual write."""

    __slots__ = ("fate", "headers", "key", "partition", "timestamp_ms", "topic", "value")

    def __init__(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int,
    ) -> None:
        self.topic: Final = topic
        self.value: Final = value
        self.key: Final = key
        self.headers: Final = headers
        self.partition: Final = partition
        self.timestamp_ms: Final = timestamp_ms
        self.fate: BaseRecordFuture | None = None

    @property
    def metadata(self) -> RecordMetadata:
        """Where the record is stored. Raises IllegalStateError before the dual write has ended, or where it failed."""
        if self.fate is None:
            raise IllegalStateError(
                f"this record for {self.topic!r} has not been sent: a dual write sends when its block ends, "
                "so its place in Kafka is known only after that"
            )
        return self.fate.outcome()

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        in_headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + in_headers


class BufferedOffsets(NamedTuple):
    """Consumed positions that are committed with the dual write (KIP-447)."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    group_metadata: ConsumerGroupMetadata

    @property
    def size_bytes(self) -> int:
        return _RECORD_OVERHEAD_BYTES * (1 + len(self.offsets))


class _Savepoint(NamedTuple):
    name: str
    entries: int
    refused: int


class RecordBuffer:
    """What is to be sent, in the order in which it was handed over."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BUFFERED_BYTES, serializers: Serializers | None = None) -> None:
        self._max_bytes = max_bytes
        self._serializers = serializers
        self._entries: list[BufferedRecord | BufferedOffsets] = []
        self._bytes = 0
        self._closed = False
        self._savepoints: list[_Savepoint] = []
        self._refused: list[BaseException] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[BufferedRecord | BufferedOffsets]:
        return iter(self._entries)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BufferedRecord:
        """Check, serialize and keep one record.

        Raises InvalidRecordError, TransactionTooLargeError, IllegalStateError.
        """
        self._assert_open()
        check_topic(topic)
        header_list = [] if headers is None else checked_headers(headers)
        if self._serializers is not None:
            key, value = self._serializers.apply(topic, key, value, header_list)
        record = BufferedRecord(
            topic,
            encoded("value", value),
            encoded("key", key),
            header_list,
            None if partition is None else checked_partition(partition),
            int(time.time() * 1000) if timestamp_ms is None else checked_timestamp_ms(timestamp_ms),
        )
        self._keep(record)
        return record

    def send_offsets(self, offsets: Mapping[Any, Any] | Iterable[Any], group_metadata: Any) -> None:
        """Check and keep consumed positions; the arguments are those of `Producer.send_offsets_to_transaction`."""
        self._assert_open()
        group = group_of(group_metadata)
        positions = positions_of(offsets)
        if positions:
            self._keep(BufferedOffsets(positions, group))

    def _keep(self, entry: BufferedRecord | BufferedOffsets) -> None:
        size = entry.size_bytes
        if self._bytes + size > self._max_bytes:
            raise TransactionTooLargeError(
                f"this dual write holds {len(self._entries)} records of about {self._bytes} bytes, and one of {size} "
                f"more would pass max_buffered_bytes={self._max_bytes}; it was not taken, and neither side is "
                "changed: write less in one block, or raise the limit"
            )
        self._entries.append(entry)
        self._bytes += size

    @property
    def is_half_full(self) -> bool:
        """Whether half of `max_buffered_bytes` is used."""
        return self._bytes * 2 >= self._max_bytes

    def close(self) -> None:
        """Take no more: the decision is being made."""
        self._closed = True

    def _assert_open(self) -> None:
        if self._closed:
            raise IllegalStateError(
                "this dual write has ended, so nothing more was sent: send inside the `with` block that it belongs to; "
                "hooks inside the database commit come too late"
            )

    def refuse(self, error: BaseException) -> None:
        """Something that belongs in here was refused with `error`; that stands until a savepoint takes it back."""
        self._refused.append(error)

    @property
    def refused(self) -> BaseException | None:
        """Why not everything is in here that was sent; None where it is."""
        return self._refused[0] if self._refused else None

    # ---- savepoints -----------------------------------------------------------------------------------------

    def savepoint(self, name: str) -> None:
        """The database transaction has set a savepoint."""
        self._savepoints.append(_Savepoint(name, len(self._entries), len(self._refused)))

    def release_savepoint(self, name: str) -> None:
        """What came after the savepoint belongs to what is around it; savepoints inside it end with it."""
        del self._savepoints[self._newest_savepoint(name) or 0 :]

    def roll_back_to_savepoint(self, name: str) -> None:
        """What came after the savepoint was undone in the database, and so are its records. It stands on, as in SQL.

        One that is not known was set before this buffer began, so that everything in here came after it.
        """
        index = self._newest_savepoint(name)
        kept = _Savepoint(name, 0, 0) if index is None else self._savepoints[index]
        self._bytes -= sum(entry.size_bytes for entry in self._entries[kept.entries :])
        del self._entries[kept.entries :]
        del self._refused[kept.refused :]
        del self._savepoints[0 if index is None else index + 1 :]

    def _newest_savepoint(self, name: str) -> int | None:
        return next((i for i in reversed(range(len(self._savepoints))) if self._savepoints[i].name == name), None)
