"""Find the batches in the bytes of a Produce request as Kafka does, before parsing any of them.

A truncated batch at the end is ignored, and is no error if a whole batch precedes it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.record_batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptRecordError,
    parse_header,
)

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_OVERHEAD_BYTES = 12
"""Base offset and length: the bytes that the length does not count."""
_UP_TO_MAGIC_BYTES = 17
_MAGIC_AT = 16
_LEAST_LENGTH = 14
"""The smallest record of magic 0; Kafka treats shorter ones as corrupt."""


class ProducedBatch(NamedTuple):
    """The data of a Produce request for one partition."""

    header: BatchHeader | None
    """The header of the first batch; None unless it is of magic 2."""
    records: bytes
    """The first batch alone."""
    error: ErrorCode = NO_ERROR
    """2 if the first batch or the one after it is corrupt, 87 unless there is one batch of magic 2 and no more."""
    problem: str | None = None
    """Why the batch is corrupt."""

    @property
    def is_corrupt(self) -> bool:
        """Whether the first batch itself cannot be found, which fails the request for all of its partitions."""
        return self.header is None and self.error is ErrorCode.corrupt_message


def read_produced(records: bytes | None) -> ProducedBatch:
    """Read the first batch, and check whether another one follows."""
    if records is None:
        return _NOTHING
    if len(records) >= HEADER_BYTES and records[_MAGIC_AT] == MAGIC:
        header = parse_header(records)
        if header.length + _OVERHEAD_BYTES == len(records):  # as almost always
            return ProducedBatch(header, records)
    try:
        size = batch_size(records, 0)
        if size is None or records[_MAGIC_AT] != MAGIC:
            return _NOTHING
        header = parse_header(records)
    except CorruptRecordError as error:
        return ProducedBatch(None, b"", ErrorCode.corrupt_message, str(error))
    if size == len(records):
        return ProducedBatch(header, records)
    return _followed(header, records, size)


def _followed(header: BatchHeader, records: bytes, size: int) -> ProducedBatch:
    batch = records[:size]
    try:
        is_alone = batch_size(records, size) is None
    except CorruptRecordError as error:
        return ProducedBatch(header, batch, ErrorCode.corrupt_message, str(error))
    return ProducedBatch(header, batch, NO_ERROR if is_alone else ErrorCode.invalid_record)


def batch_size(records: bytes, position: int) -> int | None:
    """Return the size in bytes of the batch at `position`; None if it is cut off. Raises CorruptRecordError."""
    remaining = len(records) - position
    if remaining < _OVERHEAD_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(records, position + _LENGTH_AT)
    if length < _LEAST_LENGTH:
        raise CorruptRecordError(f"Record size {length} is less than the minimum record overhead ({_LEAST_LENGTH})")
    if remaining < _UP_TO_MAGIC_BYTES:
        return None
    magic = records[position + _MAGIC_AT]
    if magic > MAGIC:
        raise CorruptRecordError(f"Invalid magic found in record: {magic}")
    size: int = length + _OVERHEAD_BYTES
    return size if remaining >= size else None


_NOTHING = ProducedBatch(None, b"", ErrorCode.invalid_record)
