"""Metadata, FindCoordinator, CreateTopics, DeleteTopics and DescribeCluster over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient


def metadata(client: RawClient, version: int, topics: Any, *, auto_create: bool = True) -> Any:
    return client.call(
        "metadata",
        version,
        topics=topics,
        allow_auto_topic_creation=auto_create,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


def named(version: int, *names: str) -> Any:
    return tuple({"name": name, "topic_id": None} for name in names)


def create(client: RawClient, version: int, name: str, **values: Any) -> Any:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **values}
    validate_only = topic.pop("validate_only", False)
    response = client.call("create_topics", version, topics=({"name": name, **topic},), validate_only=validate_only)
    return response.topics[0]


@pytest.mark.parametrize(("version", "everything"), [(0, ()), (1, None), (13, None)])
def test_all_topics(client: RawClient, version: int, everything: Any) -> None:
    response = metadata(client, version, everything)
    assert {topic.name for topic in response.topics} == {"t", "__transaction_state", "__consumer_offsets"}
    if version > 0:
        assert {topic.name for topic in response.topics if topic.is_internal} == {
            "__transaction_state",
            "__consumer_offsets",
        }
        assert metadata(client, version, ()).topics == ()


def test_auto_creation_can_be_off() -> None:
    with Emulator(config=BrokerConfig(auto_create_topics_enable=False)) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        assert metadata(client, 0, named(0, "fresh")).topics[0].error_code == 3


def test_leaders_go_round_the_nodes() -> None:
    with Emulator(nodes=3, topics={"many": 6}) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        (topic,) = metadata(client, 12, named(12, "many")).topics
        leaders = [partition.leader_id for partition in topic.partitions]
        assert sorted(leaders) == [0, 0, 1, 1, 2, 2]
        response = metadata(client, 12, named(12, "many"))
        addresses = [f"{broker.host}:{broker.port}" for broker in response.brokers]
        assert addresses == emulator.bootstrap_servers.split(",")
        assert response.controller_id == 0


@pytest.mark.parametrize("version", [2, 4, 7])
def test_create_topics(client: RawClient, version: int) -> None:
    created = create(client, version, "made", num_partitions=3)
    assert created.error_code == 0
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (3, 1)
    if version >= 7:
        assert created.topic_id == client.topic_id("made")
    assert create(client, version, "made").error_code == 36


@pytest.mark.parametrize("values", [{"num_partitions": -1, "replication_factor": -1}, {"validate_only": True}])
def test_topics_that_can_be_created(client: RawClient, values: dict[str, Any]) -> None:
    assert create(client, 7, "made", **values).error_code == 0
    exists = metadata(client, 13, named(13, "made"), auto_create=False).topics[0].error_code == 0
    assert exists == ("validate_only" not in values)


def test_create_topics_with_an_assignment(client: RawClient) -> None:
    assignments = tuple({"partition_index": i, "broker_ids": (0,)} for i in range(4))
    made = create(client, 7, "made", assignments=assignments, num_partitions=-1, replication_factor=-1)
    assert (made.error_code, made.num_partitions) == (0, 4)
    assert create(client, 7, "other", assignments=assignments).error_code == 42


def test_the_topics_of_coordinators_are_not_deleted(client: RawClient) -> None:
    assert client.delete_topic("__transaction_state").error_code == 42


def test_describe_cluster(client: RawClient, emulator: Emulator) -> None:
    values = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
    response = client.call("describe_cluster", 2, endpoint_type=1, **values)
    assert (response.error_code, response.controller_id) == (0, 0)
    assert [f"{row.host}:{row.port}" for row in response.brokers] == [emulator.bootstrap_servers]
    assert response.cluster_id == metadata(client, 12, ()).cluster_id
    assert client.call("describe_cluster", 2, endpoint_type=2, **values).error_code == 114
