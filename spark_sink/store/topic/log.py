"""The port to the log: one partition of a topic, which its leader appends to. `kafka_log.py` implements it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StoredRecord(NamedTuple):
    """A record of the log. If two logs have the same leader epoch at an offset, they are the same up to it."""

    offset: int
    epoch: int
    time_ms: int
    """When the leader appended it, by the leader's clock."""
    value: bytes | None


class OutOfLogError(Exception):
    """The log has no such offset: it begins later, or ends earlier."""


class CommitLog(Protocol):
    """One partition. Every call raises CommitLogError, and SinkError for an error that no retry changes."""

    @property
    def name(self) -> str:
        """The topic, for messages."""

    def append(self, value: bytes) -> int:
        """Append a record, with the acknowledgement of all in-sync replicas; return its offset.

        The record may be appended several times. Raises SinkError if it is too long; then it is not appended.
        """

    def start(self) -> int:
        """Return the first offset."""

    def read(self, first: int, last: int) -> list[StoredRecord]:
        """Return the records from the offset `first` to at least `last`, once the leader shows that offset.

        Raises OutOfLogError.
        """

    def delete_before(self, offset: int) -> None:
        """Delete the records before this offset."""

    def check(self) -> None:
        """Raise SinkError unless the topic exists, and keeps its records."""

    def create(self) -> None:
        """Create the topic with the right settings, unless it exists."""
