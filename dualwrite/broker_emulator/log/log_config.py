"""Settings of one topic's logs, by Kafka's topic-level names with `.` turned into `_`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

_MEBIBYTE = 1 << 20
_DAY_MS = 86_400_000


class CleanupPolicy(StrEnum):
    """What happens to old records: whole segments go, or of each key only the newest record stays."""

    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one topic's logs; defaults are Kafka's unless a comment says why not."""

    segment_bytes: int = 64 * _MEBIBYTE  # Kafka: 1 GiB; nothing is deleted or compacted before its segment is full
    cleanup_policy: frozenset[CleanupPolicy] = frozenset({CleanupPolicy.DELETE})
    retention_ms: int = 7 * _DAY_MS
    """Age at which segments are deleted; -1 for never."""
    retention_bytes: int = -1
    """Size of a partition above which segments are deleted; -1 for no limit."""
    delete_retention_ms: int = _DAY_MS
    """How long compaction keeps tombstones and the markers of transactions that have no data left (KIP-534)."""
    min_cleanable_dirty_ratio: float = 0.5
    """Compaction waits until this share of what it could compact was never compacted."""
    min_compaction_lag_ms: int = 0
    """Segments with a record younger than this are not compacted."""
    max_message_bytes: int = 1048588
    """The largest batch."""

    @property
    def is_compacted(self) -> bool:
        """Whether every record needs a key, because only the newest one of each is kept."""
        return CleanupPolicy.COMPACT in self.cleanup_policy

    def with_overrides(self, configs: Mapping[str, str | None]) -> LogConfig:
        """These settings with those of a topic on top; names that mean nothing here are passed over.

        Raises ValueError with a sentence on a value that a setting does not take.
        """
        values: dict[str, Any] = {}
        for name, value in configs.items():
            parse = _PARSERS.get(name)
            if parse is not None and value is not None:
                values[name.replace(".", "_")] = _parsed(name, value, parse)
        return replace(self, **values) if values else self


def parse_cleanup_policy(value: str) -> frozenset[CleanupPolicy]:
    """The policies of a list as Kafka writes it: `delete`, `compact` or both with a comma. Raises ValueError."""
    return frozenset(CleanupPolicy(policy.strip()) for policy in value.split(","))


def _at_least(lowest: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if number < lowest:
            raise ValueError(f"at least {lowest}")
        return number

    return parse


def _ratio(value: str) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError("from 0 to 1")
    return number


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "segment.bytes": _at_least(14),
    "cleanup.policy": parse_cleanup_policy,
    "retention.ms": _at_least(-1),
    "retention.bytes": _at_least(-1),
    "delete.retention.ms": _at_least(0),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _at_least(0),
    "max.message.bytes": _at_least(0),
}


def _parsed(name: str, value: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"Invalid value {value} for configuration {name}: {error}") from error
