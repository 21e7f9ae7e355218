"""Produce over the wire: which producers may append which batches (2.11). Sequences and epochs: see the log's tests."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.api.k00_produce import ADD_PARTITION, DEFAULT_ERROR, GENERIC_ERROR_SUPPORTED, error_table
from tests.emulator.api.raw_client import (
    RawClient,
    batch_of,
    plain_batch,
    produce_fields,
    request_parts,
)


@pytest.mark.parametrize("version", [12, 13])
def test_the_partition_joins_the_transaction_by_being_written_to(
    emulator: Emulator, client: RawClient, version: int
) -> None:
    producer = client.init_producer_id("x")
    topic = client.topic_id("t") if version == 13 else "t"
    answer = client.produce(topic, batch_of(producer, b"1"), transactional_id="x", version=version)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, 0, 0)
    (description,) = emulator.transactions()
    assert description.state == "Ongoing"
    assert description.topic_partitions == (("t", 0),)


def test_two_producers_in_one_request(emulator: Emulator, client: RawClient) -> None:
    emulator.create_topic("two", 2)
    parts = request_parts("produce", 12)
    data = tuple(
        parts.PartitionProduceData(index=index, records=batch_of(client.init_producer_id(name), b"1"))
        for index, name in enumerate(("x", "y"))
    )
    request = {
        **produce_fields(12, "two", b"", "x"),
        "topic_data": (parts.TopicProduceData(name="two", partition_data=data),),
    }
    answers = client.call("produce", 12, **request).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [49, 49]


def test_a_request_across_partitions_is_answered_for_each(emulator: Emulator, client: RawClient) -> None:
    emulator.create_topic("two", 2)
    parts = request_parts("produce", 12)
    producer = client.init_producer_id("x")
    data = tuple(parts.PartitionProduceData(index=index, records=batch_of(producer, b"1")) for index in (1, 2, 0))
    request = {
        **produce_fields(12, "two", b"", "x"),
        "topic_data": (parts.TopicProduceData(name="two", partition_data=data),),
    }
    answers = client.call("produce", 12, **request).responses[0].partition_responses
    assert [(answer.index, answer.error_code) for answer in answers] == [(1, 0), (2, 3), (0, 0)]
    assert set(emulator.transactions()[0].topic_partitions) == {("two", 0), ("two", 1)}


@pytest.mark.parametrize("version", [3, 12])
def test_unknown_topics(client: RawClient, version: int) -> None:
    assert client.produce("nope", plain_batch(b"1"), version=version).error_code == 3
    assert client.produce("t", plain_batch(b"1"), version=version, partition=9).error_code == 3
    assert client.produce(client.topic_id("t"), plain_batch(b"1"), version=13).error_code == 0
    assert client.produce(None, plain_batch(b"1"), version=13).error_code == 100


@pytest.mark.parametrize(
    ("records", "error"),
    [(b"", 87), (None, 87), (b"garbage", 87), (plain_batch(b"1")[:-1], 87), (plain_batch(b"1")[:-1] + b"?", 2)],
)
def test_records_that_are_no_batches(client: RawClient, records: bytes | None, error: int) -> None:
    assert client.produce("t", records).error_code == error
    assert client.produce("t", plain_batch(b"1")).error_code == 0


def test_acks(emulator: Emulator, client: RawClient) -> None:
    assert client.produce("t", plain_batch(b"1"), acks=2).error_code == 21
    assert client.produce("t", plain_batch(b"1"), acks=1).error_code == 0
    client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"2"), acks=0))
    assert (
        client.produce("t", plain_batch(b"3")).base_offset == 2
    )  # the previous batch was appended, without a response


def test_an_error_with_acks_0_closes_the_connection(client: RawClient) -> None:
    client.send("produce", 12, **produce_fields(12, "nope", plain_batch(b"2"), acks=0))
    assert client.is_closed()


def test_the_tables_by_version() -> None:
    assert [error_table(version) for version in (3, 10, 11, 12, 13)] == [
        DEFAULT_ERROR,
        DEFAULT_ERROR,
        GENERIC_ERROR_SUPPORTED,
        ADD_PARTITION,
        ADD_PARTITION,
    ]
