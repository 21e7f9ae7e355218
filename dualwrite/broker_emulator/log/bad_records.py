"""The records of a batch that a topic rejects, and the reasons (KIP-467): all of them, with Kafka's sentences.

Clients drop the named records, or split the batch, and send the others again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.producer_state import BadRecord, Rejection
from dualwrite.broker_emulator.log.record_batch import Record, wrapped

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
