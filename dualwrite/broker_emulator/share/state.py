"""The persisted state of a share-partition: the share coordinator's decisions about writes, and access to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.share.states import PERSISTED_RECORD_STATES
from dualwrite.broker_emulator.topics.topics import ClusterView

NO_OFFSET = -1
"""The start offset of a share-partition that was never fetched from."""
UNKNOWN_COUNT = -1
"""The delivery complete count of writers that do not know it (before KIP-1226)."""
_MAX_OFFSET = 2**63 - 1
"""The highest possible log end offset."""
_MAX_DELIVERY_COUNT = 2**15 - 1
"""The highest count that can be sent; a record with this count cannot be delivered again."""


class StateKey(NamedTuple):
    """The name of a share-partition: a group and a partition of a topic."""

    group_id: str
    topic_id: UUID
    partition: int


class StateBatch(NamedTuple):
    """Neighbouring records with the same state and delivery count."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class Summary(NamedTuple):
    """The summary of a state."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int


NO_SUMMARY = Summary(0, 0, NO_OFFSET, UNKNOWN_COUNT)
"""The summary of a share-partition without state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """The state of one share-partition."""

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
    create_timestamp_ms: int = 0
    write_timestamp_ms: int = 0
    batches: tuple[StateBatch, ...] = ()
    updates: int = 0
    """The number of updates since the last snapshot; determines when the next snapshot is due."""

    def updated(self, update: ShareStateUpdate) -> ShareState:
        """Return the state after an update."""
        start = self.start_offset if update.start_offset == NO_OFFSET else update.start_offset
        return replace(
            self,
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            start_offset=start,
            delivery_complete_count=update.delivery_complete_count,
            batches=combined(self.batches, update.batches, start),
            updates=self.updates + 1,
        )


class ShareStateUpdate(NamedTuple):
    """The changes of one write by a leader."""

    leader_epoch: int
    start_offset: int
    """NO_OFFSET if it does not change."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


def inconsistency(start_offset: int, delivery_complete_count: int, batches: Iterable[StateBatch]) -> str | None:
    """Return why numbers are inconsistent, as no leader writes them, or None.

    Kafka stores such numbers, and its leaders fail when they read them.
    """
    if start_offset < NO_OFFSET:
        return f"The start offset {start_offset} is negative."
    if not UNKNOWN_COUNT <= delivery_complete_count <= _MAX_OFFSET - start_offset:
        return f"There cannot be {delivery_complete_count} complete records from offset {start_offset} on."
    for first, last, state, count in batches:
        if not 0 <= first <= last < _MAX_OFFSET:
            return f"There is no batch from offset {first} to {last}."
        if state not in PERSISTED_RECORD_STATES or not 0 <= count < _MAX_DELIVERY_COUNT:
            return f"The batch at offset {first} has the delivery state {state} and the delivery count {count}."
    return None


def combined(
    known: Iterable[StateBatch], newer: Iterable[StateBatch], start_offset: int = NO_OFFSET
) -> tuple[StateBatch, ...]:
    """Return the known batches overlaid with the newer ones, from the start offset on; equal neighbours are joined."""
    kept = [
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in _overlaid([*known, *newer])
        if batch.last_offset >= start_offset
    ]
    return joined(kept)


def _overlaid(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Return the batches in the order of their offsets; where they overlap, the later one in the sequence counts."""
    ordered = sorted(batches)
    if all(before.last_offset < batch.first_offset for before, batch in pairwise(ordered)):
        return ordered
    waiting = sorted(enumerate(batches), key=lambda item: item[1].first_offset, reverse=True)
    overlapping: list[tuple[int, StateBatch]] = []  # a heap: the batches at this offset, the latest one first
    found: list[StateBatch] = []
    offset = 0
    while waiting or overlapping:
        if not overlapping:
            offset = waiting[-1][1].first_offset
        while waiting and waiting[-1][1].first_offset <= offset:
            index, batch = waiting.pop()
            heappush(overlapping, (-index, batch))
        latest = overlapping[0][1]
        if latest.last_offset < offset:
            heappop(overlapping)
            continue
        end = min(latest.last_offset, waiting[-1][1].first_offset - 1) if waiting else latest.last_offset
        found.append(StateBatch(offset, end, latest.delivery_state, latest.delivery_count))
        offset = end + 1
    return found


def joined(batches: Sequence[StateBatch]) -> tuple[StateBatch, ...]:
    """Join neighbours with the same state and delivery count."""
    found: list[StateBatch] = []
    for batch in batches:
        last = found[-1] if found else None
        if last is not None and last[2:] == batch[2:] and last.last_offset + 1 == batch.first_offset:
            found[-1] = last._replace(last_offset=batch.last_offset)
        else:
            found.append(batch)
    return tuple(found)


_MESSAGES: dict[ErrorCode, str] = {
    ErrorCode.unknown_topic_or_partition: "This server does not host this topic-partition.",
    ErrorCode.fenced_state_epoch: "The coordinator rejected the request because the state epoch did not match.",
    ErrorCode.fenced_leader_epoch: "The leader epoch in the request is older than the epoch on the broker.",
}


class StateError(Exception):
    """A request about the state of a share-partition is refused with this error; nothing has changed."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        self.message = message or _MESSAGES.get(error)
        super().__init__(self.message or error.name)
        self.error = error


class StatesOfPartition(Protocol):
    """The states in one partition of `__share_group_state`. Every method may raise StateError."""

    def read(self, key: StateKey, leader_epoch: int) -> ShareState:
        """Return the state for the leader of a partition, and fence older leaders."""

    def write(self, key: StateKey, state_epoch: int, update: ShareStateUpdate) -> None:
        """Append an update."""

    def summary(self, key: StateKey) -> Summary:
        """Return the summary of a state, or `NO_SUMMARY`."""

    async def replicated(self) -> None:
        """Wait until everything appended so far is replicated."""


class States(Protocol):
    """The states of all share-partitions of the cluster. Every method may raise StateError."""

    def shard(self, key: StateKey) -> StatesOfPartition:
        """Return the states of the partition that holds the state of this share-partition."""

    async def initialize(self, key: StateKey, state_epoch: int, start_offset: int) -> None:
        """Give a share-partition a new state, and make its leader forget the old one."""

    async def delete(self, key: StateKey) -> None:
        """Delete the state of a share-partition, and make its leader forget it."""


class ShareClusterView(ClusterView, Protocol):
    """The part of the cluster that coordinators and leaders of share groups read."""

    @property
    def share_states(self) -> States:
        """The persisted state of share groups."""
