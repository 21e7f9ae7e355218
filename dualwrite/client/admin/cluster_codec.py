"""Encode requests about brokers and topics and decode their responses, with kafka-python's generated codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from dualwrite.client import messages as m
from dualwrite.client.admin.codec import Call, Reply
from dualwrite.client.admin.results import BrokerDescription, BrokerFeatures, ClusterDescription
from dualwrite.client.kafka_python import (
    ApiVersionsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    MetadataRequest,
    MetadataResponse,
)
from dualwrite.client.wire import codec, compiled
from dualwrite.errors import Api

_CLEANUP_POLICY: Final = "cleanup.policy"
_MOST_AGE_MS: Final = "message.timestamp.before.max.ms"
_CREATES_TOPICS: Final = "auto.create.topics.enable"
_NO_LIMIT: Final = 2**63 - 1

_FIRST_WITH_RIGHTS: Final = 8
"""The first Metadata with the operations that a client is allowed (KIP-430)."""

_READ: Final = 3
_WRITE: Final = 4
"""Two of the operations that a client may be allowed."""

_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4


class TopicPartitions(NamedTuple):
    """The metadata of a topic; `leaders` are (node id, leader epoch) by partition, -1 if there is none.

    `is_readable`, `is_writable`: whether this client is allowed READ, WRITE; None if that was not requested or the
    topic is not known.
    """

    error_code: int
    leaders: Mapping[int, tuple[int, int]]
    replicas: Mapping[int, tuple[int, ...]]
    topic_id: str | None
    is_readable: bool | None = None
    is_writable: bool | None = None


class ClusterMetadata(NamedTuple):
    """The response to Metadata."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicPartitions]


def metadata(topics: Sequence[str] | None, *, with_rights: bool = False) -> Call[ClusterMetadata]:
    """Return the request for the living brokers and these topics (None: all). It creates no topic.

    `with_rights`: also whether this client is allowed to read them (KIP-430).
    """

    def encode(version: int) -> bytes:
        topic_class = MetadataRequest.MetadataRequestTopic
        named = None if topics is None else [topic_class(version=version, name=topic) for topic in topics]
        request = MetadataRequest(version=version, topics=named, allow_auto_topic_creation=False)
        if with_rights:
            request.include_topic_authorized_operations = True
        return compiled.encode(request, version)

    return Call(Api.METADATA, (_FIRST_WITH_RIGHTS if with_rights else 4, 12), encode, _metadata)


def _metadata(body: memoryview, version: int) -> ClusterMetadata:
    response = compiled.decode(MetadataResponse, body, version)
    brokers = tuple(
        BrokerDescription(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers
    )
    controller_id = None if response.controller_id == -1 else response.controller_id
    return ClusterMetadata(
        ClusterDescription(response.cluster_id, controller_id, tuple(sorted(brokers, key=lambda row: row.broker_id))),
        {
            topic.name: TopicPartitions(
                topic.error_code,
                {row.partition_index: (row.leader_id, row.leader_epoch) for row in topic.partitions},
                {row.partition_index: tuple(row.replica_nodes) for row in topic.partitions},
                _topic_id(topic),
                _is_allowed(topic, _READ),
                _is_allowed(topic, _WRITE),
            )
            for topic in response.topics
        },
    )


def _topic_id(topic: Any) -> str | None:
    """Return the topic's id; None from brokers without topic ids (Metadata before version 10: Kafka 2.7)."""
    found = getattr(topic, "topic_id", None)
    return str(found) if isinstance(found, UUID) and found.int else None


def _is_allowed(topic: Any, operation: int) -> bool | None:
    operations = getattr(topic, "authorized_operations", None)
    return None if operations is None else operation in operations


class TopicSettings(NamedTuple):
    """The settings of a topic; `most_age_ms` is `message.timestamp.before.max.ms`, None if there is no limit."""

    cleanup_policy: str | None
    most_age_ms: int | None


def describe_settings(
    names: Sequence[str], settings: Sequence[str], *, resource_type: int = _TOPIC_RESOURCE
) -> Call[dict[str, Reply[dict[str, str]]]]:
    """Return the request for settings of topics, which any broker answers, or of a broker, which that one answers."""

    def encode(version: int) -> bytes:
        resource_class = DescribeConfigsRequest.DescribeConfigsResource
        resources = [
            resource_class(
                version=version, resource_type=resource_type, resource_name=name, configuration_keys=list(settings)
            )
            for name in names
        ]
        return compiled.encode(DescribeConfigsRequest(version=version, resources=resources), version)

    def decode(body: memoryview, version: int) -> dict[str, Reply[dict[str, str]]]:
        rows = compiled.decode(DescribeConfigsResponse, body, version).results
        return {row.resource_name: Reply(row.error_code, _values(row)) for row in rows}

    return Call(Api.DESCRIBE_CONFIGS, (1, 4), encode, decode)


def _values(row: Any) -> dict[str, str]:
    return {config.name: config.value for config in row.configs or () if config.value is not None}


def describe_topic_settings(topics: Sequence[str]) -> Call[dict[str, Reply[TopicSettings]]]:
    """Return the request for the settings of topics by which their logs are cleaned."""
    call = describe_settings(topics, (_CLEANUP_POLICY, _MOST_AGE_MS))

    def decode(body: memoryview, version: int) -> dict[str, Reply[TopicSettings]]:
        replies = call.decode(body, version)
        return {topic: Reply(code, _topic_settings(values or {})) for topic, (code, values) in replies.items()}

    return Call(call.api, call.versions, call.encode, decode)


def _topic_settings(values: Mapping[str, str]) -> TopicSettings:
    most_age_ms = int(values.get(_MOST_AGE_MS) or _NO_LIMIT)
    return TopicSettings(values.get(_CLEANUP_POLICY), None if most_age_ms == _NO_LIMIT else most_age_ms)


def creates_topics(broker_id: int) -> Call[dict[int, Reply[bool]]]:
    """Return the request for the setting of this broker by which a topic is created when a producer first names it."""
    call = describe_settings([str(broker_id)], (_CREATES_TOPICS,), resource_type=_BROKER_RESOURCE)

    def decode(body: memoryview, version: int) -> dict[int, Reply[bool]]:
        (reply,) = call.decode(body, version).values()
        return {broker_id: Reply(reply.error_code, (reply.value or {}).get(_CREATES_TOPICS) == "true")}

    return Call(call.api, call.versions, call.encode, decode)


def api_versions(broker_id: int) -> Call[dict[int, Reply[BrokerFeatures]]]:
    """Return the request for the versions and features of that broker."""
    return Call(
        Api.API_VERSIONS,
        (0, 4),
        lambda version: codec.encode(m.ApiVersions(), version),
        lambda body, version: {broker_id: _features(broker_id, ApiVersionsResponse.decode(body, version=version))},
    )


def _features(broker_id: int, response: Any) -> Reply[BrokerFeatures]:
    finalized, epoch = response.finalized_features or (), response.finalized_features_epoch
    features = BrokerFeatures(
        broker_id=broker_id,
        api_versions={row.api_key: (row.min_version, row.max_version) for row in response.api_keys},
        supported_features={row.name: (row.min_version, row.max_version) for row in response.supported_features or ()},
        finalized_features={row.name: (row.min_version_level, row.max_version_level) for row in finalized},
        finalized_features_epoch=-1 if epoch is None else epoch,
    )
    return Reply(response.error_code, features)
