"""The metadata journal of a data directory: one line per change of the cluster, each with a checksum.

Every start rewrites the file with the current state only, as a new generation; its first line says how many lines that
takes. Each change is in the file before it takes effect. So a line cut short by a crash is the last one and never took
effect, while damage before the last line is an error. A journal that lost whole lines at its end is detected by the
size in `log/log_ends.py`.

The file holds the keys of SCRAM users, so only its owner may read it.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c

from dualwrite.broker_emulator.log.files import write_atomically
from dualwrite.broker_emulator.log.log_ends import JournalMark
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.storage.storage import FinalizedFeatures, StoredTopic, StoredValues, put_value

logger = logging.getLogger(__name__)

_FORMAT = 2
_OWNER_ONLY = 0o600


class MetadataJournal:
    """The id of the cluster, its features, topics (ids, settings, leader epochs), producer ids, and values by kind."""

    def __init__(self, path: Path, *, sync: bool, on_growth: Callable[[JournalMark], None] | None = None) -> None:
        self._path = path
        self._sync = sync
        self._on_growth = on_growth
        self._file = -1
        self._size = 0
        self._generation = 0
        self.cluster_id = uuid.uuid4().hex[:22]
        self.next_producer_id: int | None = None
        self.finalized_features = FinalizedFeatures()
        self.topics: dict[str, StoredTopic] = {}
        self.doomed: dict[str, StoredTopic] = {}
        """Topics whose deletion is recorded, but not the removal of their folders."""
        self.values: StoredValues = {}

    @property
    def mark(self) -> JournalMark:
        """The current end of the journal. Generation 0 means an old format, or no journal."""
        return JournalMark(self._generation, self._size)

    def open(self) -> None:
        """Read the file, and rewrite it with the current state. Raises StorageError."""
        self.read()
        self.rewrite()

    def read(self) -> None:
        """Read the file, if there is one. Raises StorageError."""
        try:
            if not self._path.exists():
                return
            data = self._path.read_bytes()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used: {error.strerror}") from error
        least, lines = 1, 0
        for change in _changes(self._path, data):
            if lines == 0:
                least = self._begin(change)
            self._apply(change)
            lines += 1
        if lines < least:
            raise StorageError(
                f"{self._path} has {lines} whole lines; it was written with at least {least}. Something else has cut "
                "it off, or emptied it: restore the file"
            )
        self._size = data.rfind(b"\n") + 1
        self.topics = {name: _after_restart(topic) for name, topic in self.topics.items()}

    def _begin(self, change: dict[str, Any]) -> int:
        """Return the number of lines that the first line demands."""
        if "format" not in change:
            raise StorageError(f"{self._path} does not begin with its format: its first lines are missing")
        self._generation = change.get("generation", 0)
        lines: int = change.get("lines", 1)
        return lines

    def rewrite(self) -> None:
        """Write the current state as a new generation, and open the file for changes. Raises StorageError."""
        self._generation += 1
        present = list(self._everything())
        head = {"format": _FORMAT, "cluster_id": self.cluster_id, "generation": self._generation}
        data = b"".join(map(_line, [head | {"lines": 1 + len(present)}, *present]))
        try:
            write_atomically(self._path, data, sync=self._sync, mode=_OWNER_ONLY)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used: {error.strerror}") from error
        self._size = len(data)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def record(self, *changes: dict[str, Any]) -> None:
        """Write changes, then apply them. Raises StorageError, without any change.

        A crash may keep only the first of several changes.
        """
        if not changes:
            return
        lines = b"".join(map(_line, changes))
        try:
            if os.pwrite(self._file, lines, self._size) < len(lines):
                raise OSError(0, "the disk is full")
            if self._sync:
                os.fdatasync(self._file)
            if self._on_growth is not None:
                self._on_growth(JournalMark(self._generation, self._size + len(lines)))
        except OSError as error:
            os.truncate(self._path, self._size)
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error
        self._size += len(lines)
        for change in changes:
            self._apply(change)

    def _everything(self) -> Iterator[dict[str, Any]]:
        if self.next_producer_id is not None:
            yield producer_ids_allocated(self.next_producer_id)
        if self.finalized_features.epoch:
            yield features_finalized(self.finalized_features)
        for topic in self.doomed.values():
            yield topic_created(topic)
            yield topic_deleted(topic.name)
        for topic in self.topics.values():
            yield topic_created(topic)
        for kind, values in self.values.items():
            for key, value in values.items():
                yield value_stored(kind, key, value)

    def _apply(self, change: dict[str, Any]) -> None:
        match change:
            case {"format": format_version, "cluster_id": cluster_id}:
                if format_version != _FORMAT:
                    raise StorageError(f"{self._path} has format {format_version}; this broker reads format {_FORMAT}")
                self.cluster_id = cluster_id
            case {"next_producer_id": next_producer_id}:
                self.next_producer_id = next_producer_id
            case {"features_epoch": epoch, "transaction_version": level}:
                self.finalized_features = FinalizedFeatures(
                    epoch, level, change.get("group_version"), change.get("share_version")
                )
            case {"created": name, "id": topic_id, "configs": configs, "leader_epochs": leader_epochs}:
                # missing or empty in journals from before replicas could be reassigned
                replicas = change.get("replicas") or [() for _ in leader_epochs]
                self.topics[name] = StoredTopic(name, uuid.UUID(topic_id), configs, leader_epochs, replicas)
                self.doomed.pop(name, None)
            case {"extended": name, "replicas": replicas}:
                self.topics[name] = _with_partitions(self.topics[name], replicas)
            case {"assigned": name, "partition": partition, "replicas": replicas}:
                self.topics[name].replicas[partition] = replicas
            case {"deleted": name}:
                if (topic := self.topics.pop(name, None)) is not None:
                    self.doomed[name] = topic
            case {"destroyed": name}:
                self.doomed.pop(name, None)
            case {"elected": name, "partition": partition, "leader_epoch": leader_epoch}:
                self.topics[name].leader_epochs[partition] = leader_epoch
            case {"kept": kind, "key": key, "value": value}:
                put_value(self.values, kind, key, value)
            case _:
                raise StorageError(f"{self._path} has an unknown change: {change}")


def topic_created(topic: StoredTopic) -> dict[str, Any]:
    """Return the change for a new topic."""
    return {
        "created": topic.name,
        "id": str(topic.topic_id),
        "configs": dict(topic.configs),
        "leader_epochs": list(topic.leader_epochs),
        "replicas": [list(replicas) for replicas in topic.replicas],
    }


def topic_deleted(name: str) -> dict[str, Any]:
    """Return the change for a deleted topic."""
    return {"deleted": name}


def topic_destroyed(name: str) -> dict[str, Any]:
    """Return the change for a deleted topic whose folders are all gone."""
    return {"destroyed": name}


def partitions_created(topic: str, replicas: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the change for new partitions of a topic, with replicas on these nodes."""
    return {"extended": topic, "replicas": [list(nodes) for nodes in replicas]}


