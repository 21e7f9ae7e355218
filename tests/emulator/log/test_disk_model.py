"""Random histories of one partition on disk, with restarts anywhere, beside the same history in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log import disk_log
from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.log.disk import open_log
from tests.emulator.log.test_log_model import NO_HOLDS, PRODUCERS, STEPS, History, check_replay, consume
from tests.support.proof_only import examples

RESTARTS = st.tuples(st.just("restart"), st.sampled_from([0, 1]), st.just(0))
DELETIONS = st.tuples(st.just("delete"), st.integers(0, 10), st.just(0))


@contextmanager
def closing_all(files: OpenFiles) -> Iterator[None]:
    try:
        yield
    finally:
        files.close_all()


def restarted(folder: Path, log: PartitionLog, *, cleanly: bool, segment_bytes: int, fsync: Fsync) -> PartitionLog:
    if cleanly:
        log.close()
    return open_log(folder, segment_bytes=segment_bytes, fsync=fsync, stopped_cleanly=cleanly)


@given(
    steps=st.lists(NO_HOLDS | NO_HOLDS | RESTARTS, min_size=5, max_size=60),
    transaction_version=st.sampled_from([0, 2]),
    segment_bytes=st.sampled_from([100, 400, 1500, 1 << 20]),
    checkpoint_bytes=st.sampled_from([200, 1 << 20]),
    fsync=st.sampled_from([Fsync.ALWAYS, Fsync.NEVER]),
    data=st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_log_on_disk_is_the_log_in_memory(
    steps: list[tuple[str, int, int]],
    transaction_version: int,
    segment_bytes: int,
    checkpoint_bytes: int,
    fsync: Fsync,
    data: st.DataObject,
) -> None:
    config = LogConfig(segment_bytes=segment_bytes)
    memory = History(transaction_version, "own", PartitionLog("orders", 0, config=config))
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(disk_log, "CHECKPOINT_INTERVAL_BYTES", checkpoint_bytes),
        patch.object(disk_log, "_SNAPSHOT_COST", 0),
        patch("os.fdatasync"),
        patch("os.fsync"),
    ):
        folder = Path(name) / "orders-0"
        disk = History(transaction_version, "own", open_log(folder, segment_bytes=segment_bytes, fsync=fsync))
        for step in [*steps, ("restart", 0, 0)]:
            if step[0] == "restart":
                disk.log = restarted(folder, disk.log, cleanly=bool(step[1]), segment_bytes=segment_bytes, fsync=fsync)
            else:
                memory.step(*step)
                disk.step(*step)  # retries among them: a duplicate is recognised after a restart
        position = data.draw(st.integers(0, memory.end_offset), label="position")
        max_bytes = data.draw(st.sampled_from([1, 150, 400, 1 << 20]), label="max_bytes")
        assert disk.log.log_end_offset == memory.log.log_end_offset
        assert disk.log.last_stable_offset == memory.log.last_stable_offset
        assert sorted(disk.log.producers()) == sorted(memory.log.producers())
        for offset in range(memory.end_offset + 1):
            for read_committed in (False, True):
                read = partial(
                    PartitionLog.read,
                    fetch_offset=offset,
                    max_bytes=max_bytes,
                    read_committed=read_committed,
                    at_least_one=True,
                )
                assert read(disk.log) == read(memory.log)
        assert consume(disk.log, position, max_bytes) == memory.committed_from(position)
        check_replay(disk)
        for producer_id in PRODUCERS:
            disk.step("retry", producer_id, 0)


@given(
    steps=st.lists(NO_HOLDS | NO_HOLDS | RESTARTS | DELETIONS, min_size=5, max_size=60),
    segment_bytes=st.sampled_from([100, 400, 1 << 20]),
    checkpoint_bytes=st.sampled_from([200, 1 << 20]),
)
@settings(max_examples=examples(60), deadline=None)
def test_deleted_records_stay_deleted_and_others_stay(
    steps: list[tuple[str, int, int]], segment_bytes: int, checkpoint_bytes: int
) -> None:
    """And leader epochs, one for each start, end where the next one begins."""
    start, epoch_starts, files = 0, [0], OpenFiles()
    with (
        closing_all(files),
        tempfile.TemporaryDirectory() as name,
        patch.object(disk_log, "CHECKPOINT_INTERVAL_BYTES", checkpoint_bytes),
    ):
        folder = Path(name) / "orders-0"
        history = History(2, "own", open_log(folder, segment_bytes=segment_bytes, files=files))
        for step in [*steps, *(("end", producer_id, 1) for producer_id in PRODUCERS), ("restart", 0, 0)]:
            if step[0] == "restart":
                cleanly = bool(step[1])
                if cleanly:
                    history.log.close()
                files.close_all()
                history.log = open_log(folder, segment_bytes=segment_bytes, files=files, stopped_cleanly=cleanly)
                history.log.begin_leader_epoch(len(epoch_starts))
                epoch_starts.append(history.log.log_end_offset)
            elif step[0] == "delete":
                start = max(start, history.end_offset * step[1] // 10)
                assert at_once(history.log.delete_records(start)) is ErrorCode.none
            else:
                history.step(*step)
            assert (history.log.log_start_offset, history.log.log_end_offset) == (start, history.end_offset)
        assert consume(history.log, start, 400) == history.committed_from(start)
        for epoch, end in enumerate([*epoch_starts[1:], history.end_offset]):
            assert history.log.end_of_epoch(epoch).end_offset == max(end, start)


@given(
    steps=st.lists(STEPS, min_size=5, max_size=40),
    segment_bytes=st.sampled_from([100, 400, 1 << 20]),
)
@settings(max_examples=examples(40), deadline=None)
def test_an_unclean_election_leaves_the_same_on_disk_and_in_memory(
    steps: list[tuple[str, int, int]], segment_bytes: int
) -> None:
    memory = History(2, "own", PartitionLog("orders", 0, config=LogConfig(segment_bytes=segment_bytes), now_ms=1))
    with tempfile.TemporaryDirectory() as name, patch.object(disk_log, "CHECKPOINT_INTERVAL_BYTES", 200):
        folder = Path(name) / "orders-0"
        disk = History(2, "own", open_log(folder, segment_bytes=segment_bytes))
        for step in steps:
            memory.step(*step)
            disk.step(*step)
        for history in (memory, disk):
            history.log.truncate_to_high_watermark(1)
            history.log.release_high_watermark()
        reopened = open_log(folder, segment_bytes=segment_bytes)
        for log in (disk.log, reopened):
            assert list(log.batches()) == list(memory.log.batches())
            assert sorted(log.producers()) == sorted(memory.log.producers())
            assert log.last_stable_offset == memory.log.last_stable_offset
            assert log.aborted_transactions(0, log.log_end_offset) == memory.log.aborted_transactions(
                0, log.log_end_offset
            )
