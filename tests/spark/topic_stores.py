"""Commit stores in topics, for the tests that run on every store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.topic.kafka_log import KafkaLog
from spark_sink.store.topic.log import CommitLog
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.fake_log import FakeLog, FakePartition
from tests.support.databases import unique

AnyStore = CommitStore | TopicStore


class SharedTopicStore(TopicStore):
    """A store that can open itself once more, as another process does."""

    def __init__(self, log: CommitLog) -> None:
        super().__init__(log)
        self._shared = log

    def of_another_process(self) -> TopicStore:
        return TopicStore(self._shared)


def memory_store() -> SharedTopicStore:
    """Return a store in a log in memory, which has no faults."""
    return _created(FakeLog(FakePartition()))


def kafka_log(bootstrap_servers: str, topic: str | None = None) -> KafkaLog:
    settings = {"bootstrap.servers": bootstrap_servers, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5}
    return KafkaLog(settings, topic or unique("commits"), timeout_ms=20_000, unreachable_timeout_ms=10_000)


def kafka_store(bootstrap_servers: str) -> SharedTopicStore:
    """Return a store in a new topic."""
    return _created(kafka_log(bootstrap_servers))


@contextmanager
def emulated_store() -> Iterator[SharedTopicStore]:
    with Emulator() as emulator:
        yield kafka_store(emulator.bootstrap_servers)


def _created(log: CommitLog) -> SharedTopicStore:
    store = SharedTopicStore(log)
    store.create()
    return store


def with_a_log_of_its_own(store: AnyStore) -> AnyStore:
    """Return an empty store instead of one in memory, whose whole log each process would read."""
    return memory_store() if isinstance(store, SharedTopicStore) else store


def opened_by_another_process(store: AnyStore) -> AnyStore:
    """Return the store as another process has it: a database is shared by itself."""
    return store.of_another_process() if isinstance(store, SharedTopicStore) else store
