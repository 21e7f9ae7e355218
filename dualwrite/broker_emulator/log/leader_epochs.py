"""The end offset of each leader epoch (KIP-101, KIP-320), found in the batches, which carry their leader epoch.

Epochs never decrease from batch to batch, so a binary search finds the end of an epoch, and no index is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
