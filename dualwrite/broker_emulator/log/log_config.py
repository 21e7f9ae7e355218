"""Settings of one topic's logs, by Kafka's topic-level names with `.` turned into `_`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MEBIBYTE = 1 << 20
_DAY_MS = 86_400_000
_FOR_EVER = (1 << 63) - 1

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
"""The values of `message.timestamp.type` (KIP-32)."""


class CleanupPolicy(StrEnum):
    """The fate of old records: whole segments are deleted, or only the newest record of each key is kept."""

    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one topic's logs. Defaults are Kafka's unless a comment says otherwise."""

    segment_bytes: int = 64 * _MEBIBYTE  # Kafka: 1 GiB; only full segments are deleted or compacted
    segment_ms: int = 7 * _DAY_MS
    """Age of a segment's first record at which a new segment begins."""
    cleanup_policy: frozenset[CleanupPolicy] = frozenset({CleanupPolicy.DELETE})
    retention_ms: int = 7 * _DAY_MS
    """Age at which segments are deleted; -1 for never."""
    retention_bytes: int = -1
    """Size of a partition above which segments are deleted; -1 for no limit."""
    delete_retention_ms: int = _DAY_MS
    """The time that compaction keeps tombstones and the markers of transactions without remaining data (KIP-534)."""
    min_cleanable_dirty_ratio: float = 0.5
    """The share of the compactable bytes that must be dirty (never compacted) before compaction runs."""
    min_compaction_lag_ms: int = 0
    """Segments with a record younger than this are not compacted."""
    max_compaction_lag_ms: int = _FOR_EVER
    """Age at which a record is compacted, independently of the dirty share (KIP-354)."""
    max_message_bytes: int = 1048588
    """Size of the largest accepted batch."""
    max_decompressed_message_bytes: int = 2147483639
    """Size of the largest accepted record in a compressed batch."""
    min_insync_replicas: int = 1
    """The number of replicas that must be in sync for `acks=all`."""
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = _FOR_EVER
    message_timestamp_after_max_ms: int = _FOR_EVER  # Kafka: an hour; clients have no virtual clock

    @property
    def is_compacted(self) -> bool:
        """Whether every record needs a key, because only the newest record of each key is kept."""
        return CleanupPolicy.COMPACT in self.cleanup_policy

    @property
    def longest_segment_ms(self) -> int:
        """Age at which a segment is rolled: records due for compaction must not be in the active segment."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker sets the timestamps of records."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def limits_timestamps(self) -> bool:
        """Whether a client's timestamps can be too old or too far ahead."""
        return self.message_timestamp_before_max_ms < _FOR_EVER or self.message_timestamp_after_max_ms < _FOR_EVER

    @property
    def checks_each_record(self) -> bool:
        """Whether acceptance depends on the key or the timestamp of each record."""
        return self.is_compacted or (self.limits_timestamps and not self.is_log_append_time)
