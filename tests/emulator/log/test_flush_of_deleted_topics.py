"""A topic may be deleted while a thread flushes its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_log import DiskLog
from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.slices import at_once
from dualwrite.broker_emulator.storage.flusher import Flusher
from tests.emulator.log.writers import NOW_MS, batch


@pytest.mark.parametrize("fsync", [Fsync.NEVER, Fsync.INTERVAL])
def test_what_is_deleted_needs_no_flush(tmp_path: Path, fsync: Fsync) -> None:
    """Otherwise the broker would consider the disk broken, and acknowledge nothing any more."""
    storage = DiskLog(tmp_path / "t-0", OpenFiles(), Flusher(fsync), stopped_cleanly=True)
    log = PartitionLog("t", 0, storage=storage, now_ms=NOW_MS)
    assert log.append(batch(b"v"), now_ms=NOW_MS).error is ErrorCode.none
    job = storage.begin_flush()
    at_once(log.destroy())
    job.run()
    job.finished()
    assert not list(tmp_path.iterdir())
