"""Checks of new batches that need no state of the partition; named after Kafka's LogValidator."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.producer_state import Rejection
from dualwrite.broker_emulator.log.record_batch import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    BatchHeader,
    CorruptRecordError,
    UnsupportedCompressionError,
    iter_records,
)

_LEAST_RECORD_BYTES = 7
"""Size of the smallest uncompressed record: offset and timestamp delta 0, no key, value or headers."""
_NO_TIMESTAMP = -1


def has_record_without_key(batch: memoryview) -> bool:
    """Return whether a record has no key; a batch that the broker cannot decompress is accepted as it is."""
    try:
        return any(record.key is None for record in iter_records(batch))
    except (UnsupportedCompressionError, CorruptRecordError):
        return False


def problem_of_timestamps(batches: list[tuple[BatchHeader, memoryview]], config: LogConfig, now_ms: int) -> str | None:
    """Describe a timestamp that is too old or too far ahead (KIP-937); None if there is none."""
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    for header, batch in batches:
        for timestamp_ms in _timestamps(header, batch):
            if timestamp_ms != _NO_TIMESTAMP and not earliest_ms <= timestamp_ms <= latest_ms:
                return f"the timestamp {timestamp_ms} of a record is not between {earliest_ms} and {latest_ms}"
    return None


def _timestamps(header: BatchHeader, batch: memoryview) -> list[int]:
    """Return the timestamps of all records; of the first and the newest if the broker cannot decompress the batch."""
    try:
        return [record.timestamp for record in iter_records(batch)]
    except (UnsupportedCompressionError, CorruptRecordError):
        return [header.base_timestamp, header.max_timestamp]


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
