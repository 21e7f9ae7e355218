"""The data directory of an emulator: contents that survive a restart, exclusive use, and error messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile, VirtualClock
from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.files import write_atomically
from dualwrite.broker_emulator.log.record_batch import iter_records
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.storage.journal import MetadataJournal, producer_ids_allocated
from dualwrite.broker_emulator.transactions.producer_ids import PRODUCER_ID_BLOCK_SIZE
from tests.emulator.api.raw_client import RawClient, milliseconds, plain_batch, produce_fields
from tests.emulator.control.client import Client
from tests.support.conditions import until


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def values(emulator: Emulator, topic: str = "t", partition: int = 0) -> list[bytes]:
    return [record.value or b"" for stored in emulator.log(topic, partition).batches for record in iter_records(stored)]


def test_remains_of_a_deleted_topic_after_a_crash_are_removed(data_dir: Path, tmp_path: Path) -> None:
    with Emulator(topics={"t": 1, "gone": 2, "kept": 1}, data_dir=data_dir) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        for topic in ("t", "gone", "kept"):
            client.produce(topic, plain_batch(b"1"))
        before = tmp_path / "before"
        shutil.copytree(data_dir / "gone-0", before)
        client.delete_topic("gone")
        shutil.copytree(data_dir, tmp_path / "killed")
    killed = tmp_path / "killed"
    *lines, destroyed = (killed / "metadata.journal").read_bytes().splitlines(keepends=True)
    assert b"destroyed" in destroyed
    (killed / "metadata.journal").write_bytes(b"".join(lines))
    (killed / "log-ends").unlink()
    for name in ("gone-0", "gone-1.0123abcd-delete", "gone-2", "gone-0-delete.old", "kept-0-delete"):
        shutil.copytree(before, killed / name)
    (killed / "gone-1.0123abcd-delete" / "notes.txt").write_text("not the broker's")
    (killed / "gone-2" / "00000000000000000000.log").unlink()  # or the missing file of ends would make it suspicious
    with Emulator(data_dir=killed) as emulator:
        assert values(emulator) == [b"1"]
        assert values(emulator, "kept") == [b"1"]
    left = {path.name for path in killed.iterdir() if path.is_dir()}
    assert left == {"t-0", "kept-0", "gone-1.0123abcd-delete", "gone-2", "gone-0-delete.old", "kept-0-delete"}
    assert [path.name for path in (killed / "gone-1.0123abcd-delete").iterdir()] == ["notes.txt"]


def test_no_producer_id_is_handed_out_twice(data_dir: Path) -> None:
    seen: list[int] = []
    for _ in range(3):
        with Emulator(data_dir=data_dir, clock=VirtualClock()) as emulator:  # its time starts over
            client = RawClient(emulator.bootstrap_servers)
            for _ in range(2):
                answer = client.call(
                    "init_producer_id", 4, transactional_id=None, transaction_timeout=milliseconds(1000)
                )
                seen.append(answer.producer_id)
    assert len(set(seen)) == len(seen)
    journal = MetadataJournal(data_dir / "metadata.journal", sync=False)
    journal.open()
    assert journal.next_producer_id == (max(seen) // PRODUCER_ID_BLOCK_SIZE + 1) * PRODUCER_ID_BLOCK_SIZE


def test_a_stop_waits_for_the_files_that_are_being_written(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment becomes complete while a round of the flusher writes its old state down."""
    begun = threading.Event()
    writing: set[Path] = set()

    def write_slowly(path: Path, data: bytes, *, sync: bool) -> None:
        assert path not in writing
        writing.add(path)
        begun.set()
        time.sleep(0.02)  # a new owner would have started by then
        write_atomically(path, data, sync=sync)
        writing.discard(path)

    monkeypatch.setattr("dualwrite.broker_emulator.log.disk_log.write_atomically", write_slowly)
    with Emulator(topics={"t": 1}, data_dir=data_dir, config=BrokerConfig(log_segment_bytes=150)) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        while not begun.is_set():
            client.produce("t", plain_batch(b"1"))
        for _ in range(3):
            client.produce("t", plain_batch(b"2"))
    assert writing == set()


def finalized(emulator: Emulator) -> tuple[int, dict[str, int]]:
    answer = RawClient(emulator.bootstrap_servers).call(
        "api_versions", 4, client_software_name="raw", client_software_version="1"
    )
    return answer.finalized_features_epoch, {
        row.name: row.max_version_level for row in answer.finalized_features if row.name == "transaction.version"
    }


