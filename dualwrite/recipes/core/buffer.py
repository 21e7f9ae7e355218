"""The buffer of one dual write's records, which are sent in order right before the database decides.

Nothing is sent earlier. So a failing block costs Kafka nothing, a block without records never locks the state row, the
row is locked as briefly as possible, and rolling back to a savepoint drops the records that were sent after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dualwrite.client.records.record import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    RecordHeaders,
    RecordMetadata,
    TopicPartition,
)
from dualwrite.client.records.send_arguments import (
    Serializers,
    checked_headers,
    checked_partition,
    checked_timestamp_ms,
    checked_topic,
    encoded,
)
from dualwrite.client.records.traces import RecordTracer
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.errors import IllegalStateError, TransactionTooLargeError
from dualwrite.recipes.core.settings import DEFAULT_MAX_BUFFERED_BYTES

if TYPE_CHECKING:
    from dualwrite.client.records.record_future import BaseRecordFuture

_RECORD_OVERHEAD_BYTES: Final = 100


class BufferedRecord:
    """One record of a dual write."""

    __slots__ = ("fate", "headers", "key", "partition", "size_bytes", "timestamp_ms", "topic", "value")

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
        self.partition = partition
        self.timestamp_ms: Final = timestamp_ms
        self.fate: BaseRecordFuture | None = None
        in_headers = sum(len(name) + len(content or b"") for name, content in headers) if headers else 0
        self.size_bytes: Final = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + in_headers
        """The approximate size in memory."""

    @property
    def metadata(self) -> RecordMetadata:
        """The record's partition and offset. Raises IllegalStateError before the block has ended, or if it failed."""
        if self.fate is None:
            raise IllegalStateError(
                f"this record for {self.topic!r} has not been sent: a dual write sends its records at the end of the "
                "block, so the offset is known only after that"
            )
        return self.fate.outcome()


class BufferedOffsets(NamedTuple):
    """Consumer offsets that are committed with the dual write (KIP-447)."""

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
    """Records and offsets to send, in the order in which the block sent them."""

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        serializers: Serializers | None = None,
        tracer: RecordTracer | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._serializers = serializers
        self.tracer: Final = tracer
        self._entries: list[BufferedRecord | BufferedOffsets] = []
        self._takes_offsets = False  # whether there may be offsets among the entries
        self._bytes = 0
        self.is_closed = False
        """Whether records are refused, because the decision is being made."""
        self.savepoints: list[_Savepoint] = []
        """The savepoints that are set, the outermost first."""
        self._refused: list[BaseException] = []
        self.refused: BaseException | None = None
        """The error of the first refused record, None if none was."""
        self.rolled_back_beyond = False
        """Whether there was a rollback to a savepoint from before this buffer began."""
        self.unwatch: Callable[[], None] | None = None
        """Lets go of the caller's connection, if the block's beginning is interrupted; None once it has begun."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[BufferedRecord | BufferedOffsets]:
        return iter(self._entries)

    @property
    def records(self) -> list[BufferedRecord]:
        entries: list[Any] = self._entries
        return [entry for entry in entries if isinstance(entry, BufferedRecord)] if self._takes_offsets else [*entries]

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: RecordHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BufferedRecord:
        """Check and buffer one record. Raises InvalidRecordError, TransactionTooLargeError, IllegalStateError."""
        if self.is_closed:
            self._assert_open()
        topic = checked_topic(topic)
        header_list = [] if headers is None else checked_headers(headers)
        if self._serializers is not None and self._serializers.any:
            key, value = self._serializers.apply(topic, key, value, header_list)
        value_bytes = value if type(value) is bytes else encoded("value", value)
        key_bytes = None if key is None else encoded("key", key)
        if partition is not None:
            partition = checked_partition(partition)
        timestamp_ms = int(time.time() * 1000) if timestamp_ms is None else checked_timestamp_ms(timestamp_ms)
        if self.tracer is not None:
            self.tracer.create(topic, key_bytes, value_bytes, partition, header_list)
        record = BufferedRecord(topic, value_bytes, key_bytes, header_list, partition, timestamp_ms)
        self._keep(record)
        return record

    def send_offsets(self, offsets: Mapping[Any, Any] | Iterable[Any], group_metadata: Any) -> None:
        """Check and buffer consumer offsets; the arguments are those of `Producer.send_offsets_to_transaction`."""
        self._assert_open()
        group = group_of(group_metadata)
        positions = positions_of(offsets)
        if positions:
            self._takes_offsets = True
            self._keep(BufferedOffsets(positions, group))

    def _keep(self, entry: BufferedRecord | BufferedOffsets) -> None:
        size = entry.size_bytes
        if self._bytes + size > self._max_bytes:
            raise TransactionTooLargeError(
                f"this dual write holds {len(self._entries)} records of about {self._bytes} bytes, and another {size} "
                f"bytes would exceed max_buffered_bytes={self._max_bytes}; the record was refused, and neither "
                "database nor Kafka is changed: send less in one block, or raise the limit"
            )
        if self.is_closed:  # since `send` began
            self._assert_open()
        self._entries.append(entry)
        self._bytes += size

    @property
    def has_offsets(self) -> bool:
        return self._takes_offsets and any(isinstance(entry, BufferedOffsets) for entry in self._entries)

    def close(self) -> None:
        """Refuse further records: the decision is being made."""
        self.is_closed = True

    def _assert_open(self) -> None:
        if self.is_closed:
            raise IllegalStateError(
                "this dual write has ended, so the record was not sent: send inside the `with` block; hooks that run "
                "inside the database commit are too late"
            )

    def refuse(self, error: BaseException) -> None:
        """Note that a record was refused with `error`; this stands until it is rolled back to an earlier savepoint."""
        self._refused.append(error)
        self.refused = self._refused[0]

    # ---- savepoints -----------------------------------------------------------------------------------------

    def savepoint(self, name: str) -> None:
        self.savepoints.append(_Savepoint(name, len(self._entries), len(self._refused)))

    def knows_savepoint(self, name: str) -> bool:
        return self._newest_savepoint(name) is not None

    def release_savepoint(self, name: str) -> None:
        """Merge the records after the savepoint into the surrounding ones; savepoints inside it end too."""
        del self.savepoints[self._newest_savepoint(name) or 0 :]

    def roll_back_to_savepoint(self, name: str) -> None:
        """Drop the records sent after the savepoint, whose changes the database undid. It remains set, as in SQL.

        An unknown savepoint was set before this buffer began, so all records came after it.
        """
        index = self._newest_savepoint(name)
        self.rolled_back_beyond |= index is None
        kept = _Savepoint(name, 0, 0) if index is None else self.savepoints[index]
        self._bytes -= sum(entry.size_bytes for entry in self._entries[kept.entries :])
        del self._entries[kept.entries :]
        del self._refused[kept.refused :]
        self.refused = self._refused[0] if self._refused else None
        del self.savepoints[0 if index is None else index + 1 :]

    def _newest_savepoint(self, name: str) -> int | None:
        return next((i for i in reversed(range(len(self.savepoints))) if self.savepoints[i].name == name), None)
