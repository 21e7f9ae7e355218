"""Metadata, CreateTopics and DeleteTopics over the wire."""

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


def named(name: str) -> Any:
    return ({"name": name, "topic_id": None},)


def create(client: RawClient, name: str, **values: Any) -> Any:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **values}
    validate_only = topic.pop("validate_only", False)
    response = client.call("create_topics", 7, topics=({"name": name, **topic},), validate_only=validate_only)
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
        assert metadata(client, 0, named("fresh")).topics[0].error_code == 3


@pytest.mark.parametrize("values", [{"num_partitions": -1, "replication_factor": -1}, {"validate_only": True}])
def test_topics_that_can_be_created(client: RawClient, values: dict[str, Any]) -> None:
    assert create(client, "made", **values).error_code == 0
    exists = metadata(client, 13, named("made"), auto_create=False).topics[0].error_code == 0
    assert exists == ("validate_only" not in values)


def test_the_topics_of_coordinators_are_not_deleted(client: RawClient) -> None:
    assert client.delete_topic("__transaction_state").error_code == 42
