"""Prepared transactions of each tier through crashes of the broker and moves of the coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient

from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from tests.interop.wire import Code, Wire, wait_for
from tests.support.real_kafkas import TWO_PHASE_COMMIT, real_kafka

from .clusters import Cluster, killed_after_prepare
from .conftest import MakeFace, NewName, running
from .faces import Face
from .reading import DEADLINE_S, create_topics, read_committed

NOTHING = PreparedTxnState()


class InDoubt:
    """Three prepared transactions: of a thread, of a task, and of a process that was killed."""

    def __init__(self, cluster: Cluster, make_face: MakeFace, topic: str, names: list[str]) -> None:
        self._cluster = cluster
        self._names = names
        self._topic = topic
        self._make_face = make_face
        self.threaded, self.awaited = (
            self._initialised(face, name) for face, name in zip(("sync", "async"), names, strict=False)
        )
        self._states = (
            self.threaded.prepare(topic, b"of a thread"),
            self.awaited.prepare(topic, b"of a task"),
            killed_after_prepare("sync", cluster.settings(names[2]), topic, b"of a process"),
        )

    def _initialised(self, face: str, name: str) -> Face:
        producer = self._make_face(face, self._cluster.settings(name))
        producer.init_transactions()
        return producer

    def resolve(self) -> list[bytes]:
        """Commit the first and the last, abort the other; return all committed records, after one more of each."""
        self.threaded.complete_transaction(self._states[0])
        self.awaited.complete_transaction(NOTHING)
        successor = self._make_face("async", self._cluster.settings(self._names[2]))
        successor.init_transactions(keep_prepared_txn=True)
        successor.complete_transaction(self._states[2])
        for name in self._names:
            self._cluster.wait_until_settled(name)
        for number, producer in enumerate((self.threaded, self.awaited, successor)):
            producer.write(self._topic, f"next {number}".encode())
            producer.commit_transaction()
        return read_committed({"bootstrap.servers": self._cluster.bootstrap_servers}, self._topic)


KEPT = [b"of a thread", b"of a process", b"next 0", b"next 1", b"next 2"]


def test_the_broker_is_killed_and_comes_back(cluster: Cluster, make_face: MakeFace, new_name: NewName) -> None:
    topic = new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    in_doubt = InDoubt(cluster, make_face, topic, [new_name("txn") for _ in range(3)])
    cluster.kafka.kill()
    cluster.kafka.start()
    assert in_doubt.resolve() == KEPT


@pytest.fixture
def two_nodes() -> Iterator[Cluster]:
    for kafka in running(real_kafka(TWO_PHASE_COMMIT, nodes=2)):
        yield Cluster(kafka, Tier.STORED_PAIR)


def coordinates(cluster: Cluster, node_id: int, name: str) -> bool:
    """Whether the node is the coordinator of the transactional id."""
    with Wire(cluster.bootstrap_servers.split(",")[node_id - 1]) as wire:
        error = wire.describe(name).error
    return error in (Code.NONE, Code.TRANSACTIONAL_ID_NOT_FOUND)


def test_the_coordinator_moves(two_nodes: Cluster, make_face: MakeFace, new_name: NewName) -> None:
    cluster, topic = two_nodes, new_name("topic")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers.split(",")[0]})
    create_topics(cluster.bootstrap_servers, topic, replicas=2)
    with Wire(cluster.bootstrap_servers.split(",")[0]) as wire:
        wire.wait_for_coordinator("any")
    wait_for(lambda: coordinates(cluster, 1, "any") or coordinates(cluster, 2, "any"), bool)
    names = list(
        itertools.islice((name for name in iter(lambda: new_name("txn"), "") if coordinates(cluster, 2, name)), 3)
    )

    in_doubt = InDoubt(cluster, make_face, topic, names)
    cluster.kafka.kill(2)
    wait_for(lambda: all(coordinates(cluster, 1, name) for name in names), bool)
    assert in_doubt.resolve() == KEPT

    cluster.kafka.start()
    prepared = in_doubt.threaded.prepare(topic, b"moved back")
    partitions = [Partition("__transaction_state", number) for number in range(5)]

    def moved_back() -> bool:
        """Once node 2 has caught up it can be elected, as the preferred leader of its former partitions."""
        admin.elect_leaders(ElectionType.PREFERRED, partitions).result(DEADLINE_S)
        return coordinates(cluster, 2, names[0])

    wait_for(moved_back, bool)
    in_doubt.threaded.complete_transaction(prepared)
    cluster.wait_for_state(names[0], "CompleteCommit")
    assert read_committed({"bootstrap.servers": cluster.bootstrap_servers}, topic) == [*KEPT, b"moved back"]
