"""Checks of new batches that need no state of the partition; named after Kafka's LogValidator.

The batches of a Produce request are found as Kafka finds them, before any is parsed: a truncated batch at the end is
ignored, and is no error if a whole batch precedes it. Rejected records are all named, with Kafka's sentences
(KIP-467): clients drop those, or split the batch, and send the others again.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.compression import (
    CodecMissingError,
    DecompressionError,
    ExpansionError,
    decompressed,
    limit_for,
)
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.producer_state import BadRecord, Rejection
from dualwrite.broker_emulator.log.record import Record, wrapped
from dualwrite.broker_emulator.log.record_batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    CorruptRecordError,
    iter_body,
    parse_header,
)
from dualwrite.broker_emulator.log.record_walk import (
    EndlessLengthError,
    OffsetOrderError,
    RecordFormatError,
    check_records,
    check_sizes,
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


_NO_TIMESTAMP: Final = -1
_SHOWN: Final = 3
"""The number of records that the message of the batch names."""


def check_each(
    records: Iterable[Record], config: LogConfig, now_ms: int, partition: tuple[str, int]
) -> Rejection | None:
    """Check each record by the topic's settings: its key (compaction), then its time (KIP-937).

    One bad timestamp makes the error 32, independently of other faults.
    """
    limits_time = config.limits_timestamps and not config.is_log_append_time
    if not config.is_compacted and not limits_time:
        return None
    found = list(_bad_records(records, config, now_ms, partition, limits_time))
    if not found:
        return None
    bad_records = tuple(bad for _, bad in found)
    if any(error is ErrorCode.invalid_timestamp for error, _ in found):
        message = "One or more records have been rejected due to invalid timestamp"
        return Rejection(ErrorCode.invalid_timestamp, message, bad_records)
    return Rejection(ErrorCode.invalid_record, _message_of(bad_records), bad_records)


def _bad_records(
    records: Iterable[Record], config: LogConfig, now_ms: int, partition: tuple[str, int], limits_time: bool
) -> Iterator[tuple[ErrorCode, BadRecord]]:
    needs_key = config.is_compacted
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    for index, record in enumerate(records):
        if needs_key and record.key is None:
            name = f"{partition[0]}-{partition[1]}"
            problem = f"Compacted topic cannot accept message without key in topic partition {name}"
            yield ErrorCode.invalid_record, BadRecord(index, problem)
        elif limits_time and record.timestamp != _NO_TIMESTAMP:
            age_ms = wrapped(now_ms - record.timestamp)
            if not -config.message_timestamp_after_max_ms <= age_ms <= config.message_timestamp_before_max_ms:
                problem = (
                    f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. The "
                    f"timestamp should be within [{wrapped(earliest_ms)}, {wrapped(latest_ms)}]"
                )
                yield ErrorCode.invalid_timestamp, BadRecord(index, problem)


def _message_of(bad_records: tuple[BadRecord, ...]) -> str:
    shown = ", ".join(
        f"RecordError(batchIndex={bad.batch_index}, message='{bad.problem}')" for bad in bad_records[:_SHOWN]
    )
    return (
        f"One or more records have been rejected due to {len(bad_records)} record errors in total, and only showing "
        f"the first three errors at most: [{shown}]"
    )


_LEAST_RECORD_BYTES = 7
"""Size of the smallest uncompressed record: offset and timestamp delta 0, no key, value or headers."""
_MANY_RECORDS: Final = 1000
_MUCH_COMPRESSED: Final = 32 << 10
_LITTLE: Final = 128 << 10


class CheckedContents(NamedTuple):
    """The header of a client's only batch, and the fault of its records: checked before the append."""

    header: BatchHeader
    rejection: Rejection | None


def check_contents(
    header: BatchHeader, batch: bytes | memoryview, config: LogConfig, now_ms: int, partition: tuple[str, int]
) -> Rejection | None:
    """Check the records of a client's batch with a valid header and checksum, as Kafka's LogValidator does.

    A batch whose codec is not installed is accepted unchecked.
    """
    try:
        if not header.compression:
            return _check_plain(header, batch, config, now_ms, partition)
        return _check_compressed(limit_for(config.max_message_bytes), header, batch, config, now_ms, partition)
    except ExpansionError as error:  # clients then split the batch
        return Rejection(ErrorCode.message_too_large, str(error))


def check_contents_at_once(
    header: BatchHeader, batch: bytes, config: LogConfig, now_ms: int, partition: tuple[str, int]
) -> CheckedContents | None:
    """Check the records of a batch; return None if they are so many, or so compressed, that a thread should do it."""
    if header.record_count > _MANY_RECORDS:
        return None
    if not header.attributes & COMPRESSION_MASK:
        return CheckedContents(header, _check_plain(header, batch, config, now_ms, partition))
    if header.size_bytes > _MUCH_COMPRESSED:
        return None
    try:
        return CheckedContents(header, _check_compressed(_LITTLE, header, batch, config, now_ms, partition))
    except ExpansionError:
        return None


