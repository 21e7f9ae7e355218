"""A data directory: the storage of a cluster that survives restarts and crashes.

```
metadata.journal                     cluster id, features, topics, leader epochs, allocated producer ids, other values
<topic>-<partition>/<offset>.log     record batches, in Kafka's layout (`log/disk_log.py`)
.lock                                locked by the process that uses the directory
.clean-shutdown                      exists while no process uses the directory, if the last one stopped in order
```
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualwrite.broker_emulator.config import Fsync
from dualwrite.broker_emulator.log.disk_log import DELETED_SUFFIX, DiskLog
from dualwrite.broker_emulator.log.files import OpenFiles, write_atomically
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.storage import journal
from dualwrite.broker_emulator.storage.flusher import Flusher
from dualwrite.broker_emulator.storage.storage import FinalizedFeatures, Space, StoredTopic

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_CLEAN_SHUTDOWN = ".clean-shutdown"
_JOURNAL = "metadata.journal"


@dataclass(slots=True)
class DataDirectory:
    """Storage in a directory that only one process uses at a time."""

    path: Path
    _lock: int
    _flusher: Flusher
    _journal: journal.MetadataJournal
    _stopped_cleanly: bool
    _stored: list[StoredTopic]
    _files: OpenFiles = field(default_factory=OpenFiles)

    @classmethod
    def open(cls, path: Path, *, fsync: Fsync, loop: asyncio.AbstractEventLoop | None) -> DataDirectory:
        """Open a directory, and create it if it does not exist. Raises StorageError with a sentence for the user."""
        lock = _lock(path)
        try:
            metadata = journal.MetadataJournal(path / _JOURNAL, sync=fsync is not Fsync.NEVER)
            folders = _partition_folders(path)
            if folders and not (path / _JOURNAL).exists():
                raise StorageError(f"{path} has partitions ({folders[0].name}, ...) but no {_JOURNAL}; restore it")
            metadata.open()
            stored = list(metadata.topics.values())
            stopped_cleanly = (path / _CLEAN_SHUTDOWN).exists()
            (path / _CLEAN_SHUTDOWN).unlink(missing_ok=True)
            _remove_deleted(folders, stored)
        except OSError as error:
            os.close(lock)
            raise StorageError(f"{path} cannot be used: {error}") from error
        except StorageError:
            os.close(lock)
            raise
        if stored and not stopped_cleanly:
            logger.warning("%s was not closed cleanly: checking what was written last", path)
        return cls(path, lock, Flusher(fsync, loop), metadata, stopped_cleanly, stored)

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
        return DiskLog(folder, self._files, self._flusher, stopped_cleanly=self._stopped_cleanly)

    def topic_created(self, topic: StoredTopic) -> None:
        self._journal.record(journal.topic_created(topic))

    def topic_deleted(self, name: str) -> None:
        self._journal.record(journal.topic_deleted(name))

    def partitions_created(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        self._journal.record(journal.partitions_created(topic, replicas))

    def replicas_assigned(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        self._journal.record(journal.replicas_assigned(topic, partition, replicas))

    def leader_elected(self, topic: str, partition: int, leader_epoch: int) -> None:
        self._journal.record(journal.leader_elected(topic, partition, leader_epoch))

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


def _partition_folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir())


def _remove_deleted(folders: Sequence[Path], stored: Sequence[StoredTopic]) -> None:
    """Delete what a crash left of deleted topics, which are no longer in the journal."""
    known = {f"{topic.name}-{partition}" for topic in stored for partition in range(len(topic.leader_epochs))}
    for folder in folders:
        is_partition = folder.name.rpartition("-")[2].isdecimal()
        if folder.name.endswith(DELETED_SUFFIX) or (is_partition and folder.name not in known):
            logger.info("removing %s: it belongs to a deleted topic", folder)
            shutil.rmtree(folder)
