"""The persisted state of a share-partition, as the share coordinator keeps it: decisions about writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

NO_OFFSET = -1
"""The start offset of a share-partition from which nothing was fetched yet."""
UNKNOWN_COUNT = -1
"""The delivery complete count where the writer did not know it (before KIP-1226)."""


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
"""The summary where there is no state."""


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
    """The number of updates since the last snapshot; decides when the next snapshot is due."""

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
    """What a leader changes with one write."""

    leader_epoch: int
    start_offset: int
    """NO_OFFSET if it does not change."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


def combined(
    known: Iterable[StateBatch], newer: Iterable[StateBatch], start_offset: int = NO_OFFSET
) -> tuple[StateBatch, ...]:
    """Return the known batches overlaid with the newer ones, from the start offset on, with like neighbours joined."""
    kept = list(known)
    for batch in newer:
        kept = [part for old in kept for part in _without(old, batch)]
        kept.append(batch)
    kept = [
        batch._replace(first_offset=max(batch.first_offset, start_offset))
        for batch in kept
        if batch.last_offset >= start_offset
    ]
    return joined(sorted(kept))


def _without(batch: StateBatch, covered: StateBatch) -> Iterable[StateBatch]:
    """Yield the parts of a batch that another one does not cover."""
    if batch.first_offset < covered.first_offset:
        yield batch._replace(last_offset=min(batch.last_offset, covered.first_offset - 1))
    if batch.last_offset > covered.last_offset:
        yield batch._replace(first_offset=max(batch.first_offset, covered.last_offset + 1))


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
