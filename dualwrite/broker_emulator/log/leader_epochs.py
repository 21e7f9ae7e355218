"""Where the epochs of a log's leaders end (KIP-101, KIP-320), found in the batches, each of which carries its own.

Epochs never fall from batch to batch, so the end of one is found by halving, and nothing has to be kept beside the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BatchAt = Callable[[int], "EpochOfBatch | None"]
"""The first batch that ends above an offset; None where there is none."""


class EpochOfBatch(NamedTuple):
    """What has to be known of a batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The newest epoch that is not newer than the one asked for, and the offset behind its last record."""

    leader_epoch: int
    end_offset: int


UNKNOWN_EPOCH = EpochEnd(-1, -1)


def end_of_epoch(batch_at: BatchAt, leader_epoch: int, *, start_offset: int, current_start_offset: int) -> EpochEnd:
    """Where `leader_epoch` ended, which is older than the current one.

    The log goes from `start_offset` to where the current leader began, and what it appended since does not matter. The
    answer names `leader_epoch` itself where nothing as old as that is left (as in Kafka's LeaderEpochFileCache).
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
