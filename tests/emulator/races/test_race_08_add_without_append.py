"""Race 8: the implicit add succeeds and the append fails: the partition is part of the transaction, without data."""

from __future__ import annotations

import pytest

from tests.emulator.races.racers import Racer, committed_read, completion, described_producer, racing

OUT_OF_ORDER = 45


@pytest.mark.parametrize("commit", [False, True])
def test_the_end_writes_a_marker_there_all_the_same(commit: bool) -> None:
    with racing() as emulator:
        racer = Racer(emulator)
        racer.init()
        assert racer.write(1) == 0
        assert racer.produce(0, sequence=5) == OUT_OF_ORDER
        (described,) = emulator.transactions()
        assert described.topic_partitions == (("t", 0), ("t", 1))
        assert emulator.log("t", 0).log_end_offset == 0
        ended, completed = racer.producer, completion(emulator)
        assert racer.end(commit=commit) == 0
        completed.wait()
        assert committed_read(racer.client) == (1, [])
        shown = described_producer(racer.client)
        assert (shown.producer_id, shown.producer_epoch) == (ended.producer_id, ended.producer_epoch + 1)
        assert (shown.current_txn_start_offset, shown.last_sequence) == (-1, -1)


def test_the_next_transaction_begins_there_at_zero() -> None:
    with racing() as emulator:
        racer = Racer(emulator)
        racer.init()
        assert racer.produce(0, sequence=5) == OUT_OF_ORDER
        completed = completion(emulator)
        assert racer.end(commit=True) == 0
        completed.wait()
        assert racer.write() == 0
