"""A data directory: the storage of a cluster that survives restarts and crashes.

```
metadata.journal                     cluster id, features, topics, leader epochs, allocated producer ids, other values
log-ends                             how far the journal and each log reached (`log/log_ends.py`)
<topic>-<partition>/<offset>.log     record batches, in Kafka's layout (`log/disk_log.py`)
.lock                                locked by the process that uses the directory
.clean-shutdown                      exists while no process uses the directory, if the last one stopped in order
```

Only data that the journal records as deleted is deleted. Unknown folders are left alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_loading import segment_paths
from dualwrite.broker_emulator.log.disk_log import DELETED_SUFFIX, DiskLog, doomed_stem, folder_removal
from dualwrite.broker_emulator.log.files import OpenFiles, write_atomically
from dualwrite.broker_emulator.log.flusher import Flusher
from dualwrite.broker_emulator.log.log_ends import LogEnds
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.slices import Steps, at_once
from dualwrite.broker_emulator.storage import journal
from dualwrite.broker_emulator.storage.storage import FinalizedFeatures, Space, StoredTopic

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_CLEAN_SHUTDOWN = ".clean-shutdown"
_JOURNAL = "metadata.journal"
_ENDS = "log-ends"


@dataclass(slots=True)
class DataDirectory:
    """Storage in a directory that only one process uses at a time."""

    path: Path
    _lock: int
    _flusher: Flusher
    _journal: journal.MetadataJournal
    _ends: LogEnds
    _stopped_cleanly: bool
    _stored: list[StoredTopic]
    _files: OpenFiles = field(default_factory=OpenFiles)

    @classmethod
    def open(cls, path: Path, *, fsync: Fsync, loop: asyncio.AbstractEventLoop | None) -> DataDirectory:
        """Open a directory, and create it if it does not exist. Raises StorageError with a sentence for the user."""
        lock = _lock(path)
        try:
            ends = LogEnds(path / _ENDS)
            metadata = journal.MetadataJournal(
                path / _JOURNAL, sync=fsync is not Fsync.NEVER, on_growth=ends.journal_written
            )
            ends.read()
            _check_presence(path, has_ends=ends.journal is not None)
            metadata.read()
            _check_journal(path, metadata, ends)
            stopped_cleanly = (path / _CLEAN_SHUTDOWN).exists()
        except OSError as error:
            os.close(lock)
            raise StorageError(f"{path} cannot be used: {error}") from error
        except StorageError:
            os.close(lock)
            raise
        stored = list(metadata.topics.values())
        if stored and not stopped_cleanly:
            logger.warning("%s was not closed cleanly: checking the last writes", path)
        return cls(path, lock, Flusher(fsync, loop), metadata, ends, stopped_cleanly, stored)

    def recovered(self) -> None:
        try:
            self._finish_deletions()
            self._journal.rewrite()
            self._ends.open(self._journal.mark)
            (self.path / _CLEAN_SHUTDOWN).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be used: {error}") from error
        unknown = ", ".join(folder.name for folder in _unknown_folders(self.path, self._journal))
        if unknown:
            logger.warning("%s has folders that belong to no topic; leaving them alone: %s", self.path, unknown)

    def _finish_deletions(self) -> None:
        """Delete the remaining folders of topics whose deletion is recorded. Raises OSError."""
        for topic in list(self._journal.doomed.values()):
            for folder in _folders_of(self.path, topic):
                logger.info("removing %s: it belongs to a deleted topic", folder)
                at_once(folder_removal(folder))
            del self._journal.doomed[topic.name]

    @property
    def log_dir(self) -> str:
        return str(self.path.absolute())

    def space(self) -> Space:
        disk = shutil.disk_usage(self.path)
        return Space(disk.total, disk.free)

    @property
    def cluster_id(self) -> str:
        return self._journal.cluster_id

    @property
    def next_producer_id(self) -> int | None:
        return self._journal.next_producer_id

    @property
    def finalized_features(self) -> FinalizedFeatures:
        return self._journal.finalized_features

    @property
    def is_behind(self) -> bool:
        return self._flusher.is_behind

    @property
    def writes(self) -> int:
        return self._flusher.writes

    def topics(self) -> Sequence[StoredTopic]:
        return self._stored

    def log(self, topic: str, partition: int) -> DiskLog:
        folder = self.path / f"{topic}-{partition}"
        try:
            end = self._ends.of(self._journal.topics[topic].topic_id, partition)
        except OSError as error:
            raise StorageError(f"{self._ends.path} cannot be written: {error.strerror}") from error
        return DiskLog(folder, self._files, self._flusher, stopped_cleanly=self._stopped_cleanly, end=end)

    def topic_created(self, topic: StoredTopic) -> Steps[None]:
        yield from self._make_room(topic.name, range(len(topic.leader_epochs)))
        self._journal.record(journal.topic_created(topic))

    def topic_deleted(self, name: str) -> None:
        self._journal.record(journal.topic_deleted(name))

    def topic_destroyed(self, name: str) -> Steps[None]:
        topic = self._journal.doomed[name]
        is_anything_left = False
        for partition in range(len(topic.leader_epochs)):
            self._ends.remove(topic.topic_id, partition)
            is_anything_left = is_anything_left or (self.path / f"{name}-{partition}").exists()
            yield
        if not is_anything_left:
            self._journal.record(journal.topic_destroyed(name))

    def _make_room(self, topic: str, partitions: Iterable[int]) -> Steps[None]:
        """Check that no folder is in the way of new partitions, and make room for their ends. Raises StorageError."""
        names = [f"{topic}-{partition}" for partition in partitions]
        for name in names:
            if (self.path / name).exists():
                raise StorageError(f"{self.path / name} exists, and belongs to no topic: move it away")
            yield
        try:
            self._ends.make_room(len(names))
        except OSError as error:
            raise StorageError(f"{self._ends.path} cannot be written: {error.strerror}") from error

    def partitions_created(self, topic: str, replicas: Sequence[Sequence[int]]) -> Steps[None]:
        begin = len(self._journal.topics[topic].leader_epochs)
        yield from self._make_room(topic, range(begin, begin + len(replicas)))
        self._journal.record(journal.partitions_created(topic, replicas))

    def replicas_assigned(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        self._journal.record(journal.replicas_assigned(topic, partition, replicas))

    def leaders_elected(self, elections: Sequence[tuple[str, int, int]]) -> None:
        self._journal.record(*(journal.leader_elected(*election) for election in elections))

    def producer_ids_allocated(self, next_producer_id: int) -> None:
        self._journal.record(journal.producer_ids_allocated(next_producer_id))

    def features_finalized(self, features: FinalizedFeatures) -> None:
        self._journal.record(journal.features_finalized(features))

    def values(self, kind: str) -> Mapping[str, Any]:
        return self._journal.values.get(kind, {})

    def store_value(self, kind: str, key: str, value: Any) -> None:
        self._journal.record(journal.value_stored(kind, key, value))

    def begin_flush(self) -> None:
        self._flusher.begin_round()

    async def flushed(self) -> None:
        await self._flusher.flushed()

    async def close(self, *, is_complete: bool) -> None:
        try:
            await self._flusher.close()
            if is_complete:
                write_atomically(self.path / _CLEAN_SHUTDOWN, b"", sync=self._flusher.fsync is not Fsync.NEVER)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error
        finally:
            self._files.close_all()
            self._journal.close()
            self._ends.close()
            os.close(self._lock)


def _lock(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"the data directory {path} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StorageError(f"the data directory {path} is in use by another broker (process {owner})") from error
    os.truncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _check_presence(path: Path, *, has_ends: bool) -> None:
    """Refuse a used directory without a journal. Raises StorageError."""
    if (path / _JOURNAL).exists():
        return
    folders = [folder.name for folder in _folders(path) if _is_partition(folder)]
    if folders:
        raise StorageError(f"{path} has partitions ({folders[0]}, ...) but no {_JOURNAL}; restore it")
    if has_ends:
        raise StorageError(f"{path} has {_ENDS} but no {_JOURNAL}; restore it, or empty the directory")


def _check_journal(path: Path, metadata: journal.MetadataJournal, ends: LogEnds) -> None:
    """Compare the journal with its mark in the file of log ends. Raises StorageError if its end is missing."""
    found, noted = metadata.mark, ends.journal
    if noted is None or noted.generation < found.generation - 1:
        if found.generation:
            logger.warning("%s is missing or outdated: data missing in %s may go unnoticed", ends.path, path)
        ends.forget()
        _check_unknown(path, metadata)
        return
    if (found.generation, found.size_bytes) < noted:
        raise StorageError(
            f"{path / _JOURNAL} has lost its end: {found.size_bytes} bytes of generation {found.generation}, of "
            f"{noted.size_bytes} of generation {noted.generation}. It cannot be trusted: restore it"
        )


def _check_unknown(path: Path, metadata: journal.MetadataJournal) -> None:
    """Refuse unknown folders that look like partitions: the journal's lost end may name them. Raises StorageError."""
    for folder in _unknown_folders(path, metadata):
        if _is_partition(folder):
            raise StorageError(
                f"{folder} has records, and {path / _JOURNAL} knows no such partition. It may have lost its end: "
                "restore it, or move the folder away if it is not the broker's"
            )


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir())