def test_a_changed_transaction_version_stays(data_dir: Path) -> None:
    config = BrokerConfig(transaction_version=2, transaction_state_log_num_partitions=1)
    with Emulator(data_dir=data_dir, config=config) as emulator:
        assert finalized(emulator) == (0, {"transaction.version": 2})
        emulator.set_transaction_version(1)
        with pytest.raises(ValueError, match="does not support"):
            emulator.set_transaction_version(3)
    for number in range(2):
        with Emulator(data_dir=data_dir, config=config) as emulator:
            assert finalized(emulator) == (1, {"transaction.version": 1})
            assert RawClient(emulator.bootstrap_servers).init_producer_id(f"x-{number}").error_code == 0
    old = Emulator(data_dir=data_dir, config=replace(config, profile=Profile.KAFKA_3_9))
    with pytest.raises(StorageError, match=r"was last used with transaction\.version 1, which kafka-3\.9 does not"):
        old.start()
    with Emulator(data_dir=data_dir, config=config) as emulator:
        emulator.set_transaction_version(0)
    with Emulator(data_dir=data_dir, config=config) as emulator:
        assert finalized(emulator) == (2, {})
        assert RawClient(emulator.bootstrap_servers).init_producer_id("y").error_code == 0
        written = [value[:2] for value in values(emulator, "__transaction_state")]
        assert written == [b"\0\1", b"\0\1", b"\0\0"]  # the coordinator follows it too
    with Emulator(data_dir=data_dir, config=replace(config, profile=Profile.KAFKA_3_9)) as emulator:
        assert finalized(emulator) == (2, {})


