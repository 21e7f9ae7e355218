"""The storage of a cluster: in memory, or in a data directory (`data_directory.py`)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from dualwrite.broker_emulator.log.memory_segment import MemoryBudget, MemoryStorage
from dualwrite.broker_emulator.log.segments import LogStorage
from dualwrite.broker_emulator.slices import Steps

StoredValues: TypeAlias = dict[str, dict[str, Any]]
"""JSON values by kind and key."""


def put_value(values: StoredValues, kind: str, key: str, value: Any) -> None:
    """Replace a value; None removes it."""
    if value is None:
        values.get(kind, {}).pop(key, None)
    else:
        values.setdefault(kind, {})[key] = value


class StoredTopic(NamedTuple):
    """The stored form of a topic."""

    name: str
    topic_id: uuid.UUID
    configs: Mapping[str, str | None]
    leader_epochs: list[int]
    """The leader epoch of each partition from now on, since a start is an election. Elections change it in place."""
    replicas: list[Sequence[int]]
    """The nodes with a replica of each partition, empty if unknown. Reassignments change it in place."""


class FinalizedFeatures(NamedTuple):
    """The levels of the cluster's features, as set by updates."""

    epoch: int = 0
    """Incremented by every update."""
    transaction_version: int | None = None
    """None if it was never updated, so that the settings determine it."""
    group_version: int | None = None
    share_version: int | None = None


class Space(NamedTuple):
    """The capacity of a storage."""

    total_bytes: int
    usable_bytes: int


class Storage(Protocol):
    """Stores the state of a cluster, durably or not. Raises StorageError on failure."""

    @property
    def log_dir(self) -> str:
        """The name of the directory as clients get it."""

    def space(self) -> Space:
        """Return the total and the remaining capacity. Raises OSError."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""

    @property
    def next_producer_id(self) -> int | None:
        """The first producer id that was never allocated; None if earlier allocations are unknown."""

    @property
    def finalized_features(self) -> FinalizedFeatures:
        """The features as they were last stored."""

    @property
    def is_behind(self) -> bool:
        """Whether there are appends that must not be acknowledged yet (`flushed`)."""

    @property
    def writes(self) -> int:
        """The number of appends so far: the response to a request without appends need not wait."""

    def topics(self) -> Sequence[StoredTopic]:
        """Return the stored topics, in the order of their creation."""

    def recovered(self) -> None:
        """Note that all stored logs are loaded; changes are only made from now on. Raises StorageError."""

    def log(self, topic: str, partition: int) -> LogStorage:
        """Return the storage of a partition's segments. Raises StorageError."""

    def topic_created(self, topic: StoredTopic) -> Steps[None]:
        """Store a new topic."""

    def topic_deleted(self, name: str) -> None:
        """Store that a topic is deleted; its logs are destroyed afterwards."""

    def topic_destroyed(self, name: str) -> Steps[None]:
        """Note that the logs of a deleted topic are destroyed."""

    def partitions_created(self, topic: str, replicas: Sequence[Sequence[int]]) -> Steps[None]:
        """Store new partitions of a topic, with replicas on these nodes."""

    def replicas_assigned(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Store that the replicas of a partition are on these nodes."""

    def leaders_elected(self, elections: Sequence[tuple[str, int, int]]) -> None:
        """Store elections, all with one write: topic, partition, and the new leader epoch."""

    def producer_ids_allocated(self, next_producer_id: int) -> None:
        """Store that every lower id is allocated; called before the first of them is used."""

    def features_finalized(self, features: FinalizedFeatures) -> None:
        """Store an update of the features."""

    def values(self, kind: str) -> Mapping[str, Any]:
        """Return the stored values of one kind (configs, ACLs, quotas, users, ...): JSON values by key."""

    def store_value(self, kind: str, key: str, value: Any) -> None:
        """Store a JSON value in place of the previous one; None removes it."""

    def begin_flush(self) -> None:
        """Start flushing appends to the disk; called periodically."""

    async def flushed(self) -> None:
        """Wait until all appends so far may be acknowledged."""

    async def close(self, *, is_complete: bool) -> None:
        """Release all resources. If all logs were closed (`is_complete`), the next start has nothing to recover."""


class MemoryOnly:
    """Storage in memory, lost when the cluster stops. Appends beyond a size limit fail."""

    log_dir = "/memory"
    is_behind = False
    next_producer_id = None
    finalized_features = FinalizedFeatures()
    writes = 0

    def __init__(self, limit_bytes: int) -> None:
        self.cluster_id = uuid.uuid4().hex[:22]
        self._budget = MemoryBudget(limit_bytes)
        self._values: StoredValues = {}

    def space(self) -> Space:
        limit = self._budget.limit_bytes
        return Space(limit, max(limit - self._budget.used_bytes, 0))

    def topics(self) -> Sequence[StoredTopic]:
        return ()

    def recovered(self) -> None:
        pass

    def log(self, topic: str, partition: int) -> LogStorage:
        return MemoryStorage(self._budget)

    def topic_created(self, topic: StoredTopic) -> Steps[None]:
        yield

    def topic_deleted(self, name: str) -> None:
        pass

    def topic_destroyed(self, name: str) -> Steps[None]:
        yield

    def partitions_created(self, topic: str, replicas: Sequence[Sequence[int]]) -> Steps[None]:
        yield

    def replicas_assigned(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        pass

    def leaders_elected(self, elections: Sequence[tuple[str, int, int]]) -> None:
        pass

    def producer_ids_allocated(self, next_producer_id: int) -> None:
        pass

    def features_finalized(self, features: FinalizedFeatures) -> None:
        pass

    def values(self, kind: str) -> Mapping[str, Any]:
        return self._values.get(kind, {})

    def store_value(self, kind: str, key: str, value: Any) -> None:
        put_value(self._values, kind, key, value)

    def begin_flush(self) -> None:
        pass

    async def flushed(self) -> None:
        pass

    async def close(self, *, is_complete: bool) -> None:
        pass
