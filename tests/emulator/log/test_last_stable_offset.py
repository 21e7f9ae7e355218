"""The transactions that hold the last stable offset back."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.log.last_stable_offset import CompletedTransaction, UnstableTransactions


def test_nothing_open_is_stable_up_to_the_high_watermark() -> None:
    assert UnstableTransactions().advance_high_watermark(7) == 7


def test_the_earliest_open_transaction_below_the_high_watermark_counts() -> None:
    unstable = UnstableTransactions()
    for producer_id, first_offset in ((1, 10), (2, 20), (1, 10)):
        unstable.begin(producer_id, first_offset)
    assert [unstable.advance_high_watermark(high_watermark) for high_watermark in (5, 10, 15, 25)] == [5, 10, 10, 10]
    assert unstable.complete(1, 30) == CompletedTransaction(1, 10, 30)
    assert unstable.first_open_offset() == 20
    with pytest.raises(KeyError):
        unstable.complete(1, 31)


def test_a_completed_transaction_counts_until_the_high_watermark_passes_its_marker() -> None:
    unstable = UnstableTransactions()
    for producer_id in (1, 2, 3):
        unstable.begin(producer_id, producer_id * 10)
    for producer_id, marker_offset in ((2, 40), (1, 41), (3, 42)):
        unstable.complete(producer_id, marker_offset)
    stable = [unstable.advance_high_watermark(high_watermark) for high_watermark in (40, 41, 42, 43)]
    assert stable == [10, 10, 30, 43]
