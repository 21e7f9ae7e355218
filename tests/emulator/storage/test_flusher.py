"""Rounds of the flusher: many logs do not hold up the event loop, and nothing runs that must not run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_log import DiskLog
from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.flusher import Flusher, FlushJob
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.hostile.turns import LONGEST, Turns, until_some_turn
from tests.emulator.log.writers import NOW_MS, batch

MANY = 2_000


class _Log:
    """A log that notes the outcome of its flush."""

    def __init__(self, begin: Callable[[], object] = lambda: None, end: Callable[[], object] = lambda: None) -> None:
        self.begun = self.run = self.finished = 0
        self._begin = begin
        self._end = end

    def begin_flush(self) -> FlushJob:
        self.begun += 1
        self._begin()
        return FlushJob(self._run, self._finished)

    def _run(self) -> None:
        self.run += 1

    def _finished(self) -> None:
        self._end()
        self.finished += 1


def _work() -> None:
    """Take as long as an index, or a wait for a flush, can take."""
    for _ in map(abs, range(100)):
        pass


def _marked(logs: list[_Log], fsync: Fsync = Fsync.INTERVAL) -> Flusher:
    flusher = Flusher(fsync, asyncio.get_running_loop())
    for log in logs:
        flusher.mark(log, now=False)
    return flusher


def test_many_logs_do_not_hold_up_the_loop() -> None:
    async def flush() -> Turns:
        logs = [_Log(_work, _work) for _ in range(MANY)]
        flusher = _marked(logs)
        turns = Turns()
        turns.begin()
        flusher.begin_round()
        await flusher.flushed()
        turns.end()
        await flusher.close()
        assert {(log.begun, log.run, log.finished) for log in logs} == {(1, 1, 1)}
        return turns

    assert asyncio.run(flush()).longest < LONGEST


def test_a_log_marked_while_a_round_begins_is_flushed_with_the_next() -> None:
    async def flush() -> None:
        logs = [_Log(_work) for _ in range(MANY)]
        flusher = _marked(logs, Fsync.ALWAYS)
        flusher.begin_round()
        await until_some_turn(lambda: any(log.begun for log in logs))
        early = next(log for log in logs if log.begun)
        flusher.mark(early, now=True)
        await flusher.flushed()
        assert (early.begun, early.run) == (2, 2)
        assert {log.run for log in logs} == {1, 2}
        await flusher.close()

    asyncio.run(flush())


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("fails_late", [False, True])
def test_a_log_that_fails_to_list_its_files_ends_the_round(count: int, fails_late: bool) -> None:
    def fail() -> None:
        assert threading.current_thread() is threading.main_thread()
        raise ValueError("broken")

    async def flush() -> None:
        broken = _Log(end=fail) if fails_late else _Log(begin=fail)
        flusher = _marked([*(_Log() for _ in range(count - 1)), broken])
        flusher.begin_round()
        with pytest.raises(StorageError, match="broken"):
            await flusher.flushed()
        with pytest.raises(StorageError, match="broken"):
            await flusher.close()

    asyncio.run(flush())


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.INTERVAL])
def test_deleted_logs_need_no_flush(tmp_path: Path, fsync: Fsync) -> None:
    """Otherwise the broker would consider the disk broken, and acknowledge nothing any more."""
    storage = DiskLog(tmp_path / "t-0", OpenFiles(), Flusher(fsync), stopped_cleanly=True)
    log = PartitionLog("t", 0, storage=storage, now_ms=NOW_MS)
    assert log.append(batch(b"v"), now_ms=NOW_MS).error is ErrorCode.none
    job = storage.begin_flush()
    at_once(log.destroy())
    job.run()
    job.finished()
    assert not list(tmp_path.iterdir())
