"""Metadata, FindCoordinator, CreateTopics, DeleteTopics and DescribeCluster over the wire."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient, milliseconds, request_parts


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
    parts = request_parts("metadata", version)
    return tuple(parts.MetadataRequestTopic(name=name, topic_id=None) for name in names)


def create(client: RawClient, version: int, name: str, **values: Any) -> Any:
    parts = request_parts("create_topics", version)
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **values}
    validate_only = topic.pop("validate_only", False)
    response = client.call(
        "create_topics", version, topics=(parts.CreatableTopic(name=name, **topic),), validate_only=validate_only
    )
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


def test_a_topic_is_created_by_asking_for_it(client: RawClient) -> None:
    (absent,) = metadata(client, 13, named(13, "fresh"), auto_create=False).topics
    assert (absent.error_code, absent.partitions) == (3, ())
    (creating,) = metadata(client, 13, named(13, "fresh")).topics
    assert (creating.error_code, creating.partitions) == (3, ())
    (created,) = metadata(client, 13, named(13, "fresh"), auto_create=False).topics
    assert (created.error_code, len(created.partitions)) == (0, 1)
    assert created.topic_id == client.topic_id("fresh")


def test_auto_creation_can_be_off() -> None:
    with Emulator(config=BrokerConfig(auto_create_topics_enable=False)) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        assert metadata(client, 0, named(0, "fresh")).topics[0].error_code == 3


@pytest.mark.parametrize("version", [0, 13])
def test_names_that_are_not_legal(client: RawClient, version: int) -> None:
    for name in ("", ".", "..", "a/b", "x" * 250):
        assert metadata(client, version, named(version, name)).topics[0].error_code == 17


def test_metadata_by_topic_id(client: RawClient) -> None:
    parts = request_parts("metadata", 12)
    known = (parts.MetadataRequestTopic(name=None, topic_id=client.topic_id("t")),)
    assert metadata(client, 12, known).topics[0].name == "t"
    unknown = metadata(client, 12, (parts.MetadataRequestTopic(name=None, topic_id=uuid.uuid4()),)).topics[0]
    assert (unknown.error_code, unknown.name) == (100, None)


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
    parts = request_parts("create_topics", 7)
    assignments = tuple(parts.CreatableReplicaAssignment(partition_index=i, broker_ids=(0,)) for i in range(4))
    made = create(client, 7, "made", assignments=assignments, num_partitions=-1, replication_factor=-1)
    assert (made.error_code, made.num_partitions) == (0, 4)
    assert create(client, 7, "other", assignments=assignments).error_code == 42


def test_delete_topics(client: RawClient) -> None:
    topic_id = client.topic_id("t")
    parts = request_parts("delete_topics", 6)

    def delete(name: str | None, by_id: Any) -> int:
        state = parts.DeleteTopicState(name=name, topic_id=by_id)
        response = client.call("delete_topics", 6, topics=(state,), timeout=milliseconds(1))
        return int(response.responses[0].error_code)

    assert delete("t", topic_id) == 42
    assert delete(None, topic_id) == 0
    assert delete(None, topic_id) == 100
    assert delete("t", None) == 3
    assert delete("__transaction_state", None) == 42


@pytest.mark.parametrize(("key_type", "error"), [(0, 0), (1, 0), (2, 42)])
def test_find_coordinator(client: RawClient, key_type: int, error: int) -> None:
    single = client.call("find_coordinator", 3, key="k", key_type=key_type)
    many = client.call("find_coordinator", 6, key_type=key_type, coordinator_keys=("k", "l"))
    assert single.error_code == error
    assert [row.error_code for row in many.coordinators] == [error, error]
    assert single.node_id == many.coordinators[0].node_id == (-1 if error else 0)


def test_describe_cluster(client: RawClient, emulator: Emulator) -> None:
    values = {"include_cluster_authorized_operations": False, "include_fenced_brokers": False}
    response = client.call("describe_cluster", 2, endpoint_type=1, **values)
    assert (response.error_code, response.controller_id) == (0, 0)
    assert [f"{row.host}:{row.port}" for row in response.brokers] == [emulator.bootstrap_servers]
    assert response.cluster_id == metadata(client, 12, ()).cluster_id
    assert client.call("describe_cluster", 2, endpoint_type=2, **values).error_code == 114


@pytest.mark.parametrize("validate_only", [False, True])
def test_a_config_with_a_value_that_it_does_not_take(client: RawClient, validate_only: bool) -> None:
    config = request_parts("create_topics", 7).CreatableTopicConfig(name="retention.ms", value="soon")
    row = create(client, 7, "made", configs=(config,), validate_only=validate_only)
    assert row.error_code == 40
    assert "Invalid value soon for configuration retention.ms" in row.error_message
