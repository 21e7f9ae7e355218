"""A record batch whose records are bytes already; it goes the way of one that is filled record by record."""

from __future__ import annotations

import struct
from typing import Final

from dualwrite.client.records.builder import Header, checksummed

HEADER_BYTES: Final = 61
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_COUNTS_FROM: Final = 12
_MAGIC: Final = 2
_NO_LEADER_EPOCH: Final = -1
_TRANSACTIONAL: Final = 0x10


class EncodedBatch:
    """A `RecordBatchBuilder` that is full from the start."""

    __slots__ = ("_first_timestamp_ms", "_identity", "_max_timestamp_ms", "_records", "_transactional", "record_count")

    def __init__(
        self,
        records: bytes | memoryview,
        *,
        record_count: int,
        first_timestamp_ms: int,
        max_timestamp_ms: int,
        transactional: bool,
    ) -> None:
        self.record_count = record_count
        self._records = records
        self._first_timestamp_ms = first_timestamp_ms
        self._max_timestamp_ms = max_timestamp_ms
        self._transactional = transactional
        self._identity = (-1, -1, -1)

    def append(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[Header], /
    ) -> None:
        """There is no room."""

    def size(self) -> int:
        """Bytes, before compression."""
        return HEADER_BYTES + len(self._records)

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, *_: bool) -> None:
        """Who sends it."""
        self._identity = producer_id, producer_epoch, base_sequence

    def build(self) -> bytearray:
        """The batch, with its checksum."""
        header = _HEADER.pack(
            0,
            self.size() - _LENGTH_COUNTS_FROM,
            _NO_LEADER_EPOCH,
            _MAGIC,
            0,
            _TRANSACTIONAL if self._transactional else 0,
            self.record_count - 1,
            self._first_timestamp_ms,
            self._max_timestamp_ms,
            *self._identity,
            self.record_count,
        )
        return checksummed(bytearray().join((header, self._records)))