def _is_partition(folder: Path) -> bool:
    """Return whether a folder looks like a partition with records."""
    return re.fullmatch(r".+-\d+", folder.name) is not None and bool(segment_paths(folder))


def _unknown_folders(path: Path, metadata: journal.MetadataJournal) -> Iterator[Path]:
    """Return the folders of neither a known topic nor a topic whose deletion is recorded."""
    known = {
        f"{topic.name}-{partition}"
        for topic in metadata.topics.values()
        for partition in range(len(topic.leader_epochs))
    }
    known |= {folder.name for topic in metadata.doomed.values() for folder in _folders_of(path, topic)}
    return (folder for folder in _folders(path) if folder.name not in known)


def _folders_of(path: Path, topic: StoredTopic) -> Iterator[Path]:
    """Return the remaining folders of a deleted topic, renamed or not."""
    names = {f"{topic.name}-{partition}" for partition in range(len(topic.leader_epochs))}
    stems = {doomed_stem(name) for name in names}
    for folder in _folders(path):
        renamed = re.fullmatch(rf"(.+)\.[0-9a-f]{{8}}{DELETED_SUFFIX}", folder.name)
        if folder.name.removesuffix(DELETED_SUFFIX) in names or (renamed is not None and renamed[1] in stems):
            yield folder