async def check_contents_in_thread(
    header: BatchHeader, batch: bytes, config: LogConfig, now_ms: int, partition: tuple[str, int]
) -> CheckedContents:
    """Check the records of a batch in the only thread for this, so that not many batches take memory at once."""
    loop = asyncio.get_running_loop()
    rejection = await loop.run_in_executor(_thread(), check_contents, header, batch, config, now_ms, partition)
    return CheckedContents(header, rejection)


def _check_plain(
    header: BatchHeader, batch: bytes | memoryview, config: LogConfig, now_ms: int, partition: tuple[str, int]
) -> Rejection | None:
    """Check uncompressed records. Kafka does not check their offsets."""
    records = batch if len(batch) == header.size_bytes else batch[: header.size_bytes]
    try:
        check_records(records, header.record_count, start=HEADER_BYTES)
    except EndlessLengthError as error:
        return Rejection(ErrorCode.unknown_server_error, str(error))
    except RecordFormatError as error:
        return Rejection(ErrorCode.invalid_record, str(error))
    if not config.checks_each_record and not header.attributes & LOG_APPEND_TIME:
        return None
    return _check_each(header, bytes(records[HEADER_BYTES:]), config, now_ms, partition)


def _check_compressed(
    limit: int,
    header: BatchHeader,
    batch: bytes | memoryview,
    config: LogConfig,
    now_ms: int,
    partition: tuple[str, int],
) -> Rejection | None:
    """Check compressed records, offsets last. Raises ExpansionError if they take more than `limit` bytes."""
    try:
        body = decompressed(header.compression, batch[HEADER_BYTES : header.size_bytes], limit)
    except DecompressionError as error:
        return Rejection(ErrorCode.unknown_server_error, f"the records do not decompress: {error}")
    except CodecMissingError:
        return None
    offsets: OffsetOrderError | None = None
    try:
        try:
            check_records(body, header.record_count, in_order=True)
        except OffsetOrderError as error:  # all other faults take precedence
            check_records(body, header.record_count)
            offsets = error
        check_sizes(body, header.record_count, config.max_decompressed_message_bytes)
    except RecordFormatError as error:
        return Rejection(ErrorCode.invalid_record, str(error))
    rejection = _check_each(header, body, config, now_ms, partition)
    if rejection is None and offsets is not None:
        return Rejection(ErrorCode.unknown_server_error, str(offsets))
    return rejection


def _check_each(
    header: BatchHeader, body: bytes, config: LogConfig, now_ms: int, partition: tuple[str, int]
) -> Rejection | None:
    """Check records against the topic's settings."""
    rejection = None
    if config.checks_each_record:
        rejection = check_each(iter_body(header, body), config, now_ms, partition)
    sets_time = header.is_log_append_time and (config.is_log_append_time or header.max_timestamp == _NO_TIMESTAMP)
    if rejection is None and sets_time:
        return Rejection(ErrorCode.invalid_timestamp, "a producer cannot set the broker's time")
    return rejection


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="record-validation")


def check_batches(
    batches: Sequence[tuple[BatchHeader, memoryview]],
    config: LogConfig,
    contents: CheckedContents | None,
    now_ms: int,
    partition: tuple[str, int],
    *,
    from_client: bool,
) -> Rejection | None:
    """Check batches by themselves. Records of coordinators, made by the broker, need no check.

    `contents` is the result for the only batch, if its records were already checked.
    """
    for header, batch in batches:
        rejection = check_batch(header, config.max_message_bytes, from_client)
        if rejection is None and from_client:
            if contents is not None:
                rejection = contents.rejection
            else:
                rejection = check_contents(header, batch, config, now_ms, partition)
        if rejection is not None:
            return rejection
    return None


def check_batch(header: BatchHeader, message_max_bytes: int, from_client: bool) -> Rejection | None:
    """Check a batch by its header alone."""
    size_bytes = header.size_bytes
    if size_bytes > message_max_bytes:
        return Rejection(ErrorCode.message_too_large, f"a batch of {size_bytes} bytes exceeds {message_max_bytes}")
    problem = _problem_of_header(header, size_bytes, from_client)
    return None if problem is None else Rejection(ErrorCode.invalid_record, problem)


def _problem_of_header(header: BatchHeader, size_bytes: int, from_client: bool) -> str | None:
    attributes = header.attributes
    if header.base_offset != 0:
        return f"the base offset of a new batch must be 0, not {header.base_offset}"
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        return f"{header.record_count} records do not fill offsets 0 to {header.last_offset_delta}"
    if not attributes & COMPRESSION_MASK and header.record_count * _LEAST_RECORD_BYTES > size_bytes - HEADER_BYTES:
        return f"{header.record_count} records do not fit in the {size_bytes} bytes of their batch"
    if attributes & CONTROL:
        return "control records are written by WriteTxnMarkers only"
    if from_client and header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        return f"producer {header.producer_id} sent the sequence {header.base_sequence}"
    return None
