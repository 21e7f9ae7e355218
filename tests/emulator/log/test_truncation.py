"""A log without its unreplicated tail equals one to which that tail was never appended."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from tests.emulator.log.writers import NOW_MS, batch

PRODUCERS = 3


@dataclass
class Writer:
    """Writes batches and markers that a log's producers may write."""

    log: PartitionLog = field(default_factory=lambda: PartitionLog("t", 0))
    sequences: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def do(self, action: str, producer_id: int) -> None:
        if action == "plain":
            assert self.log.append(batch(), now_ms=NOW_MS).error is ErrorCode.none
        elif action == "produce":
            self.produce(producer_id)
        else:
            self.mark(producer_id, commit=action == "commit")

    def produce(self, producer_id: int) -> None:
        epoch, sequence = self.epochs.get(producer_id, 0), self.sequences.get(producer_id, 0)
        records = batch(
            b"1",
            b"2",
            writer="own",
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        guard = self.log.begin_verification(producer_id, epoch, sequence, supports_epoch_bump=True)
        result = self.log.append(records, now_ms=NOW_MS, guard=guard)
        assert result.error is ErrorCode.none
        self.sequences[producer_id] = sequence + 2

    def mark(self, producer_id: int, *, commit: bool) -> None:
        epoch = self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
        self.sequences[producer_id] = 0
        error = self.log.append_marker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=3,
            commit=commit,
            transaction_version=2,
            now_ms=NOW_MS,
        )
        assert error is ErrorCode.none


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["plain", "produce", "produce", "commit", "abort"]), st.integers(0, PRODUCERS - 1)),
    max_size=20,
)


def facts(log: PartitionLog) -> object:
    return (
        log.log_end_offset,
        log.high_watermark,
        log.last_stable_offset,
        sorted(log.producers()),
        list(log.batches()),
        [
            log.read(offset, max_bytes=1 << 20, read_committed=True, at_least_one=True)
            for offset in range(log.log_end_offset + 1)
        ],
        [log.has_open_transaction(producer_id, epoch) for producer_id in range(PRODUCERS) for epoch in range(20)],
    )


@settings(max_examples=150, deadline=None)
@given(kept=ACTIONS, lost=ACTIONS, then=ACTIONS)
def test_the_tail_was_never_there(
    kept: list[tuple[str, int]], lost: list[tuple[str, int]], then: list[tuple[str, int]]
) -> None:
    written, expected = Writer(), Writer()
    for action in kept:
        written.do(*action)
        expected.do(*action)
    log = written.log
    log.hold_high_watermark()
    for action in lost:
        written.do(*action)
    log.truncate_to_high_watermark(NOW_MS)
    assert facts(log) == facts(expected.log)
    log.release_high_watermark()
    written.sequences, written.epochs = dict(expected.sequences), dict(expected.epochs)
    for action in then:
        written.do(*action)
        expected.do(*action)
    assert facts(log) == facts(expected.log)


def test_the_high_watermark_goes_on_in_whole_batches() -> None:
    writer = Writer()
    log = writer.log
    log.hold_high_watermark()
    writer.do("produce", 0)
    writer.do("commit", 0)
    writer.do("plain", 0)
    for offset in (1, 5, -1):
        with pytest.raises(ValueError):
            log.release_high_watermark(offset)
    seen = []
    log.on_advance.append(lambda: seen.append((log.high_watermark, log.last_stable_offset)))
    for offset in (0, 2, 3, 4):
        log.release_high_watermark(offset)
    assert seen == [(2, 0), (3, 3), (4, 4)]  # records become stable when their marker is replicated
    writer.do("plain", 0)
    assert log.high_watermark == 4
    log.release_high_watermark()
    assert log.high_watermark == 5


def test_a_new_leader_has_verified_nothing() -> None:
    log = PartitionLog("t", 0)
    guard = log.begin_verification(1, 0, 0, supports_epoch_bump=True)
    log.begin_leader_epoch(1)
    records = batch(b"1", writer="own", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    result = log.append(records, now_ms=NOW_MS, guard=guard)
    assert result.error is ErrorCode.invalid_txn_state
    assert (log.leader_epoch, log.leader_epoch_start_offset) == (1, 0)
