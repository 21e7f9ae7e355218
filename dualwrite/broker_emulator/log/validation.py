"""Checks of new batches that need no state of the partition; named after Kafka's LogValidator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.compression import (
    NONE,
    CodecMissingError,
    DecompressionError,
    ExpansionError,
    decompressed,
    limit_for,
)
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.producer_state import Rejection
from dualwrite.broker_emulator.log.record_batch import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    BatchHeader,
    iter_body,
    wrapped,
)
from dualwrite.broker_emulator.log.record_walk import (
    EndlessLengthError,
    OffsetOrderError,
    RecordFormatError,
    check_records,
)

_LEAST_RECORD_BYTES = 7
"""Size of the smallest uncompressed record: offset and timestamp delta 0, no key, value or headers."""
_NO_TIMESTAMP = -1
_MANY_RECORDS: Final = 1000
_MUCH_COMPRESSED: Final = 32 << 10
_LITTLE: Final = 128 << 10


def check_contents(header: BatchHeader, batch: bytes | memoryview, config: LogConfig, now_ms: int) -> Rejection | None:
    """Check the records of a client's batch, whose header and checksum are right, as Kafka's LogValidator does.

    A batch whose codec is not installed is accepted as it is.
    """
    try:
        return _check_within(limit_for(config.max_message_bytes), header, batch, config, now_ms)
    except ExpansionError as error:  # clients then split the batch
        return Rejection(ErrorCode.message_too_large, str(error))


def _check_within(
    limit: int, header: BatchHeader, batch: bytes | memoryview, config: LogConfig, now_ms: int
) -> Rejection | None:
    """Check the records of a batch. Raises ExpansionError if they take more than `limit` bytes."""
    try:
        body = decompressed(header.compression, batch[HEADER_BYTES : header.size_bytes], limit)
    except DecompressionError as error:
        return Rejection(ErrorCode.unknown_server_error, f"the records do not decompress: {error}")
    except CodecMissingError:
        return None
    is_compressed = header.compression != NONE
    try:
        check_records(body, header.record_count)
        rejection = _check_each(header, body, config, now_ms)
        if rejection is None and is_compressed:
            check_records(body, header.record_count, in_order=True)
    except OffsetOrderError as error:
        return Rejection(ErrorCode.unknown_server_error, str(error))
    except EndlessLengthError as error:
        code = ErrorCode.invalid_record if is_compressed else ErrorCode.unknown_server_error
        return Rejection(code, str(error))
    except RecordFormatError as error:
        return Rejection(ErrorCode.invalid_record, str(error))
    return rejection


def _check_each(header: BatchHeader, body: bytes, config: LogConfig, now_ms: int) -> Rejection | None:
    """Check what depends on the topic's settings: keys first, then times."""
    if config.is_compacted and any(record.key is None for record in iter_body(header, body)):
        return Rejection(ErrorCode.invalid_record, "a record of a compacted topic needs a key")
    problem = _problem_of_timestamps(header, body, config, now_ms)
    return None if problem is None else Rejection(ErrorCode.invalid_timestamp, problem)


def _problem_of_timestamps(header: BatchHeader, body: bytes, config: LogConfig, now_ms: int) -> str | None:
    """Describe a timestamp that is too old or too far ahead (KIP-937), or of the wrong type; None if there is none."""
    if config.is_log_append_time or (header.is_log_append_time and header.max_timestamp == _NO_TIMESTAMP):
        return "a producer cannot set the broker's time" if header.is_log_append_time else None
    if not config.limits_timestamps:
        return None
    before_ms, after_ms = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if header.is_log_append_time:
        timestamps: Iterable[int] = (header.max_timestamp,)
    else:
        timestamps = (record.timestamp for record in iter_body(header, body))
    for timestamp_ms in timestamps:
        age_ms = wrapped(now_ms - timestamp_ms)
        if timestamp_ms != _NO_TIMESTAMP and not -after_ms <= age_ms <= before_ms:
            return (
                f"the timestamp {timestamp_ms} of a record is not between {now_ms - before_ms} and {now_ms + after_ms}"
            )
    return None


class CheckedContents(NamedTuple):
    """The result of `check_contents`, made before the append."""

    rejection: Rejection | None


_CONTENTS_ARE_RIGHT: Final = CheckedContents(None)


async def checked_contents(
    header: BatchHeader, records: bytes | memoryview, config: LogConfig, now_ms: int
) -> CheckedContents:
    """Check the records of a batch: a few in place, many or much compressed ones in a thread.

    It is one thread, so that many such batches do not take memory at the same time.
    """
    try:
        if header.record_count <= _MANY_RECORDS and not (header.compression and header.size_bytes > _MUCH_COMPRESSED):
            limit = _LITTLE if header.compression else header.size_bytes
            rejection = _check_within(limit, header, records, config, now_ms)
            return _CONTENTS_ARE_RIGHT if rejection is None else CheckedContents(rejection)
    except ExpansionError:
        pass
    loop = asyncio.get_running_loop()
    return CheckedContents(await loop.run_in_executor(_thread(), check_contents, header, records, config, now_ms))


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="record-validation")


def check_batch(header: BatchHeader, message_max_bytes: int, from_client: bool) -> Rejection | None:
    """Check a batch by its header alone."""
    if header.size_bytes > message_max_bytes:
        return Rejection(
            ErrorCode.message_too_large, f"a batch of {header.size_bytes} bytes exceeds {message_max_bytes}"
        )
    problem = _problem_of_header(header, from_client)
    return None if problem is None else Rejection(ErrorCode.invalid_record, problem)


def _problem_of_header(header: BatchHeader, from_client: bool) -> str | None:
    if header.base_offset != 0:
        return f"the base offset of a new batch must be 0, not {header.base_offset}"
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        return f"{header.record_count} records do not fill offsets 0 to {header.last_offset_delta}"
    if not header.compression and header.record_count * _LEAST_RECORD_BYTES > header.size_bytes - HEADER_BYTES:
        return f"{header.record_count} records do not fit in the {header.size_bytes} bytes of their batch"
    if header.is_control:
        return "control records are written by WriteTxnMarkers only"
    if from_client and header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        return f"producer {header.producer_id} sent the sequence {header.base_sequence}"
    return None
