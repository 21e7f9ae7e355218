"""Requests that are wrong, or at the edge, outside the transaction APIs: the same response on both brokers."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import crc32c
import pytest
from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.produce import ProduceRequest

from tests.interop.wire import GROUP, NOBODY, READ_COMMITTED, TRANSACTION, Code, Identity, Produced, Wire, record_batch

MAX_TIMESTAMP = -3
ATTRIBUTES_OFFSET, CRC_OFFSET, MAGIC_OFFSET = 21, 17, 16
LAST_SEQUENCE = 2147483647


def with_attributes(batch: bytes, bits: int) -> bytes:
    """The batch with these attribute bits added, and a checksum that fits."""
    (attributes,) = struct.unpack_from(">h", batch, ATTRIBUTES_OFFSET)
    body = struct.pack(">h", attributes | bits) + batch[ATTRIBUTES_OFFSET + 2 :]
    return batch[:CRC_OFFSET] + struct.pack(">I", crc32c.crc32c(body)) + body


# -- Produce


def test_control_batch_of_a_client(wire: Wire, topic: str) -> None:
    assert wire.produce_bytes(None, topic, with_attributes(record_batch([b"v"]), 0x20)).error == Code.INVALID_RECORD


def test_transactional_batch_without_a_producer(wire: Wire, transactional_id: str, topic: str) -> None:
    """There is no transaction for it: it is appended, and belongs to none."""
    assert wire.produce(transactional_id, NOBODY, topic, -1, transactional=True) == Produced(Code.NONE, 0)
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 1
    assert wire.produce(None, NOBODY, topic, -1).error == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_two_batches_in_one_partition(wire: Wire, transactional_id: str, topic: str) -> None:
    assert wire.produce_bytes(None, topic, record_batch([b"a"]) + record_batch([b"b"])).error == Code.INVALID_RECORD
    identity = wire.init_ok(transactional_id)
    both = b"".join(record_batch([b"v"], identity, sequence, transactional=True) for sequence in (0, 1))
    assert wire.produce_bytes(transactional_id, topic, both).error == Code.INVALID_RECORD
    # it was refused before the coordinator was asked
    assert wire.describe(transactional_id).state == "Empty"


def test_no_batch(wire: Wire, topic: str) -> None:
    assert wire.produce_bytes(None, topic, b"").error == Code.INVALID_RECORD


def test_old_magic(wire: Wire, topic: str) -> None:
    batch = bytearray(record_batch([b"v"]))
    batch[MAGIC_OFFSET] = 1
    assert wire.produce_bytes(None, topic, bytes(batch)).error == Code.INVALID_RECORD


def test_too_large_batch(wire: Wire, topic: str) -> None:
    assert wire.produce_bytes(None, topic, record_batch([b"x" * 1_048_600])).error == 10


def test_sequences_wrap_around(wire: Wire, topic: str) -> None:
    identity = wire.init_ok(None)
    for sequence, values in ((LAST_SEQUENCE - 1, (b"a",)), (LAST_SEQUENCE, (b"b", b"c")), (1, (b"d",))):
        assert wire.produce(None, identity, topic, sequence, *values, transactional=False).error == Code.NONE
    assert wire.produce(None, identity, topic, LAST_SEQUENCE, b"b", b"c", transactional=False) == Produced(Code.NONE, 1)
    assert wire.produce(None, identity, topic, 3, transactional=False).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_two_producers_in_one_request(wire: Wire, transactional_id: str) -> None:
    topic = f"{transactional_id}-topic"
    wire.create_topic(topic, 2)
    first = wire.init_ok(transactional_id)
    second = Identity(first.producer_id + 1, 0)
    data = ProduceRequest.TopicProduceData
    batches = [record_batch([b"v"], identity, 0, transactional=True) for identity in (first, second)]
    partitions = [data.PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    answer = wire.call(
        ProduceRequest(
            version=12,
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[data(name=topic, partition_data=partitions)],
        )
    )
    codes = [result.error_code for result in answer.responses[0].partition_responses]
    assert codes == [Code.INVALID_PRODUCER_ID_MAPPING] * 2


def test_partitions_of_one_request_fail_by_themselves(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    data = ProduceRequest.TopicProduceData
    batch = record_batch([b"v"], identity, 0, transactional=True)
    partitions = [data.PartitionProduceData(index=index, records=batch) for index in (0, 9)]
    answer = wire.call(
        ProduceRequest(
            version=12,
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[data(name=topic, partition_data=partitions)],
        )
    )
    results = {result.index: result.error_code for result in answer.responses[0].partition_responses}
    assert results == {0: Code.NONE, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert wire.describe(transactional_id).topics == {topic: [0]}


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_versions(wire: Wire, topic: str, version: int) -> None:
    assert wire.produce(None, NOBODY, topic, -1, b"v", transactional=False, version=version) == Produced(Code.NONE, 0)
    assert wire.list_offsets(topic) == 1


# -- ListOffsets, Fetch


@pytest.mark.parametrize("version", range(1, 8))
def test_list_offsets_versions(wire: Wire, topic: str, version: int) -> None:
    assert wire.produce(None, NOBODY, topic, -1, b"v", transactional=False).error == Code.NONE
    assert wire.list_offsets(topic, version=version) == 1


def test_offset_of_the_greatest_timestamp(wire: Wire, topic: str) -> None:
    assert wire.list_offsets(topic, MAX_TIMESTAMP) == -1
    for sent_at_ms in (1_000, 3_000, 2_000):
        assert wire.produce_bytes(None, topic, record_batch([b"v"], timestamp_ms=sent_at_ms)).error == Code.NONE
    assert wire.list_offsets(topic, MAX_TIMESTAMP) == 1


def test_fetch_of_an_unknown_topic(wire: Wire) -> None:
    assert wire.fetch("no-such-topic").error == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_fetch_of_an_unknown_topic_id(wire: Wire) -> None:
    wanted = FetchRequest.FetchTopic
    partition = wanted.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1000,
    )
    answer = wire.call(
        FetchRequest(
            version=13,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[wanted(topic_id=uuid.uuid4(), partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )
    )
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 100)


def test_fetch_gives_at_least_one_batch(wire: Wire, topic: str) -> None:
    for value in (b"a" * 1000, b"b" * 1000):
        assert wire.produce(None, NOBODY, topic, -1, value, transactional=False).error == Code.NONE
    assert len(wire.fetch(topic, max_bytes=10).batches) == 1
    assert len(wire.fetch(topic).batches) == 2


# -- topics


def metadata(wire: Wire, name: str, *, create: bool) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=name)]
    return wire.call(MetadataRequest(version=8, topics=topics, allow_auto_topic_creation=create)).topics[0]


def test_metadata_of_unknown_topics(wire: Wire, transactional_id: str) -> None:
    name = f"{transactional_id}-topic"
    assert metadata(wire, name, create=False).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata(wire, "not a topic!", create=True).error_code == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "not a topic!"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"num_partitions": 0}, 37),
        ({"replication_factor": 3}, 38),
        ({"replication_factor": 0}, 38),
        ({}, 36),
    ],
)
def test_create_topics_refusals(wire: Wire, topic: str, changes: dict[str, Any], error: int) -> None:
    settings: dict[str, Any] = {
        "name": topic,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    if changes and "name" not in changes:
        settings["name"] = f"{topic}-new"
    asked = CreateTopicsRequest.CreatableTopic(**(settings | changes))
    answer = wire.call(CreateTopicsRequest(version=5, topics=[asked], timeout_ms=10_000, validate_only=False))
    assert answer.topics[0].error_code == error


def test_delete_topics(wire: Wire, topic: str) -> None:
    request = DeleteTopicsRequest(version=5, topic_names=[topic, "no-such-topic"], timeout_ms=10_000)
    codes = {result.name: result.error_code for result in wire.call(request).responses}
    assert codes == {topic: Code.NONE, "no-such-topic": Code.UNKNOWN_TOPIC_OR_PARTITION}


# -- coordinators and plain offsets


@pytest.mark.parametrize("version", [4, 5, 6])
def test_find_many_coordinators(wire: Wire, version: int) -> None:
    keys = ["one", "two"]
    request = FindCoordinatorRequest(version=version, key_type=TRANSACTION, coordinator_keys=keys)
    found = {entry.key: entry.error_code for entry in wire.call(request).coordinators}
    assert found == dict.fromkeys(keys, Code.NONE)


def test_find_coordinator_of_an_unknown_kind(wire: Wire) -> None:
    assert wire.find_coordinator("key", 9) == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2, 9))
def test_plain_offset_commit(wire: Wire, topic: str, group: str, version: int) -> None:
    wire.wait_for_coordinator(group, GROUP)
    wanted = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = wanted.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=4, committed_leader_epoch=-1, committed_metadata="m"
    )
    request = OffsetCommitRequest(
        version=version,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[wanted(name=topic, partitions=[partition])],
    )
    assert wire.call(request).topics[0].partitions[0].error_code == Code.NONE
    assert wire.offset_fetch(group, topic) == (Code.NONE, 4)


def test_offset_fetch_of_everything(wire: Wire, transactional_id: str, topic: str, group: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    identity = wire.init_ok(transactional_id)
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 4) == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    answer = wire.call(OffsetFetchRequest(version=7, group_id=group, topics=None, require_stable=True))
    (found,) = answer.topics
    assert (found.name, [partition.committed_offset for partition in found.partitions]) == (topic, [4])