def replicas_assigned(topic: str, partition: int, replicas: Sequence[int]) -> dict[str, Any]:
    """Return the change for a new replica assignment of a partition."""
    return {"assigned": topic, "partition": partition, "replicas": list(replicas)}


def leader_elected(topic: str, partition: int, leader_epoch: int) -> dict[str, Any]:
    """Return the change for a new leader epoch of a partition."""
    return {"elected": topic, "partition": partition, "leader_epoch": leader_epoch}


def producer_ids_allocated(next_producer_id: int) -> dict[str, Any]:
    """Return the change for allocated producer ids: all below `next_producer_id`."""
    return {"next_producer_id": next_producer_id}


def value_stored(kind: str, key: str, value: Any) -> dict[str, Any]:
    """Return the change for a value of one kind; None removes it."""
    return {"kept": kind, "key": key, "value": value}


def features_finalized(features: FinalizedFeatures) -> dict[str, Any]:
    """Return the change for an update of the cluster's features."""
    return {
        "features_epoch": features.epoch,
        "transaction_version": features.transaction_version,
        "group_version": features.group_version,
        "share_version": features.share_version,
    }


def _after_restart(topic: StoredTopic) -> StoredTopic:
    """Increment the leader epochs: a start is an election, so that requests with earlier epochs are refused."""
    return topic._replace(leader_epochs=[epoch + 1 for epoch in topic.leader_epochs])


def _with_partitions(topic: StoredTopic, replicas: Sequence[Sequence[int]]) -> StoredTopic:
    epochs = [*topic.leader_epochs, *[0] * len(replicas)]
    return topic._replace(leader_epochs=epochs, replicas=[*topic.replicas, *replicas])


def _line(change: dict[str, Any]) -> bytes:
    text = json.dumps(change, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def _changes(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % crc32c(text):
            raise StorageError(f"line {number} of {path} is damaged: its checksum does not match")
        change: dict[str, Any] = json.loads(text)
        yield change
    if rest:
        logger.warning("%s ends with an incomplete line, which never took effect", path)
