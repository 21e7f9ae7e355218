"""The topics of the cluster, as decisions about consumer groups see them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class KnownTopic(NamedTuple):
    """An existing topic."""

    name: str
    topic_id: uuid.UUID
    partitions: int


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id: a topic that is deleted and recreated has other partitions."""

    topic_id: uuid.UUID
    partition: int


def by_id_and_index(name: TopicIdPartition) -> tuple[int, int]:
    """Return a key that gives partitions their natural order, in a fraction of the time."""
    return name[0].int, name[1]


class Topics(Protocol):
    """The topics that members can subscribe to."""

    @property
    def version(self) -> int:
        """A number that is incremented with every change of topics or their partitions."""

    def get(self, name: str) -> KnownTopic | None:
        """Return the topic with this name, or None."""

    def by_id(self, topic_id: uuid.UUID) -> KnownTopic | None:
        """Return the topic with this id, or None."""

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""


class FixedTopics:
    """An immutable snapshot of topics."""

    def __init__(self, topics: Iterable[KnownTopic], version: int = 0) -> None:
        self._by_name: Mapping[str, KnownTopic] = {topic.name: topic for topic in topics}
        self._by_id = {topic.topic_id: topic for topic in self._by_name.values()}
        self.version = version

    def get(self, name: str) -> KnownTopic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: uuid.UUID) -> KnownTopic | None:
        return self._by_id.get(topic_id)

    def names(self) -> Iterable[str]:
        return self._by_name


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Return a hash of ids and partition counts of the existing topics; if it changes, the group epoch is bumped.

    It is 0 if none exists, as in Kafka. Otherwise it differs from Kafka's number, whose hash function is not in the
    standard library; only coordinators compare it.
    """
    known = sorted(topic for name in set(names) if (topic := topics.get(name)) is not None)
    if not known:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, topic_id, partitions in known:
        digest.update(f"{len(name)} {name} {topic_id.hex} {partitions};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
