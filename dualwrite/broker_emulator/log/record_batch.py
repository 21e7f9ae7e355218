"""Record batches of magic 2 (KIP-98): the 61-byte header, the broker's own small batches, end-transaction markers.

The records of client batches are checked (`record_walk.py`), but never decoded on the hot path: the header is parsed,
the CRC checked, the bytes stored. The CRC covers everything from the attributes on, so a broker can write base offset
and leader epoch into a batch without recomputing it (`stamp`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from crc32c import crc32c

from dualwrite.broker_emulator.log.compression import (
    GZIP,
    DecompressionError,
    ExpansionError,
    decompressed,
    decompressed_gzip,
    limit_for,
)
from dualwrite.broker_emulator.log.record import (
    NO_HEADERS,
    Record,
    decode_record,
    decode_varint,
    encode_again,
    encode_record,
)
from dualwrite.broker_emulator.slices import Steps

MAGIC = 2
HEADER_BYTES = 61
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 2147483647
"""Sequence numbers are int32 and never negative: after this one, they restart at 0."""
RECORDS_PER_STEP = 200
"""The number of records that are decoded or encoded before other tasks may have a turn."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP = struct.Struct(">qii")  # base offset, length, leader epoch: the fields before the magic
_AFTER_CRC = struct.Struct(">hiqqqhii")
_FRAME = struct.Struct(">qiibI")  # the same, then magic and CRC
_LENGTH_AT = 8
_LENGTH = struct.Struct(">i")
_MAGIC_AT = 16
_CHECKED_FROM = 21
_LENGTH_ENDS_AT = 12

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
"""Bits of a batch's attributes. Code on the path of every batch tests them itself, as a property would cost a call."""
_DELETE_HORIZON = 0x40
_NO_COMPRESSION = 0
_NO_LIMIT = 1 << 31

_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_ABORT = 0
_COMMIT = 1


class CorruptRecordError(ValueError):
    """The bytes are not a sequence of whole, valid batches of magic 2 (error code 2, CORRUPT_MESSAGE)."""


class OldMagicError(CorruptRecordError):
    """A message set of magic 0 or 1, which no Produce version since v3 may contain."""


class UnsupportedCompressionError(ValueError):
    """The broker cannot decompress the records of this batch; only clients can."""


class RecordTooLargeError(ValueError):
    """A record of a compressed batch has more bytes than `max.decompressed.message.bytes`."""


class BatchHeader(NamedTuple):
    """The header of one record batch, in the order of the wire."""

    base_offset: int
    length: int
    """Bytes after this field; the whole batch has 12 more (see `size_bytes`)."""
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
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.length + _LENGTH_ENDS_AT

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapped around after 2147483647; -1 for a batch without sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker instead of data."""
        return self.attributes & CONTROL != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the broker's append time, which is then the largest timestamp (KIP-32)."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may remove the batch's tombstones or marker; None until a run first found them (KIP-534).

        It is stored in place of the base timestamp.
        """
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK


class EndTxnMarker(NamedTuple):
    """The contents of a marker, which is the only record of its batch."""

    commit: bool
    coordinator_epoch: int


def parse_header(buffer: bytes | memoryview, offset: int = 0) -> BatchHeader:
    """Read the header at `offset`.

    Raises CorruptRecordError if fewer than 61 bytes are left or the magic is above 2, OldMagicError if it is below.
    """
    if len(buffer) - offset <= _MAGIC_AT:
        raise CorruptRecordError(f"{len(buffer) - offset} bytes at position {offset} are too few for a record batch")
    _check_magic(buffer[offset + _MAGIC_AT])
    if len(buffer) - offset < HEADER_BYTES:
        raise CorruptRecordError(f"{len(buffer) - offset} bytes at position {offset} are too few for a batch header")
    return BatchHeader._make(_HEADER.unpack_from(buffer, offset))


def _check_magic(magic: int) -> None:
    if magic < MAGIC:
        raise OldMagicError(f"record batches must have magic {MAGIC}, this one has {magic}")
    if magic > MAGIC:
        raise CorruptRecordError(f"unknown magic {magic}")


