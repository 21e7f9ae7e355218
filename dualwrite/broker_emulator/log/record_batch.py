"""Record batches of magic 2: the 61-byte header, small batches of the broker's own, and end-transaction markers (KIP-98).

Client batches are never unpacked here: their header is read, their CRC checked, their bytes kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class CorruptRecordError(ValueError):
    """The bytes are no sequence of whole, valid batches (error code 2, CORRUPT_MESSAGE)."""


class UnsupportedCompressionError(ValueError):
    """The records of this batch are compressed in a way that only clients understand."""


class BatchHeader(NamedTuple):
    """The header of one record batch, in the order of the wire."""

    base_offset: int
    length: int
    """Bytes that follow this field; the whole batch has 12 more (see `size_bytes`)."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def is_transactional(self) -> bool: ...

    @property
    def is_control(self) -> bool: ...

    @property
    def compression(self) -> int: ...


class RecordHeader(NamedTuple):
    """One header of a record."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record of a batch; `timestamp` in milliseconds since the Unix epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...] = ()


def parse_header(buffer: bytes | memoryview, offset: int = 0) -> BatchHeader:
    """Read the header at `offset`. Raises CorruptRecordError when fewer than 61 bytes are left or magic is not 2."""
    raise NotImplementedError


def split_batches(records: bytes | memoryview) -> list[tuple[BatchHeader, memoryview]]:
    """Cut `records` into its batches. Raises CorruptRecordError on torn bytes, a CRC that does not match, magic != 2."""
    raise NotImplementedError


def build_batch(
    records: Sequence[tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One uncompressed batch of (key, value) pairs at base offset 0."""
    raise NotImplementedError


def iter_records(batch: bytes | memoryview) -> Iterator[Record]:
    """The records of one batch. Raises UnsupportedCompressionError for compressed ones other than gzip."""
    raise NotImplementedError


def build_end_txn_marker(
    *, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, timestamp_ms: int
) -> bytes:
    """The control batch that ends a transaction on one partition (3.3)."""
    raise NotImplementedError
