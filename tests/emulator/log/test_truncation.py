"""A log without its unreplicated tail equals one to which that tail was never appended."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.log.partition_log import PartitionLog
from tests.emulator.log.test_log_model import NO_HOLDS, PRODUCERS, History
from tests.emulator.log.writers import NOW_MS
from tests.support.proof_only import examples

Steps = list[tuple[str, int, int]]


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
        [log.has_open_transaction(producer_id, epoch) for producer_id in PRODUCERS for epoch in range(20)],
    )


@settings(max_examples=examples(150), deadline=None)
@given(kept=st.lists(NO_HOLDS, max_size=20), lost=st.lists(NO_HOLDS, max_size=20), then=st.lists(NO_HOLDS, max_size=20))
def test_the_tail_was_never_there(kept: Steps, lost: Steps, then: Steps) -> None:
    written, expected = History(2, "own"), History(2, "own")
    for step in kept:
        written.step(*step)
        expected.step(*step)
    log = written.log
    log.hold_high_watermark()
    for step in lost:
        written.step(*step)
    log.truncate_to_high_watermark(NOW_MS)
    assert facts(log) == facts(expected.log)
    log.release_high_watermark()
    written.end_offset, written.producers = expected.end_offset, deepcopy(expected.producers)
    for step in then:
        written.step(*step)
        expected.step(*step)
    assert facts(log) == facts(expected.log)
