"""Partitions on disk for the tests, which die and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_log import DiskLog
from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.flusher import Flusher
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.record_batch import iter_records
from tests.emulator.log.writers import NOW_MS


def open_log(
    folder: Path,
    *,
    fsync: Fsync = Fsync.NEVER,
    stopped_cleanly: bool = False,
    files: OpenFiles | None = None,
    **settings: Any,
) -> PartitionLog:
    """Open the log in `folder` as a starting broker does, while an earlier instance may still have it open."""
    storage = DiskLog(folder, files or OpenFiles(), Flusher(fsync), stopped_cleanly=stopped_cleanly)
    return PartitionLog("orders", 0, config=LogConfig(**settings), storage=storage, now_ms=NOW_MS)


def segment_files(folder: Path) -> list[Path]:
    """Return the files with batches, oldest first."""
    return sorted(folder.glob("*.log"))


def contents(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of every stored record, control records included."""
    return [(record.offset, record.key, record.value) for batch in log.batches() for record in iter_records(batch)]
