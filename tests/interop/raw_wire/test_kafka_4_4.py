"""New in Kafka 4.4, the same on both brokers: TxnOffsetCommit v6, ApiVersions v5 and DeleteGroups v3."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.interop.conftest import Broker
from tests.interop.wire import GROUP, Code, Identity, Wire

UNKNOWN_TOPIC_ID = 100
GROUP_ID_NOT_FOUND = 69
NON_EMPTY_GROUP = 68
OFFSET_METADATA_TOO_LARGE = 12
STALE_MEMBER_EPOCH = 113
REBOOTSTRAP_REQUIRED = 129
UNKNOWN_ID = uuid.UUID(int=77)


@pytest.fixture(scope="module", params=["emulated_kafka", "emulated_kafka_4_4", "apache_kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The brokers that have these versions."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


# --- TxnOffsetCommit v6 -----------------------------------------------------------------------------------------------

Offsets = tuple[uuid.UUID | None, Sequence[Any]]


def at(partition: int, metadata: str = "m") -> dict[str, Any]:
    """The offset 5 of a partition."""
    committed = {"committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": metadata}
    return {"partition_index": partition, **committed}


class Transaction(NamedTuple):
    """A producer that commits offsets of one group."""

    client: RawClient
    wire: Wire
    transactional_id: str
    identity: Identity
    group: str
    topic: str
    topic_id: uuid.UUID

    def commit(self, *topics: Offsets, **changes: Any) -> list[tuple[uuid.UUID | None, list[tuple[int, int]]]]:
        """The errors of the partitions by the ids of their topics, in the order of the response."""
        asked = {
            "transactional_id": self.transactional_id,
            "group_id": self.group,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.producer_epoch,
            "topics": tuple({"topic_id": topic_id, "partitions": tuple(rows)} for topic_id, rows in topics),
        }
        response = self.client.call("txn_offset_commit", 6, **asked | changes)
        return [
            (topic.topic_id, [(row.partition_index, int(row.error_code)) for row in topic.partitions])
            for topic in response.topics
        ]

    def error(self, partition: Any = None, **changes: Any) -> int:
        """The error of one partition of the topic."""
        ((topic_id, ((_, error),)),) = self.commit((self.topic_id, [partition or at(0)]), **changes)
        assert topic_id == self.topic_id
        return error


@pytest.fixture
def transaction(client: RawClient, wire: Wire, transactional_id: str, group: str, topic: str) -> Transaction:
    wire.wait_for_coordinator(group, GROUP)
    identity = wire.init_ok(transactional_id)
    return Transaction(client, wire, transactional_id, identity, group, topic, client.topic_id(topic))


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_follow_the_transaction(transaction: Transaction, commit: bool) -> None:
    wire, group, topic = transaction.wire, transaction.group, transaction.topic
    assert transaction.error() == Code.NONE
    assert list(wire.describe(transaction.transactional_id).topics) == ["__consumer_offsets"]
    assert wire.offset_fetch(group, topic) == (Code.NONE, -1)
    assert wire.end_settled(transaction.transactional_id, transaction.identity, commit=commit).error == Code.NONE
    assert wire.offset_fetch(group, topic) == (Code.NONE, 5 if commit else -1)


@pytest.mark.parametrize("topic_id", [UNKNOWN_ID, None])
def test_unknown_ids(transaction: Transaction, topic_id: uuid.UUID | None) -> None:
    assert transaction.commit((topic_id, [at(0), at(1)])) == [
        (topic_id, [(0, UNKNOWN_TOPIC_ID), (1, UNKNOWN_TOPIC_ID)])
    ]
    assert transaction.wire.describe(transaction.transactional_id).state == "Empty"


def test_unknown_ids_beside_others(transaction: Transaction) -> None:
    answered = transaction.commit((UNKNOWN_ID, [at(0)]), (transaction.topic_id, [at(0), at(4)]))
    assert sorted((topic, sorted(rows)) for topic, rows in answered if topic) == sorted(
        [
            (UNKNOWN_ID, [(0, UNKNOWN_TOPIC_ID)]),
            (transaction.topic_id, [(0, Code.NONE), (4, Code.UNKNOWN_TOPIC_OR_PARTITION)]),
        ]
    )


def test_no_partitions(transaction: Transaction) -> None:
    assert transaction.commit() == []
    assert transaction.commit((UNKNOWN_ID, [])) == [(UNKNOWN_ID, [])]
    assert transaction.commit((transaction.topic_id, [])) == []


def test_errors(transaction: Transaction) -> None:
    """There is no error of the request as a whole: each partition has it."""
    identity = transaction.identity
    assert transaction.error(transactional_id="nobody-has-this-id") == Code.INVALID_PRODUCER_ID_MAPPING
    assert transaction.error(producer_id=identity.producer_id + 100_000) == Code.INVALID_PRODUCER_ID_MAPPING
    assert transaction.error(producer_epoch=identity.producer_epoch + 1) == Code.INVALID_PRODUCER_EPOCH
    assert transaction.error(group_id="") == Code.INVALID_GROUP_ID
    assert transaction.error(at(0, "x" * 5_000)) == OFFSET_METADATA_TOO_LARGE
    assert transaction.error(at(9)) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert transaction.commit((UNKNOWN_ID, [at(0)]), group_id="") == [(UNKNOWN_ID, [(0, UNKNOWN_TOPIC_ID)])]


def test_a_generation_of_an_unknown_group_has_its_own_error(transaction: Transaction) -> None:
    """It is 22 before (KIP-1319)."""
    assert transaction.error(generation_id=3, member_id="m") == GROUP_ID_NOT_FOUND
    old = transaction.wire.txn_offset_commit(
        transaction.transactional_id, transaction.identity, transaction.group, transaction.topic, 5,
        generation=3, member="m",
    )  # fmt: skip
    assert old == Code.ILLEGAL_GENERATION
    assert transaction.error(member_id="m") == Code.NONE


def test_a_stale_member_epoch_has_its_own_error(transaction: Transaction) -> None:
    epoch = joined(transaction.client, transaction.group, transaction.topic)
    assert transaction.error(member_id="m", generation_id=epoch) == Code.NONE
    for stale in (epoch + 1, -1, 0):
        assert transaction.error(member_id="m", generation_id=stale) == STALE_MEMBER_EPOCH, stale
    assert transaction.error(member_id="other", generation_id=epoch) == Code.UNKNOWN_MEMBER_ID
    assert transaction.error() == Code.NONE


def joined(client: RawClient, group: str, topic: str) -> int:
    """The epoch of member "m", which has just joined a consumer group (KIP-848)."""
    response = client.call(
        "consumer_group_heartbeat",
        1,
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout=milliseconds(60_000),
        subscribed_topic_names=(topic,),
        subscribed_topic_regex=None,
        topic_partitions=(),
    )
    assert response.error_code == Code.NONE
    epoch: int = response.member_epoch
    return epoch


# --- ApiVersions v5 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        ("this", 0, Code.NONE),
        (None, None, Code.NONE),
        ("this", None, 42),
        (None, 0, 42),
        ("another", None, 42),
        (None, 7, 42),
        ("another", 0, REBOOTSTRAP_REQUIRED),
        ("", 0, REBOOTSTRAP_REQUIRED),
        ("this", 7, REBOOTSTRAP_REQUIRED),
        ("another", 7, REBOOTSTRAP_REQUIRED),
    ],
)
def test_clients_that_mean_another_broker(
    client: RawClient, cluster_id: str | None, node_id: int | None, error: int
) -> None:
    """A node is given by its distance from this one's id; the connection stays open (KIP-1242)."""
    metadata = client.call("metadata", 12, topics=(), include_topic_authorized_operations=False)
    (node,) = metadata.brokers
    response = client.call(
        "api_versions",
        5,
        client_software_name="raw",
        client_software_version="1",
        cluster_id=metadata.cluster_id if cluster_id == "this" else cluster_id,
        node_id=-1 if node_id is None else node.node_id + node_id,
    )
    assert response.error_code == error
    assert bool(response.api_keys) == (error == Code.NONE)
    assert client.call("metadata", 12, topics=(), include_topic_authorized_operations=False).brokers == (node,)


# --- DeleteGroups v3 --------------------------------------------------------------------------------------------------


def test_deleted_groups_without_messages(client: RawClient, wire: Wire, group: str, topic: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    joined(client, group, topic)
    response = client.call("delete_groups", 3, groups_names=(group, f"no-{group}"))
    assert {row.group_id: (int(row.error_code), row.error_message) for row in response.results} == {
        group: (NON_EMPTY_GROUP, None),
        f"no-{group}": (GROUP_ID_NOT_FOUND, None),
    }
