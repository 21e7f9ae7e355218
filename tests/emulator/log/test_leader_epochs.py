"""The end of a leader epoch by binary search, compared with a scan of every batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker_emulator.log.offset_lookup import EpochEnd, EpochOfBatch, end_of_epoch

Lengths = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2)), max_size=30)
"""Of each batch: its length, the gap that compaction left before it, and the number of elections before it."""


def batches_of(shape: list[tuple[int, int, int]]) -> tuple[list[EpochOfBatch], int]:
    batches, offset, epoch = [], 0, 0
    for length, gap, elections in shape:
        epoch += elections
        batches.append(EpochOfBatch(offset + gap, offset + gap + length, epoch))
        offset += gap + length
    return batches, offset


def expected(batches: list[EpochOfBatch], leader_epoch: int, start: int, current_start: int) -> EpochEnd:
    kept = [batch for batch in batches if batch.next_offset > start]
    older = [batch.leader_epoch for batch in kept if batch.leader_epoch <= leader_epoch]
    newer = [batch.base_offset for batch in kept if batch.leader_epoch > leader_epoch]
    return EpochEnd(max(older, default=leader_epoch), max(min(newer, default=current_start), start))


@given(shape=Lengths, leader_epoch=st.integers(0, 60), start=st.integers(0, 20), own=st.integers(0, 3))
def test_the_end_is_where_the_next_epoch_begins(
    shape: list[tuple[int, int, int]], leader_epoch: int, start: int, own: int
) -> None:
    batches, current_start = batches_of(shape)
    start = min(start, current_start)
    current = EpochOfBatch(current_start, current_start + own, 1000)  # batches of the current leader

    def batch_at(offset: int) -> EpochOfBatch | None:
        every = [*batches, current] if own else batches
        return next((batch for batch in every if batch.next_offset > offset), None)

    found = end_of_epoch(batch_at, leader_epoch, start_offset=start, current_start_offset=current_start)
    assert found == expected(batches, leader_epoch, start, current_start)
