"""Produce over the wire: which producers may append which batches (2.11). Sequences and epochs: see the log's tests."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator, PausePoint
from dualwrite.broker_emulator.api.k00_produce import ADD_PARTITION, DEFAULT_ERROR, GENERIC_ERROR_SUPPORTED, error_table
from tests.emulator.api.raw_client import (
    RawClient,
    batch_of,
    plain_batch,
    produce_fields,
    request_parts,
)


def add_partition(client: RawClient, transactional_id: str, producer: Any, topic: str = "t") -> int:
    parts = request_parts("add_partitions_to_txn", 3)
    response = client.call(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=(parts.AddPartitionsToTxnTopic(name=topic, partitions=(0,)),),
    )
    return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


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


@pytest.mark.parametrize(("version", "expected"), [(3, 48), (10, 48), (11, 120)])
def test_older_clients_must_have_added_the_partition(client: RawClient, version: int, expected: int) -> None:
    producer = client.init_producer_id("x")
    refused = client.produce("t", batch_of(producer, b"1"), transactional_id="x", version=version)
    assert (refused.error_code, refused.base_offset) == (expected, -1)
    assert add_partition(client, "x", producer) == 0
    assert client.produce("t", batch_of(producer, b"1"), transactional_id="x", version=version).error_code == 0


def test_a_producer_that_is_not_the_ids_own(client: RawClient) -> None:
    client.init_producer_id("x")
    stranger = client.init_producer_id(None)
    assert client.produce("t", batch_of(stranger, b"1"), transactional_id="x").error_code == 49


def test_a_fenced_producer_is_47_in_every_version(client: RawClient) -> None:
    old = client.init_producer_id("x")
    client.init_producer_id("x")
    for version in (10, 11, 12):
        assert client.produce("t", batch_of(old, b"1"), transactional_id="x", version=version).error_code == 47


def test_a_transactional_batch_needs_a_transactional_id(client: RawClient) -> None:
    producer = client.init_producer_id("x")
    assert client.produce("t", batch_of(producer, b"1")).error_code == 53


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


def test_51_is_retried_until_the_markers_are_written(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    hold = emulator.hold(PausePoint.BEFORE_MARKER)
    producer = client.end_txn("x", producer, commit=True)
    hold.wait_reached()
    releaser = threading.Timer(0.03, hold.release)
    releaser.start()
    answer = client.produce("t", batch_of(producer, b"2"), transactional_id="x")
    releaser.join()
    assert (answer.error_code, answer.base_offset) == (0, 2)


@pytest.mark.parametrize(("version", "expected"), [(10, 19), (11, 19), (12, 51)])
def test_51_that_lasts(emulator: Emulator, client: RawClient, version: int, expected: int) -> None:
    emulator.create_topic("other")
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    hold = emulator.hold(PausePoint.BEFORE_MARKER)
    client.end_txn("x", producer, commit=True, version=4)
    hold.wait_reached()
    answer = client.produce("other", batch_of(producer, b"2"), transactional_id="x", version=version)
    hold.release()
    assert answer.error_code == expected


def test_a_partition_led_elsewhere() -> None:
    with Emulator(nodes=2, topics={"two": 2}) as emulator, RawClient(emulator.bootstrap_servers) as first:
        with RawClient(emulator.bootstrap_servers.split(",")[1]) as second:
            for index in range(2):
                answers = [
                    node.produce("two", plain_batch(b"1"), partition=index).error_code for node in (first, second)
                ]
                assert sorted(answers) == [0, 6]


def test_the_tables_by_version() -> None:
    assert [error_table(version) for version in (3, 10, 11, 12, 13)] == [
        DEFAULT_ERROR,
        DEFAULT_ERROR,
        GENERIC_ERROR_SUPPORTED,
        ADD_PARTITION,
        ADD_PARTITION,
    ]
