"""Encode the requests of a log in one partition, and decode their responses, with kafka-python's generated codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dualwrite.client.admin.codec import Call, Reply
from dualwrite.client.kafka_python import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.wire import compiled
from dualwrite.errors import Api

_PRODUCE_VERSIONS: Final = (3, 12)
"""From record batches (KIP-98) to the last version with topic names; version 13 has topic ids."""
_LIST_OFFSETS_VERSIONS: Final = (2, 7)
_CREATE_TOPICS_VERSIONS: Final = (2, 7)
_DELETE_RECORDS_VERSIONS: Final = (0, 2)

_ALL_REPLICAS: Final = -1
_EARLIEST: Final = -2
_ALREADY_EXISTS: Final = 36


def append(where: TopicPartition, batch: bytes, timeout_ms: int) -> Call[dict[TopicPartition, Reply[int]]]:
    """Return the request that appends a batch without a producer id, and is answered when all replicas have it."""
    topic_class: Any = ProduceRequest.TopicProduceData

    def encode(version: int) -> bytes:
        part = topic_class.PartitionProduceData(version=version, index=where.partition, records=batch)
        topic = topic_class(version=version, name=where.topic, partition_data=[part])
        return compiled.encode(
            ProduceRequest(
                version=version, transactional_id=None, acks=_ALL_REPLICAS, timeout_ms=timeout_ms, topic_data=[topic]
            ),
            version,
        )

    def decode(body: memoryview, version: int) -> dict[TopicPartition, Reply[int]]:
        response = compiled.decode(ProduceResponse, body, version)
        return {
            TopicPartition(topic.name, part.index): Reply(part.error_code, part.base_offset)
            for topic in response.responses
            for part in topic.partition_responses
        }

    return Call(Api.PRODUCE, _PRODUCE_VERSIONS, encode, decode)


def first_offset(where: TopicPartition) -> Call[dict[TopicPartition, Reply[int]]]:
    """Return the request for the first offset of a partition."""
    topic_class: Any = ListOffsetsRequest.ListOffsetsTopic

    def encode(version: int) -> bytes:
        part = topic_class.ListOffsetsPartition(
            version=version, partition_index=where.partition, current_leader_epoch=-1, timestamp=_EARLIEST
        )
        topic = topic_class(version=version, name=where.topic, partitions=[part])
        return compiled.encode(
            ListOffsetsRequest(version=version, replica_id=-1, isolation_level=0, topics=[topic]), version
        )

    def decode(body: memoryview, version: int) -> dict[TopicPartition, Reply[int]]:
        response = compiled.decode(ListOffsetsResponse, body, version)
        return {
            TopicPartition(topic.name, part.partition_index): Reply(part.error_code, part.offset)
            for topic in response.topics
            for part in topic.partitions
        }

    return Call(Api.LIST_OFFSETS, _LIST_OFFSETS_VERSIONS, encode, decode)


def delete_records(where: TopicPartition, offset: int, timeout_ms: int) -> Call[dict[TopicPartition, Reply[int]]]:
    """Return the request that deletes the records before an offset (KIP-107)."""
    topic_class: Any = DeleteRecordsRequest.DeleteRecordsTopic

    def encode(version: int) -> bytes:
        part = topic_class.DeleteRecordsPartition(version=version, partition_index=where.partition, offset=offset)
        topic = topic_class(version=version, name=where.topic, partitions=[part])
        return compiled.encode(DeleteRecordsRequest(version=version, topics=[topic], timeout_ms=timeout_ms), version)

    def decode(body: memoryview, version: int) -> dict[TopicPartition, Reply[int]]:
        response = compiled.decode(DeleteRecordsResponse, body, version)
        return {
            TopicPartition(topic.name, part.partition_index): Reply(part.error_code, part.low_watermark)
            for topic in response.topics
            for part in topic.partitions
        }

    return Call(Api.DELETE_RECORDS, _DELETE_RECORDS_VERSIONS, encode, decode)


def create_topic(
    topic: str, replicas: int, settings: Mapping[str, str], timeout_ms: int
) -> Call[dict[str, Reply[bool]]]:
    """Return the request that creates a topic of one partition. An existing topic is no error."""
    topic_class: Any = CreateTopicsRequest.CreatableTopic

    def encode(version: int) -> bytes:
        config_class = topic_class.CreatableTopicConfig
        created = topic_class(
            version=version,
            name=topic,
            num_partitions=1,
            replication_factor=replicas,
            assignments=[],
            configs=[config_class(version=version, name=name, value=value) for name, value in settings.items()],
        )
        request = CreateTopicsRequest(version=version, topics=[created], timeout_ms=timeout_ms, validate_only=False)
        return compiled.encode(request, version)

    def decode(body: memoryview, version: int) -> dict[str, Reply[bool]]:
        rows = compiled.decode(CreateTopicsResponse, body, version).topics
        return {
            row.name: Reply(0, value=False) if row.error_code == _ALREADY_EXISTS else Reply(row.error_code, value=True)
            for row in rows
        }

    return Call(Api.CREATE_TOPICS, _CREATE_TOPICS_VERSIONS, encode, decode)
