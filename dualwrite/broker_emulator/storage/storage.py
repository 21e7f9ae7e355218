"""Where a cluster keeps what it has: in memory, or in a data directory (`data_directory.py`)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from dualwrite.broker_emulator.log.memory_segment import MemoryBudget, MemoryStorage
from dualwrite.broker_emulator.log.segment import LogStorage

Kept: TypeAlias = dict[str, dict[str, Any]]
"""JSON values by kind and key."""


def keep_in(kept: Kept, kind: str, key: str, value: Any) -> None:
    """Put a value in place of the one before; None removes it."""
    if value is None:
        kept.get(kind, {}).pop(key, None)
    else:
        kept.setdefault(kind, {})[key] = value


class StoredTopic(NamedTuple):
    """A topic as it was kept."""

    name: str
    topic_id: uuid.UUID
    configs: Mapping[str, str | None]
    leader_epochs: Sequence[int]
    """Of each partition, from now on: a start is an election."""
    replicas: Sequence[Sequence[int]] = ()
    """The nodes with a copy of each partition; nothing in journals of before they could change."""


class FinalizedFeatures(NamedTuple):
    """What updates of the cluster's features have set."""

    epoch: int = 0
    """Grows with every update."""
    transaction_version: int | None = None
    """None: it was never updated, and is what the settings say."""
    group_version: int | None = None


class Space(NamedTuple):
    """How much there is room for."""

    total_bytes: int
    usable_bytes: int


class Storage(Protocol):
    """What outlives a cluster, or does not. Everything that can fail raises StorageError."""

    @property
    def log_dir(self) -> str:
        """What its folder is called towards clients."""

    def space(self) -> Space:
        """How much it could hold, and how much more it can. Raises OSError."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""

    @property
    def next_producer_id(self) -> int | None:
        """The first producer id that was never handed out; None where nothing is known of earlier ones."""

    @property
    def finalized_features(self) -> FinalizedFeatures:
        """As they were last kept."""

    @property
    def is_behind(self) -> bool:
        """Whether something was appended that must not be acknowledged yet (`flushed`)."""

    @property
    def writes(self) -> int:
        """Grows whenever something is appended: an answer need not wait where that did not happen."""

    def topics(self) -> Sequence[StoredTopic]:
        """The topics that were kept, in the order of their creation."""

    def log(self, topic: str, partition: int) -> LogStorage:
        """Where a partition keeps its segments."""

    def topic_created(self, topic: StoredTopic) -> None:
        """Keep a new topic."""

    def topic_deleted(self, name: str) -> None:
        """Forget a topic; its logs are destroyed afterwards."""

    def partitions_created(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        """Keep that a topic has more partitions, with copies on these nodes."""

    def replicas_assigned(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Keep that the copies of a partition are on these nodes."""

    def leader_elected(self, topic: str, partition: int, leader_epoch: int) -> None:
        """Keep the epoch of an election."""

    def producer_ids_allocated(self, next_producer_id: int) -> None:
        """Keep that every id below was handed out; called before the first of them is."""

    def features_finalized(self, features: FinalizedFeatures) -> None:
        """Keep an update of the features."""

    def kept(self, kind: str) -> Mapping[str, Any]:
        """What is kept under `kind` (configs, access rules, quotas, users, ...): JSON values by key."""

    def keep(self, kind: str, key: str, value: Any) -> None:
        """Keep a JSON value in place of the one before; None forgets it."""

    def begin_flush(self) -> None:
        """Begin to bring to the disk what was appended; called at intervals."""

    async def flushed(self) -> None:
        """Wait until everything appended so far may be acknowledged."""

    async def close(self, *, is_complete: bool) -> None:
        """Let go of everything; `is_complete`: all logs were closed and nothing is left to recover."""


class MemoryOnly:
    """Nothing is kept: everything is gone when the cluster stops. Takes no more records than fit into a limit."""

    log_dir = "/memory"
    is_behind = False
    next_producer_id = None
    finalized_features = FinalizedFeatures()
    writes = 0

    def __init__(self, limit_bytes: int) -> None:
        self.cluster_id = uuid.uuid4().hex[:22]
        self._budget = MemoryBudget(limit_bytes)
        self._kept: Kept = {}

    def space(self) -> Space:
        limit = self._budget.limit_bytes
        return Space(limit, max(limit - self._budget.used_bytes, 0))

    def topics(self) -> Sequence[StoredTopic]:
        return ()

    def log(self, topic: str, partition: int) -> LogStorage:
        return MemoryStorage(self._budget)

    def topic_created(self, topic: StoredTopic) -> None:
        pass

    def topic_deleted(self, name: str) -> None:
        pass

    def partitions_created(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        pass

    def replicas_assigned(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        pass

    def leader_elected(self, topic: str, partition: int, leader_epoch: int) -> None:
        pass

    def producer_ids_allocated(self, next_producer_id: int) -> None:
        pass

    def features_finalized(self, features: FinalizedFeatures) -> None:
        pass

    def kept(self, kind: str) -> Mapping[str, Any]:
        return self._kept.get(kind, {})

    def keep(self, kind: str, key: str, value: Any) -> None:
        keep_in(self._kept, kind, key, value)

    def begin_flush(self) -> None:
        pass

    async def flushed(self) -> None:
        pass

    async def close(self, *, is_complete: bool) -> None:
        pass
