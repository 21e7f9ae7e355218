"""Results of a partition's log: of an append, as a coordinator reports it too, of a read, and counts of both."""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.last_stable_offset import AbortedTransaction
from dualwrite.broker_emulator.log.producer_state import BadRecord, Rejection

NO_APPEND_TIME_MS: Final = -1


class AppendResult(NamedTuple):
    """The Produce response for one partition."""

    error: ErrorCode
    base_offset: int = -1
    """Offset of the first record; the original one for a duplicate; -1 on errors."""
    log_append_time_ms: int = NO_APPEND_TIME_MS
    """-1 if records keep their timestamps (message.timestamp.type=CreateTime); for a duplicate, its timestamp."""
    log_start_offset: int = -1
    error_message: str | None = None
    bad_records: tuple[BadRecord, ...] = ()


class ReadResult(NamedTuple):
    """The Fetch response for one partition; as in Kafka, the three offsets are -1 if the fetch is out of range."""

    error: ErrorCode
    records: bytes
    aborted: list[AbortedTransaction] | None
    """None for read_uncommitted; for read_committed a list, perhaps empty, in the order of the markers."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class ProducerDescription(NamedTuple):
    """One producer of DescribeProducers (KIP-664); -1 means none in every field."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class LogTraffic:
    """Records and bytes written to and read from a partition since its node's process started."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0


def refused(rejection: Rejection) -> AppendResult:
    """Return the result of an append whose batches themselves are bad."""
    return AppendResult(rejection.error, error_message=rejection.message, bad_records=rejection.bad_records)


APPEND_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
}
"""The client's error for a failed append to the coordinator's own log; other errors stay the same."""
