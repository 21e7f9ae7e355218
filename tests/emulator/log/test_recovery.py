"""A log on disk after a crash: torn writes are truncated wherever they tore, damage is reported as an error."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.flusher import Flusher, FlushJob
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.log.disk import contents, open_log, segment_files
from tests.emulator.log.writers import NOW_MS, batch, end_transaction


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orders-0"


def append(log: PartitionLog, *values: bytes, sequence: int = -1, producer_id: int = -1) -> None:
    epoch = -1 if producer_id < 0 else 0
    records = batch(*values, writer="own", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    assert log.append(records, now_ms=NOW_MS).error is ErrorCode.none


def append_in_transaction(log: PartitionLog, value: bytes, sequence: int) -> None:
    records = batch(value, writer="own", producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
    guard = log.begin_verification(7, 0, sequence, supports_epoch_bump=True)
    assert log.append(records, now_ms=NOW_MS, guard=guard).error is ErrorCode.none


@pytest.mark.parametrize("checkpointed", [pytest.param(False, marks=pytest.mark.proof), True])
def test_a_log_cut_at_any_byte_is_the_log_of_its_whole_batches(folder: Path, checkpointed: bool) -> None:
    log = open_log(folder)
    append(log, b"first", b"second")
    if checkpointed:
        log.close()
        log = open_log(folder)
    [file] = segment_files(folder)
    kept_size = file.stat().st_size
    ends, states = [kept_size], [(log.log_end_offset, log.last_stable_offset, log.producers(), contents(log))]
    steps: list[Callable[[], None]] = [
        lambda: append_in_transaction(log, b"third", 0),
        lambda: append_in_transaction(log, b"fourth", 1),
        lambda: end_transaction(log, commit=False),
        lambda: append(log, b"last", b"one"),
    ]
    for step in steps:
        step()
        ends.append(file.stat().st_size)
        states.append((log.log_end_offset, log.last_stable_offset, log.producers(), contents(log)))
    for size in range(kept_size, ends[-1] + 1):
        copy = folder.with_name(f"cut-{size}")
        shutil.copytree(folder, copy)
        os.truncate(copy / file.name, size)
        found = open_log(copy)
        whole = max(index for index, end in enumerate(ends) if end <= size)
        end_offset, stable_offset, producers, records = states[whole]
        assert (found.log_end_offset, found.last_stable_offset) == (end_offset, stable_offset)
        assert (found.producers(), contents(found)) == (producers, records)
        assert (copy / file.name).stat().st_size == ends[whole]
        append(found, b"goes on")
        assert contents(open_log(copy))[-1][2] == b"goes on"
        shutil.rmtree(copy)


def test_every_damaged_byte_in_the_middle_is_noticed(folder: Path) -> None:
    log = open_log(folder)
    append(log, b"first")
    size = segment_files(folder)[0].stat().st_size
    append(log, b"second")
    [file] = segment_files(folder)
    intact = file.read_bytes()
    for position in range(size):
        if 12 <= position < 16:  # the leader epoch: not covered by the CRC, in Kafka neither
            continue
        damaged = bytearray(intact)
        damaged[position] ^= 0x41
        file.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"00000000000000000000\.log is damaged at position 0 .* intact batch"):
            open_log(folder)
        assert file.read_bytes() == damaged


def test_damage_met_by_a_reader_is_an_error(folder: Path) -> None:
    log = open_log(folder)
    append(log, b"first")
    append(log, b"second")
    [file] = segment_files(folder)
    data = bytearray(file.read_bytes())
    data[8:12] = b"\x7f\0\0\0"
    file.write_bytes(data)
    response = log.read(1, max_bytes=100, read_committed=False, at_least_one=True)
    assert response.error is ErrorCode.kafka_storage_error
    with pytest.raises(StorageError, match="damaged"):
        list(log.batches())


@pytest.mark.parametrize("suffix", [".index", ".snapshot"])
@pytest.mark.parametrize("how", ["missing", "empty", "damaged"])
def test_indexes_and_snapshots_are_rebuilt(folder: Path, suffix: str, how: str) -> None:
    log = open_log(folder, segment_bytes=400)
    for number in range(8):
        append_in_transaction(log, b"%d" % number, number)
    end_transaction(log, commit=False)
    append(log, b"outside")
    log.close()
    for file in folder.glob(f"*{suffix}"):
        if how == "missing":
            file.unlink()
        elif file.stat().st_size:
            file.write_bytes(b"" if how == "empty" else file.read_bytes()[:-1] + b"\xee")
    found = open_log(folder, segment_bytes=400)
    assert list(found.batches()) == list(log.batches())
    assert found.producers() == log.producers()
    assert found.aborted_transactions(0, 10) == log.aborted_transactions(0, 10) == [(7, 0)]


# writing


def test_a_full_disk_refuses_the_batch_and_stores_no_part_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(folder)
    append(log, b"before", sequence=0, producer_id=7)
    pwrite = os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return pwrite(file, data[: len(data) - 5], offset)

    monkeypatch.setattr(os, "pwrite", full)
    records = batch(b"refused", writer="own", producer_id=7, producer_epoch=0, base_sequence=1)
    result = log.append(records, now_ms=NOW_MS)
    assert result.error is ErrorCode.kafka_storage_error
    assert result.error_message is not None
    assert result.error_message.endswith("cannot be written: No space left on device")
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert log.append(records, now_ms=NOW_MS).base_offset == 1
    for found in (log, open_log(folder)):
        assert [value for _, _, value in contents(found)] == [b"before", b"refused"]


def test_more_segments_than_files_may_be_open(folder: Path) -> None:
    log = open_log(folder, files=OpenFiles(limit=2), segment_bytes=1)
    for number in range(10):
        append(log, b"%d" % number)
    assert [value for _, _, value in contents(log)] == [b"%d" % number for number in range(10)]


def test_a_log_opens_when_connections_use_all_other_descriptors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_file = 0, os.open

    def scarce(path: Path, *arguments: Any, **named: Any) -> int:
        nonlocal opened
        opened += 1
        if opened % 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_file(path, *arguments, **named)

    log = open_log(folder, segment_bytes=1)
    append(log, b"0")
    monkeypatch.setattr(os, "open", scarce)
    for number in range(1, 5):
        append(log, b"%d" % number)
    assert [value for _, _, value in contents(log)] == [b"%d" % number for number in range(5)]


async def flush_with(fail: Callable[[int], None]) -> Flusher:
    """Run a round whose one job fails as `fail` does, the first time, the second time, ..."""

    class Log:
        tries = 0

        def begin_flush(self) -> FlushJob:
            def run() -> None:
                self.tries += 1
                fail(self.tries)

            return FlushJob(run, lambda: None)

    flusher = Flusher(Fsync.ALWAYS, asyncio.get_running_loop())
    flusher.mark(Log(), now=False)
    await flusher.flushed()
    await flusher.close()
    return flusher


def test_a_flush_waits_for_a_descriptor_and_for_nothing_else() -> None:
    def third_time(tries: int) -> None:
        if tries < 3:
            raise OSError(errno.EMFILE, "Too many open files")

    def never(tries: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    asyncio.run(flush_with(third_time)).check()
    with pytest.raises(StorageError, match="Input/output error"):
        asyncio.run(flush_with(never))
