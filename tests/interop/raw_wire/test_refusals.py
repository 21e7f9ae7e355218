"""Requests that are wrong, or at the edge, outside the transaction APIs: the same response on both brokers."""

from __future__ import annotations

import uuid

import pytest

from tests.interop.wire import (
    AT_ONCE,
    FROM_THE_BEGINNING,
    GROUP,
    NO_IDENTITY,
    READ_COMMITTED,
    TRANSACTION,
    Code,
    Produced,
    Wire,
    message,
    record_batch,
    wait_until,
)

MAX_TIMESTAMP = -3


# -- Produce


def test_transactional_batch_without_a_producer(wire: Wire, transactional_id: str, topic: str) -> None:
    """There is no transaction for it: it is appended, and belongs to none."""
    assert wire.produce(transactional_id, NO_IDENTITY, topic, -1, transactional=True) == Produced(Code.NONE, 0)
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 1
    assert wire.produce(None, NO_IDENTITY, topic, -1).error == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_two_batches_in_one_partition(wire: Wire, transactional_id: str, topic: str) -> None:
    assert wire.produce_bytes(None, topic, record_batch([b"a"]) + record_batch([b"b"])).error == Code.INVALID_RECORD
    identity = wire.init_ok(transactional_id)
    both = b"".join(record_batch([b"v"], identity, sequence, transactional=True) for sequence in (0, 1))
    assert wire.produce_bytes(transactional_id, topic, both).error == Code.INVALID_RECORD
    # it was refused before the coordinator was asked
    assert wire.describe(transactional_id).state == "Empty"


def test_too_large_batch(wire: Wire, topic: str) -> None:
    assert wire.produce_bytes(None, topic, record_batch([b"x" * 1_048_600])).error == 10


def test_partitions_of_one_request_fail_by_themselves(wire: Wire, transactional_id: str, topic: str) -> None:
    identity = wire.init_ok(transactional_id)
    batch = record_batch([b"v"], identity, 0, transactional=True)
    results = wire.produce_to(transactional_id, ((topic, 0), batch), ((topic, 9), batch))
    assert results == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert wire.describe(transactional_id).topics == {topic: [0]}


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_versions(wire: Wire, topic: str, version: int) -> None:
    produced = wire.produce(None, NO_IDENTITY, topic, -1, transactional=False, version=version)
    assert produced == Produced(Code.NONE, 0)
    assert wire.list_offsets(topic) == 1


# -- ListOffsets, Fetch


@pytest.mark.parametrize("version", range(1, 8))
def test_list_offsets_versions(wire: Wire, topic: str, version: int) -> None:
    wire.write(topic, b"v")
    assert wire.list_offsets(topic, version=version) == 1


def test_offset_of_the_greatest_timestamp(wire: Wire, topic: str) -> None:
    assert wire.list_offsets(topic, MAX_TIMESTAMP) == -1
    for sent_at_ms in (1_000, 3_000, 2_000):
        assert wire.produce_bytes(None, topic, record_batch([b"v"], timestamp_ms=sent_at_ms)).error == Code.NONE
    assert wire.list_offsets(topic, MAX_TIMESTAMP) == 1


def test_fetch_of_an_unknown_topic(wire: Wire) -> None:
    assert wire.fetch("no-such-topic").error == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_fetch_of_an_unknown_topic_id(wire: Wire) -> None:
    topics = [{"topic_id": uuid.uuid4(), "partitions": [FROM_THE_BEGINNING]}]
    answer = wire.ask("Fetch", 13, topics=topics, **AT_ONCE)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 100)


def test_fetch_gives_at_least_one_batch(wire: Wire, topic: str) -> None:
    for value in (b"a" * 1000, b"b" * 1000):
        wire.write(topic, value)
    assert len(wire.fetch(topic, max_bytes=10).batches) == 1
    assert len(wire.fetch(topic).batches) == 2


# -- coordinators and plain offsets


@pytest.mark.parametrize("version", [4, 5, 6])
def test_find_many_coordinators(wire: Wire, version: int) -> None:
    keys = ["one", "two"]
    answer = wire.ask("FindCoordinator", version, key_type=TRANSACTION, coordinator_keys=keys)
    found = {entry.key: entry.error_code for entry in answer.coordinators}
    assert found == dict.fromkeys(keys, Code.NONE)


def test_find_coordinator_of_an_unknown_kind(wire: Wire) -> None:
    assert wire.find_coordinator("key", 9) == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2, 9))
def test_plain_offset_commit(wire: Wire, topic: str, group: str, version: int) -> None:
    wire.wait_for_coordinator(group, GROUP)
    committed = {"committed_offset": 4, "committed_leader_epoch": -1, "committed_metadata": "m"}
    topics = [{"name": topic, "partitions": [{"partition_index": 0, **committed}]}]
    member = {"generation_id_or_member_epoch": -1, "member_id": ""}
    request = message("OffsetCommit", version, group_id=group, topics=topics, **member)
    wait_until(lambda: wire.call(request).topics[0].partitions[0].error_code == Code.NONE)  # it may still be loading
    assert wire.offset_fetch(group, topic) == (Code.NONE, 4)


def test_offset_fetch_of_everything(wire: Wire, transactional_id: str, topic: str, group: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    identity = wire.init_ok(transactional_id)
    assert wire.txn_offset_commit(transactional_id, identity, group, topic, 4) == Code.NONE
    assert wire.end_settled(transactional_id, identity, commit=True).error == Code.NONE
    answer = wire.ask("OffsetFetch", 7, group_id=group, topics=None, require_stable=True)
    (found,) = answer.topics
    assert (found.name, [partition.committed_offset for partition in found.partitions]) == (topic, [4])
