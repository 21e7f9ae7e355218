"""The coordinator's state in memory for each `__transaction_state` partition that its node leads."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.transactions.metadata import TransactionMetadata


class Deadlines:
    """Names with the time at which a scan has to look at each; other names cost a scan nothing.

    A name has one deadline, the earliest given. So extending the deadline of a name again and again costs nothing: it
    falls due once at the old time, and the caller then schedules it for the current deadline.
    """

    __slots__ = ("_by_name", "_heap")

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def schedule(self, name: str, deadline_ms: int) -> None:
        """Let `name` fall due at `deadline_ms`, unless it falls due earlier."""
        known_ms = self._by_name.get(name)
        if known_ms is None or deadline_ms < known_ms:
            self._by_name[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))

    def take_due(self, now_ms: int) -> list[str]:
        """Remove and return the names whose deadline has passed."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heapq.heappop(self._heap)
            if self._by_name.get(name) == deadline_ms:  # otherwise an earlier deadline replaced this one
                del self._by_name[name]
                due.append(name)
        return due


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One partition of `__transaction_state` during one term of leadership."""

    partition: int
    coordinator_epoch: int
    ids: dict[str, TransactionMetadata] = field(default_factory=dict)
    marker_runs: dict[str, MarkerRun] = field(default_factory=dict)
    """By transactional id, for every transaction that is being ended."""
    timeouts: Deadlines = field(default_factory=Deadlines)
    """Of every id with an open transaction that can time out."""
    expiries: Deadlines = field(default_factory=Deadlines)
    """Of every id."""
    is_led: bool = True
    """False once the term is over."""


@dataclass(slots=True, eq=False)
class MarkerRun:
    """The markers of one decided transaction; cancelled as a whole when a leader reports a newer coordinator."""

    owned: OwnedPartition
    decided: TransactionMetadata
    acknowledged: set[TopicPartition] = field(default_factory=set)
    is_cancelled: bool = False


class Progress(NamedTuple):
    """The written markers of a transaction."""

    coordinator_epoch: int
    marked: frozenset[TopicPartition]
    """The partitions whose leaders have acknowledged the marker."""
