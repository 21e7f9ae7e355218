"""The offset that belongs to a time (ListOffsets)."""

from __future__ import annotations

from typing import Final

from dualwrite.broker_emulator.log.record_batch import (
    CorruptRecordError,
    UnsupportedCompressionError,
    iter_records,
    parse_header,
)
from dualwrite.broker_emulator.log.segments import Segments

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
"""KIP-734: the record with the largest timestamp."""

_NO_TIMESTAMP: Final = -1
_NOT_FOUND: Final = (-1, -1)


def offset_for_timestamp(segments: Segments, timestamp_ms: int, *, start_offset: int, limit: int) -> tuple[int, int]:
    """Return (offset, timestamp) of the first record of that time or later below `limit`; (-1, -1) if none."""
    if timestamp_ms == LATEST_TIMESTAMP:
        return limit, _NO_TIMESTAMP
    if timestamp_ms == EARLIEST_TIMESTAMP:
        return start_offset, _NO_TIMESTAMP
    by_max = timestamp_ms == MAX_TIMESTAMP
    wanted = segments.max_timestamp if by_max else timestamp_ms
    start = 0 if by_max else start_offset
    for batch in segments.with_timestamp(wanted, start):
        found = _find_in_batch(batch, wanted, start, last_if_opaque=by_max)
        if found is not None:
            return found if found[0] < limit else _NOT_FOUND
    return _NOT_FOUND


def _find_in_batch(batch: bytes, timestamp_ms: int, offset: int, *, last_if_opaque: bool) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record of `timestamp_ms` or later from `offset` on; None if none."""
    try:
        for record in iter_records(batch):
            if record.timestamp >= timestamp_ms and record.offset >= offset:
                return record.offset, record.timestamp
    except (UnsupportedCompressionError, CorruptRecordError):
        header = parse_header(batch)
        if last_if_opaque:
            return header.last_offset, header.max_timestamp
        timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp
        return max(header.base_offset, offset), timestamp
    return None