def split_batches(records: bytes | memoryview) -> list[tuple[BatchHeader, memoryview]]:
    """Split `records` into its batches.

    Raises CorruptRecordError for an incomplete batch, a CRC mismatch or a magic above 2, OldMagicError for one below.
    """
    view = memoryview(records)
    batches = []
    position = 0
    while position < len(view):
        header = parse_header(view, position)
        if header.length < HEADER_BYTES - _LENGTH_ENDS_AT:
            raise CorruptRecordError(f"a batch of length {header.length} cannot hold its own header")
        end = position + header.length + _LENGTH_ENDS_AT
        if end > len(view):
            raise CorruptRecordError(f"a batch of {header.size_bytes} bytes is cut off after {len(view) - position}")
        batch = view[position:end]
        if crc32c(batch[_CHECKED_FROM:]) != header.crc:
            raise CorruptRecordError(f"the CRC of the batch at position {position} does not match its contents")
        batches.append((header, batch))
        position = end
    return batches


def checked_batch(header: BatchHeader, batch: bytes | memoryview) -> memoryview:
    """Return the only batch of a client, after its header was read. Raises CorruptRecordError as `split_batches`."""
    view = memoryview(batch)
    if header.length + _LENGTH_ENDS_AT != len(batch):
        raise CorruptRecordError(f"a batch of {header.size_bytes} bytes has {len(batch)}")
    if crc32c(view[_CHECKED_FROM:]) != header.crc:
        raise CorruptRecordError("the CRC of the batch at position 0 does not match its contents")
    return view


def stamp(batch: bytes | memoryview, header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """Copy `batch` with the two fields that the leader sets; the CRC stays valid."""
    return _STAMP.pack(base_offset, header.length, leader_epoch) + batch[_MAGIC_AT:]


def with_append_time(header: BatchHeader, batch: memoryview, now_ms: int) -> tuple[BatchHeader, memoryview]:
    """Return a batch whose records have the broker's time, which only its header has; the CRC is recomputed."""
    header = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=now_ms)
    checked = _AFTER_CRC.pack(*header[5:]) + batch[HEADER_BYTES:]
    data = _frame(checked, header.base_offset, header.leader_epoch)
    return parse_header(data), memoryview(data)


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
    """Build an uncompressed batch of (key, value) pairs. Raises ValueError if there are none."""
    if not records:
        raise ValueError("a record batch needs at least one record")
    body = b"".join([encode_record(index, key, value) for index, (key, value) in enumerate(records)])
    attributes = (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    count = len(records)
    head = _AFTER_CRC.pack(
        attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, count
    )
    return _frame(head + body, 0, -1)


def build_single(
    key: bytes | None, value: bytes | None, *, timestamp_ms: int, base_offset: int, leader_epoch: int
) -> bytes:
    """Build a batch of one record without a producer, which a leader can store without `stamp`."""
    head = _AFTER_CRC.pack(0, 0, timestamp_ms, timestamp_ms, NO_PRODUCER_ID, -1, NO_SEQUENCE, 1)
    return _frame(head + encode_record(0, key, value), base_offset, leader_epoch)


def _frame(checked: bytes, base_offset: int, leader_epoch: int) -> bytes:
    length = _CHECKED_FROM - _LENGTH_ENDS_AT + len(checked)
    return _FRAME.pack(base_offset, length, leader_epoch, MAGIC, crc32c(checked)) + checked


def rebuild_batch(header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None) -> Steps[bytes]:
    """Rebuild a stored batch with only some of its records, or none, uncompressed; offsets and sequences stay.

    With `delete_horizon_ms` None, an existing delete horizon is kept. Takes steps, as there can be many records.
    """
    attributes = header.attributes & ~COMPRESSION_MASK
    base_timestamp = header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= _DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    encoded: list[bytes] = []
    for record in records:
        encoded.append(encode_again(record, header.base_offset, base_timestamp))
        if not len(encoded) % RECORDS_PER_STEP:
            yield
    checked = _AFTER_CRC.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max((record.timestamp for record in records), default=-1),
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(records),
    ) + b"".join(encoded)
    return _frame(checked, header.base_offset, header.leader_epoch)


def with_records(header: BatchHeader, body: bytes) -> bytes:
    """Return an uncompressed batch with this header; `body` has its encoded records."""
    checked = _AFTER_CRC.pack(header.attributes & ~COMPRESSION_MASK, *header[6:]) + body
    return _frame(checked, header.base_offset, header.leader_epoch)


