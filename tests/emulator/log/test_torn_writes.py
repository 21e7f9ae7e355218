"""Writes torn by a crash, also among lookalikes of batches, and losses that only another boot explains."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log import log_ends, recovery
from dualwrite.broker_emulator.log.disk_log import DiskLog
from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.flusher import Flusher
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.log_ends import JournalMark, LogEnds
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.record_batch import build_batch, parse_header, stamp
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.log.disk import open_log, segment_files
from tests.emulator.log.writers import NOW_MS, batch

TOPIC_ID = uuid.UUID(int=7)


class Machine:
    """A disk with one partition; its process dies with each `start`, the machine with `reboot`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = path / "orders-0"
        self._path = path
        self._boot_file = path / "boot_id"
        monkeypatch.setattr(log_ends, "_BOOT_FILE", self._boot_file)
        self.flusher = Flusher(Fsync.NEVER)
        self.reboot()

    def reboot(self) -> None:
        self._boot_file.write_text(str(uuid.uuid4()))

    def start(self, fsync: Fsync = Fsync.INTERVAL) -> PartitionLog:
        ends = LogEnds(self._path / "log-ends")
        ends.read()
        self.flusher = Flusher(fsync)
        end = ends.of(TOPIC_ID, 0)
        storage = DiskLog(self.folder, OpenFiles(), self.flusher, stopped_cleanly=False, end=end)
        log = PartitionLog("orders", 0, config=LogConfig(), storage=storage, now_ms=NOW_MS)
        ends.open(JournalMark(1, 0))
        return log

    @property
    def file(self) -> Path:
        [file] = segment_files(self.folder)
        return file


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def append(log: PartitionLog, *values: bytes) -> None:
    assert log.append(batch(*values, writer="own"), now_ms=NOW_MS).error is ErrorCode.none


def looks_like_a_batch(base_offset: int, value: bytes = b"inside") -> bytes:
    data = build_batch([(None, value)], timestamp_ms=NOW_MS)
    return stamp(data, parse_header(data), base_offset=base_offset, leader_epoch=0)


@pytest.mark.parametrize("base_offset", [0, 1, 2, 10**9])
def test_a_torn_write_is_truncated_for_every_content(machine: Machine, base_offset: int) -> None:
    log = machine.start()
    append(log, b"acknowledged")
    acknowledged = machine.file.stat().st_size
    torn = batch(b"before " + looks_like_a_batch(base_offset) * 3 + b" after", writer="own")
    for size in range(1, len(torn), 11):
        with machine.file.open("ab") as file:
            file.write(torn[:size])
        found = machine.start()
        assert found.log_end_offset == 1
        assert machine.file.stat().st_size == acknowledged


def test_the_search_for_an_intact_batch_takes_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "orders-0"
    append(open_log(folder), b"acknowledged")
    [file] = segment_files(folder)
    header = looks_like_a_batch(5)
    size = 2 << 20
    ends = [max(size - at - 1200, 61) for at in range(0, size - 1000, 61)]  # each claims to reach almost to the end
    claims = [header[:8] + end.to_bytes(4, "big") + header[12:61] for end in ends]
    with file.open("ab") as appended:
        appended.write(b"\0" * 61 + b"".join(claims))
    checked = 0

    def counted(data: memoryview) -> int:
        nonlocal checked
        checked += len(data)
        return crc32c(data)

    monkeypatch.setattr(recovery, "crc32c", counted)
    with pytest.raises(StorageError, match="an intact batch is found"):
        open_log(folder)
    assert checked < 10 * size


def test_after_a_reboot_only_synced_records_are_required(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    log = machine.start()
    append(log, b"synced")
    machine.flusher.flush()
    synced = machine.file.stat().st_size
    append(log, b"not synced")
    machine.reboot()
    os.truncate(machine.file, synced)
    assert machine.start().log_end_offset == 1
    assert "the records up to offset 1, acknowledged before they were on the disk, are lost" in caplog.text
    machine.reboot()
    os.truncate(machine.file, synced - 1)
    with pytest.raises(StorageError, match="acknowledged"):
        machine.start()


def test_with_fsync_always_unflushed_records_are_not_required(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    log = machine.start(Fsync.ALWAYS)
    append(log, b"acknowledged")
    size = machine.file.stat().st_size
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StorageError, match="flushing to the disk failed"):
        append(log, b"refused")
    os.truncate(machine.file, size + 5)
    assert machine.start(Fsync.ALWAYS).log_end_offset == 1
    assert machine.file.stat().st_size == size


def test_records_truncated_by_a_new_leader_are_not_missed(machine: Machine) -> None:
    log = machine.start()
    append(log, b"replicated")
    log.hold_high_watermark()
    append(log, b"not replicated")
    log.truncate_to_high_watermark(NOW_MS)
    assert machine.start().log_end_offset == 1
