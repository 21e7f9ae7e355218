"""Offsets in a log: of a timestamp (ListOffsets), and at the end of a leader epoch (KIP-101, KIP-320).

Epochs never decrease from batch to batch, so a binary search finds the end of an epoch, and no index is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dualwrite.broker_emulator.log.record_batch import (
    RECORDS_PER_STEP,
    CorruptRecordError,
    UnsupportedCompressionError,
    body_of,
    iter_body,
    parse_header,
)
from dualwrite.broker_emulator.log.segments import Segments
from dualwrite.broker_emulator.slices import Steps

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
"""KIP-734: the record with the largest timestamp."""

_NO_TIMESTAMP: Final = -1
_NOT_FOUND: Final = (-1, -1)


def offset_for_timestamp(
    segments: Segments, timestamp_ms: int, *, start_offset: int, limit: int, most: int
) -> Steps[tuple[int, int]]:
    """Return (offset, timestamp) of the first record of that time or later below `limit`; (-1, -1) if none.

    Raises RecordTooLargeError if an earlier record of its compressed batch has more than `most` bytes.

    The log may change between the steps, so no position in it is kept from one step to the next.
    """
    if timestamp_ms == LATEST_TIMESTAMP:
        return limit, _NO_TIMESTAMP
    if timestamp_ms == EARLIEST_TIMESTAMP:
        return start_offset, _NO_TIMESTAMP
    by_max = timestamp_ms == MAX_TIMESTAMP
    wanted = segments.max_timestamp if by_max else timestamp_ms
    start = 0 if by_max else start_offset
    while (batch := next(segments.with_timestamp(wanted, start), None)) is not None:
        found = yield from _find_in_batch(batch, wanted, start, most, last_if_opaque=by_max)
        if found is not None:
            return found if found[0] < limit else _NOT_FOUND
        start = parse_header(batch).last_offset + 1
    return _NOT_FOUND


def _find_in_batch(
    batch: bytes, timestamp_ms: int, offset: int, most: int, *, last_if_opaque: bool
) -> Steps[tuple[int, int] | None]:
    """Return offset and timestamp of the first record of `timestamp_ms` or later from `offset` on; None if none."""
    header = parse_header(batch)
    try:
        body = yield from body_of(header, batch)
        for number, record in enumerate(iter_body(header, body, most), 1):
            if record.timestamp >= timestamp_ms and record.offset >= offset:
                return record.offset, record.timestamp
            if not number % RECORDS_PER_STEP:
                yield
    except (UnsupportedCompressionError, CorruptRecordError):
        if last_if_opaque:
            return header.last_offset, header.max_timestamp
        timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp
        return max(header.base_offset, offset), timestamp
    return None


BatchAt = Callable[[int], "EpochOfBatch | None"]
"""Returns the first batch that ends above an offset, or None."""


class EpochOfBatch(NamedTuple):
    """The facts about a batch that the search needs."""

    base_offset: int
    next_offset: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The newest epoch that is not newer than the requested one, and the offset after its last record."""

    leader_epoch: int
    end_offset: int


UNKNOWN_EPOCH = EpochEnd(-1, -1)


def end_of_epoch(batch_at: BatchAt, leader_epoch: int, *, start_offset: int, current_start_offset: int) -> EpochEnd:
    """Return the end of `leader_epoch`, which is older than the current epoch.

    The search covers the log from `start_offset` to the start of the current leader's epoch. If no batch as old as
    `leader_epoch` is left, the result has `leader_epoch` itself (as in Kafka's LeaderEpochFileCache).
    """
    low, high, end, found = start_offset, current_start_offset, current_start_offset, leader_epoch
    while low < high:
        middle = (low + high) // 2
        batch = batch_at(middle)
        if batch is None or batch.base_offset >= current_start_offset:
            high = middle
        elif batch.leader_epoch > leader_epoch:
            high, end = min(middle, batch.base_offset), batch.base_offset
        else:
            low, found = batch.next_offset, batch.leader_epoch
    return EpochEnd(found, max(end, start_offset))