def test_an_update_that_cannot_be_kept_changes_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = {"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2}

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with Emulator(data_dir=data_dir) as emulator:
        with monkeypatch.context() as patched, RawClient(emulator.bootstrap_servers) as client:
            patched.setattr(os, "pwrite", full)
            answer = client.call("update_features", 1, feature_updates=(update,), validate_only=False)
            assert answer.error_code is ErrorCode.kafka_storage_error
            assert "No space left on device" in answer.error_message
        assert finalized(emulator) == (0, {"transaction.version": 2})


def test_a_directory_has_one_user_at_a_time(data_dir: Path) -> None:
    before = set(threading.enumerate())
    with Emulator(data_dir=data_dir) as emulator:
        with pytest.raises(StorageError, match=r"is in use by another broker \(process \d+\)"):
            Emulator(data_dir=data_dir).start()
        refused = subprocess.run(
            [sys.executable, "-m", "dualwrite.broker_emulator", "--data-dir", str(data_dir)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert refused.returncode == 1
        assert refused.stdout == ""
        assert "is in use by another broker" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert RawClient(emulator.bootstrap_servers).call("api_versions", 0).error_code is ErrorCode.none
    with Emulator(data_dir=data_dir):
        pass
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith(("broker-emulator", "fsync"))]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"the data directory .* cannot be used: Not a directory"):
        Emulator(data_dir=tmp_path / "file" / "data").start()
    with pytest.raises(StorageError, match="cannot be used"):
        Emulator(data_dir=tmp_path / "file").start()


def test_internal_topics_keep_their_number_of_partitions(data_dir: Path) -> None:
    with Emulator(data_dir=data_dir):
        pass
    other = Emulator(data_dir=data_dir, config=BrokerConfig(transaction_state_log_num_partitions=3))
    with pytest.raises(StorageError, match="__transaction_state was created with 50 partitions, not 3"):
        other.start()
    with Emulator(data_dir=data_dir):
        pass


def test_the_journal_cut_at_any_byte_is_the_journal_of_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metadata.journal"
    journal = MetadataJournal(path, sync=False)
    journal.open()
    sizes = [path.stat().st_size]
    for number in range(1, 4):
        journal.record(producer_ids_allocated(number * 1000))
        sizes.append(path.stat().st_size)
    data = path.read_bytes()
    for size in range(sizes[0], len(data) + 1):
        path.write_bytes(data[:size])
        found = MetadataJournal(path, sync=False)
        found.open()
        whole = sum(size >= end for end in sizes) - 1
        assert found.next_producer_id == (whole * 1000 or None)
        assert found.cluster_id == journal.cluster_id
        found.record(producer_ids_allocated(9000))
        again = MetadataJournal(path, sync=False)
        again.open()
        assert again.next_producer_id == 9000


def test_damage_within_the_journal_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metadata.journal"
    journal = MetadataJournal(path, sync=False)
    journal.open()
    journal.record(producer_ids_allocated(1000))
    data = bytearray(path.read_bytes())
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        path.write_bytes(damaged)
        if position == len(data) - 1:  # the end of the last line: as if it were cut short
            continue
        with pytest.raises(StorageError, match=r"line \d of .* is damaged"):
            MetadataJournal(path, sync=False).open()


def test_a_record_that_no_disk_stores_is_not_acknowledged(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Emulator(topics={"t": 1}, data_dir=data_dir) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        client.produce("t", plain_batch(b"1"))

        def full(*_: Any) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            refused = client.produce("t", plain_batch(b"2"))
            assert refused.error_code is ErrorCode.kafka_storage_error
            assert "No space left on device" in refused.error_message
            with pytest.raises(
                StorageError, match=r"(metadata\.journal|log-ends) cannot be written: No space left on device"
            ):
                emulator.create_topic("new")
        assert client.produce("t", plain_batch(b"3")).base_offset == 1
        assert values(emulator) == [b"1", b"3"]
        emulator.create_topic("new")


def test_a_full_disk_is_reported_to_administrators(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tuple({"topic_id": None, "name": name} for name in ("t", "new"))

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with (
        Emulator(topics={"t": 1}, data_dir=data_dir, control="127.0.0.1:0") as emulator,
        RawClient(emulator.bootstrap_servers) as client,
        monkeypatch.context() as patched,
    ):
        patched.setattr(os, "pwrite", full)
        options = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
        described = client.call("metadata", 12, topics=asked, **options).topics
        assert [topic.error_code for topic in described] == [ErrorCode.none, ErrorCode.kafka_storage_error]
        row = client.delete_topic("t")
        assert row.error_code is ErrorCode.kafka_storage_error
        assert "No space left on device" in row.error_message
        assert (
            client.init_producer_id(None).error_code is ErrorCode.kafka_storage_error
        )  # a block of ids is stored first
        error = Client(emulator.control_url).refused(507, "DELETE", "/v1/topics/t")
        assert error["code"] == "storage"
        assert "No space left on device" in error["message"]


@pytest.mark.parametrize("acks", [1, -1])
def test_nothing_is_acknowledged_or_shown_before_the_disk_has_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    disk_is_free, rounds = threading.Event(), 0
    fdatasync = os.fdatasync

    def busy(file: int) -> None:
        nonlocal rounds
        rounds += 1
        disk_is_free.wait(30)
        fdatasync(file)

    with Emulator(topics={"t": 1}, data_dir=data_dir, config=BrokerConfig(fsync=Fsync.ALWAYS)) as emulator:
        clients = [RawClient(emulator.bootstrap_servers) for _ in range(4)]
        reader = RawClient(emulator.bootstrap_servers)
        first = plain_batch(b"1")
        clients[0].produce("t", first)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", busy)
            sent = []
            for client in clients:
                fields = produce_fields(12, "t", plain_batch(b"2"), acks=acks, timeout_ms=30_000)
                sent.append(client.send("produce", 12, **fields))
            until(lambda: emulator.log("t").log_end_offset == 5)
            assert all(client.is_silent() for client in clients)
            assert emulator.log("t").high_watermark == 1
            assert (
                reader.fetch("t", offset=0).records == emulator.log("t").batches[0]
            )  # other clients are served meanwhile
            disk_is_free.set()
            answers = [
                client.receive("produce", 12, correlation_id).responses[0].partition_responses[0]
                for client, correlation_id in zip(clients, sent, strict=True)
            ]
        assert sorted(answer.base_offset for answer in answers) == [1, 2, 3, 4]
        assert rounds <= 2  # requests that came while the disk was busy share a round


def test_an_fsync_that_fails_ends_in_an_error_for_the_client(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    emulator = Emulator(topics={"t": 1}, data_dir=data_dir, config=BrokerConfig(fsync=Fsync.ALWAYS)).start()
    client = RawClient(emulator.bootstrap_servers)
    client.produce("t", plain_batch(b"1"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        assert client.produce("t", plain_batch(b"2"), acks=1).error_code is not ErrorCode.none
    assert client.produce("t", plain_batch(b"3"), acks=1).error_code is ErrorCode.kafka_storage_error
    assert emulator.log("t").high_watermark == 1
    with pytest.raises(StorageError, match="flushing to the disk failed"):
        emulator.stop()
