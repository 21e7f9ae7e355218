"""The topics of the cluster as a consumer group's decisions see them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class KnownTopic(NamedTuple):
    """A topic that is there."""

    name: str
    topic_id: uuid.UUID
    partitions: int


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id: one of a topic that was created anew is another one."""

    topic_id: uuid.UUID
    partition: int


class Topics(Protocol):
    """What there is to subscribe to."""

    @property
    def version(self) -> int:
        """Grows with every change of topics or their partitions."""

    def get(self, name: str) -> KnownTopic | None:
        """The topic of this name."""

    def by_id(self, topic_id: uuid.UUID) -> KnownTopic | None:
        """The topic with this id."""

    def names(self) -> Iterable[str]:
        """All of them."""


class FixedTopics:
    """Topics that never change: one moment's view."""

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
    """One number for ids and partitions of the topics that are there: where it changes, the group epoch has to.

    0 where none is there, as in Kafka; otherwise not Kafka's number, whose hash function is not in the standard
    library, and nobody but a coordinator compares it.
    """
    known = sorted(topic for name in set(names) if (topic := topics.get(name)) is not None)
    if not known:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, topic_id, partitions in known:
        digest.update(f"{len(name)} {name} {topic_id.hex} {partitions};".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)
