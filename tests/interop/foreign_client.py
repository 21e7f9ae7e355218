"""The face that transactional clients of other people get, so that one case runs with each.

Every client keeps its own protocol versions, batching and error handling; only the calls are made alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_MS = 60_000


class FencedError(Exception):
    """The client says that another producer has taken over."""


class ForeignProducer(Protocol):
    """A transactional producer."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...
    def send_offsets(self, group: str, topic: str, offset: int) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """A record as its user sees it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class ForeignClient(Protocol):
    """One library."""

    name: str
    codecs: tuple[str, ...]
    """The compression that it can write and read here."""
    shortest_timeout_ms: int
    """The least `transaction.timeout.ms` that the library lets through."""

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer: ...

    def write(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False
    ) -> None:
        """Send to partition 0, without a transaction, and wait until all are acknowledged."""

    def consume(self, servers: str, topic: str, group: str, count: int) -> list[Message]:
        """Join the group, read from the beginning, commit, and leave."""

    def read(self, servers: str, topic: str, end: int, *, committed: bool) -> list[bytes]:
        """Values of partition 0 from the beginning until the consumer's position is `end`."""

    def end_offset(self, servers: str, topic: str, *, committed: bool) -> int:
        """High watermark, or last stable offset."""

    def committed_offset(self, servers: str, group: str, topic: str) -> int | None:
        """The first offset for a consumer of that group."""