def build_end_txn_marker(
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Build the control batch that ends a transaction on one partition."""
    head = _AFTER_CRC.pack(
        TRANSACTIONAL | CONTROL, 0, timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, 1
    )
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    record = _COMMIT_RECORD if commit else _ABORT_RECORD
    return _frame(head + record + value + NO_HEADERS, base_offset, leader_epoch)


def parse_end_txn_marker(record: Record) -> EndTxnMarker | None:
    """Parse a control record; return None for control types other than end-transaction markers.

    Fields that later key and value versions append are ignored. Raises CorruptRecordError if it is too short.
    """
    if record.key is None or len(record.key) < _MARKER_KEY.size:
        raise CorruptRecordError("the key of a control record has at least 4 bytes")
    _, control_type = _MARKER_KEY.unpack_from(record.key)
    if control_type not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise CorruptRecordError("the value of an end-transaction marker has at least 6 bytes")
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    return EndTxnMarker(control_type == _COMMIT, coordinator_epoch)


def iter_records(batch: bytes | memoryview) -> Iterator[Record]:
    """Yield the records of one batch, uncompressed or gzip.

    Raises UnsupportedCompressionError for other compressions, CorruptRecordError for records that do not parse.
    """
    header = parse_header(batch)
    yield from iter_body(header, _uncompressed(header, bytes(batch[HEADER_BYTES : header.size_bytes])))


def records_of(batch: bytes | memoryview, most: int | None = None) -> Steps[list[Record]]:
    """Return the records of one batch, in steps: there can be a hundred thousand. Raises as `iter_body` does."""
    header = parse_header(batch)
    records: list[Record] = []
    for record in iter_body(header, (yield from body_of(header, batch)), most):
        records.append(record)
        if not len(records) % RECORDS_PER_STEP:
            yield
    return records


def body_of(header: BatchHeader, batch: bytes | memoryview) -> Steps[bytes]:
    """Return the encoded records of a batch, decompressed in steps. Raises as `iter_records` does."""
    body = bytes(batch[HEADER_BYTES : header.size_bytes])
    if header.compression != GZIP:
        return _uncompressed(header, body)
    with _as_corrupt():
        return (yield from decompressed_gzip(body, limit_for(header.size_bytes)))


def iter_body(header: BatchHeader, body: bytes, most: int | None = None) -> Iterator[Record]:
    """Yield the records of a batch from `body`, its decompressed bytes.

    In a compressed batch, raises RecordTooLargeError in place of a record of more than `most` bytes. Raises
    CorruptRecordError.
    """
    position = 0
    largest = _NO_LIMIT if most is None or header.compression == _NO_COMPRESSION else most
    is_limited = len(body) > largest
    for _ in range(header.record_count):
        try:
            if is_limited and (size := decode_varint(body, position)[0]) > largest:
                raise RecordTooLargeError(f"the size {size} of a record exceeds max.decompressed.message.bytes={most}")
            record, position = decode_record(body, position, header.base_offset, header.base_timestamp)
        except IndexError as error:
            raise CorruptRecordError(f"a record at position {position} of its batch does not parse") from error
        yield record._replace(timestamp=header.max_timestamp) if header.is_log_append_time else record
    if position != len(body):
        raise CorruptRecordError(f"{len(body) - position} bytes follow the {header.record_count} records of a batch")


def _uncompressed(header: BatchHeader, body: bytes) -> bytes:
    if header.compression == _NO_COMPRESSION:
        return body
    if header.compression != GZIP:
        raise UnsupportedCompressionError(f"compression type {header.compression} is not decoded by the broker")
    with _as_corrupt():
        return decompressed(header.compression, body, limit_for(header.size_bytes))


@contextmanager
def _as_corrupt() -> Iterator[None]:
    try:
        yield
    except (DecompressionError, ExpansionError) as error:
        raise CorruptRecordError(f"the records of a gzip batch do not decompress: {error}") from error


def _marker_record(control_type: int) -> bytes:
    """Return a marker's record up to its value, the only part that differs between markers of one type."""
    empty_value = bytes(_MARKER_VALUE.size)
    return encode_record(0, _MARKER_KEY.pack(0, control_type), empty_value)[: -len(empty_value) - len(NO_HEADERS)]


_COMMIT_RECORD = _marker_record(_COMMIT)
_ABORT_RECORD = _marker_record(_ABORT)
