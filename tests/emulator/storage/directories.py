"""A data directory with a little of everything, the acknowledged contents, and damage to its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.record_batch import CorruptRecordError, iter_records, split_batches
from dualwrite.broker_emulator.log.segments import StorageError
from tests.emulator.api.offset_requests import commit
from tests.emulator.api.raw_client import RawClient, batch_of, plain_batch
from tests.support.conditions import until

CONFIG: Final = BrokerConfig(
    transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1, log_segment_bytes=400, fsync=Fsync.INTERVAL
)
TOPICS: Final = {"t": 2, "idle": 1, "trimmed": 1, "gone": 1}
FOREIGN: Final = (
    "backup-2024/copy.log",
    "backup-2024/00000000000000000000.txt",
    "notes.txt",
    "t-0/mine.log",
    "t-0/a.tmp",
)
"""Files that no broker wrote."""

_DERIVED: Final = (".index", ".snapshot", ".tmp")
_ANEW: Final = (".lock", "metadata.journal", "log-ends", ".clean-shutdown")
_Records = list[tuple[int, bytes | None, bytes | None]]


class Contents(NamedTuple):
    """The contents that a cluster has acknowledged."""

    cluster_id: str
    topics: dict[str, tuple[str, dict[str, str | None]]]
    """Id and settings."""
    records: dict[tuple[str, int], tuple[int, _Records]]
    """For each partition: the log start offset, and offset, key and value of every record."""
    users: list[str]
    group_offset: int


class DamagedRecordsError(Exception):
    """A reader got records that it can see to be damaged, or an error."""


def fill(emulator: Emulator) -> None:
    """Store a sample of each kind."""
    with RawClient(emulator.bootstrap_servers) as client:
        for number in range(12):
            assert client.produce("t", plain_batch(b"%d" % number * 20)).error_code is ErrorCode.none
            assert client.produce("trimmed", plain_batch(b"%d" % number, b"x")).error_code is ErrorCode.none
        assert client.produce("t", plain_batch(b"alone"), partition=1).error_code is ErrorCode.none
        assert client.produce("gone", plain_batch(b"gone")).error_code is ErrorCode.none
        producer = client.init_producer_id("writer")
        batch = batch_of(producer, b"in a transaction")
        assert client.produce("t", batch, transactional_id="writer").error_code is ErrorCode.none
        assert client.end_txn("writer", producer, commit=True).error_code is ErrorCode.none
        assert client.txn_offset_commit("writer", client.init_producer_id("writer"), "g", "t", 3) is ErrorCode.none
        client.end_txn("writer", client.init_producer_id("writer"), commit=True)
        assert commit(client, "g", 7) == 0
        assert client.delete_records("trimmed", 15).error_code == 0
        client.delete_topic("gone")
    emulator.set_config({"retention.ms": "3600000000"}, topic="trimmed")
    emulator.set_scram_user("alice", "secret")
    until(lambda: not emulator.call_in_loop(lambda: any(_markers_owed(emulator))))


def _markers_owed(emulator: Emulator) -> list[str]:
    described = emulator.cluster.nodes[0].transactions
    return ["owed"] if described.background_tasks else []


def contents_of(emulator: Emulator) -> Contents:
    """Return what clients read now. Raises DamagedRecordsError if they detect damage."""
    with RawClient(emulator.bootstrap_servers) as client:
        group_offset = client.offset_fetch("g", "t").committed_offset
    return emulator.call_in_loop(lambda: _contents(emulator, group_offset))


def _contents(emulator: Emulator, group_offset: int) -> Contents:
    cluster = emulator.cluster
    return Contents(
        cluster.cluster_id,
        {topic.name: (str(topic.topic_id), dict(topic.configs)) for topic in cluster.topics.values()},
        {
            (partition.topic.name, partition.index): (partition.log.log_start_offset, _records(partition.log))
            for partition in cluster.partitions()
            if partition.topic.name in TOPICS
        },
        sorted(cluster.scram_users.names()),
        group_offset,
    )


def _records(log: Any) -> _Records:
    """Read a log as a consumer does, by Fetch, with the CRCs checked."""
    found: _Records = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=1 << 20, read_committed=True, at_least_one=True)
        if result.error is not ErrorCode.none:
            raise DamagedRecordsError(f"error {result.error} at offset {offset}")
        try:
            batches = split_batches(result.records)
        except CorruptRecordError as error:
            raise DamagedRecordsError(str(error)) from error
        if not batches:
            break
        for header, batch in batches:
            found += [
                (record.offset, record.key, record.value)
                for record in iter_records(batch)
                if record.offset >= offset and not header.is_control
            ]
            offset = header.last_offset + 1
    return found


class Prepared(NamedTuple):
    """A directory that is as a process left it."""

    path: Path
    expected: Contents

    def copy(self, path: Path) -> Path:
        """Copy it for one case."""
        shutil.copytree(self.path, path)
        return path


def copy_as_killed(data_dir: Path, copy: Path) -> None:
    """Copy a directory as a kill would leave it now: written data is in the page cache, and so in the copy."""
    while True:
        try:
            shutil.copytree(data_dir, copy, ignore=shutil.ignore_patterns("*.tmp"))
        except shutil.Error:  # an old snapshot was deleted meanwhile
            shutil.rmtree(copy)
        else:
            return


def _forget_what_is_derived(path: Path) -> None:
    """Delete indexes and snapshots: they are written in the background, and how far a kill lets them come varies."""
    for file in path.rglob("*"):
        if file.suffix in (".index", ".snapshot"):
            file.unlink()


def prepare(folder: Path) -> dict[str, Prepared]:
    """Return a directory whose process was killed before it wrote any index, and one of an orderly stop."""
    data_dir = folder / "stopped"
    with Emulator(topics=TOPICS, data_dir=data_dir, config=CONFIG) as emulator:
        fill(emulator)
        expected = contents_of(emulator)
        copy_as_killed(data_dir, folder / "killed")
        _forget_what_is_derived(folder / "killed")
    prepared = {name: Prepared(folder / name, expected) for name in ("killed", "stopped")}
    for directory in prepared.values():
        for name in FOREIGN:
            path = directory.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text("not the broker's")
    return prepared


# damage


def _flipped(position: Callable[[int], int]) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(position(len(data)), len(data) - 1)] ^= 0x41
        path.write_bytes(data)

    return flip


def _cut(size: Callable[[bytes], int]) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: size(data)])

    return cut


def _without_last(data: bytes) -> int:
    """Return the size without the last batch, line or block."""
    if data.startswith(b"dwe1"):
        return len(data) - 64
    if data[16:17] == b"\2":
        header, _ = split_batches(data)[-1]
        return len(data) - header.size_bytes
    return data.rstrip(b"\n").rfind(b"\n") + 1


DAMAGE: Final[dict[str, Callable[[Path], None]]] = {
    "removed": Path.unlink,
    "emptied": _cut(lambda data: 0),
    "without the last byte": _cut(lambda data: len(data) - 1),
    "without the second half": _cut(lambda data: len(data) // 2),
    "without the last unit": _cut(_without_last),
    "flipped at the first byte": _flipped(lambda size: 0),
    "flipped in the first header": _flipped(lambda size: 20),
    "flipped at a quarter": _flipped(lambda size: size // 4),
    "flipped in the middle": _flipped(lambda size: size // 2),
    "flipped at the last byte": _flipped(lambda size: size - 1),
}


def stored(path: Path) -> dict[str, bytes]:
    """Return the files that a refused start must not change: all but the regularly rewritten ones."""
    every = [file for file in path.rglob("*") if file.is_file()]
    files = [file for file in every if file.suffix not in _DERIVED and file.name not in _ANEW]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def judge(path: Path, expected: Contents) -> str:
    """Start on a damaged directory; return the complaint, "" for none. Fail if data was lost silently."""
    before = stored(path)
    try:
        with Emulator(data_dir=path, config=CONFIG) as emulator:
            noticed = _judge_started(emulator, expected)
    except StorageError as error:
        noticed = f"refused: {error}"
        assert stored(path) == before
        with pytest.raises(StorageError):  # a second look finds the same
            Emulator(data_dir=path, config=CONFIG).start()
        assert stored(path) == before
    for name in FOREIGN:
        assert (path / name).read_text() == "not the broker's"
    return noticed


def _judge_started(emulator: Emulator, expected: Contents) -> str:
    try:
        found = contents_of(emulator)
    except DamagedRecordsError as error:
        return f"readers see it: {error}"
    assert found == expected
    with RawClient(emulator.bootstrap_servers) as client:  # it is alive
        assert client.produce("t", plain_batch(b"more")).error_code is ErrorCode.none
    return ""
