"""Fetch and ListOffsets over the wire: isolation, waiting, limits."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.log.record_batch import parse_header
from tests.emulator.api.raw_client import RawClient, batch_of, fetch_fields, plain_batch

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def base_offsets(records: bytes) -> list[int]:
    offsets, position = [], 0
    while position < len(records):
        header = parse_header(records, position)
        offsets.append(header.base_offset)
        position += header.size_bytes
    return offsets


def test_a_fetch_waits_for_the_commit_of_another_client(emulator: Emulator, client: RawClient) -> None:
    with RawClient(emulator.bootstrap_servers) as writer:
        producer = writer.init_producer_id("x")
        waiting = client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=60_000))
        writer.produce("t", batch_of(producer, b"1"), transactional_id="x")
        assert client.is_silent()
        writer.end_txn("x", producer, commit=True)
    partition = client.receive("fetch", 12, waiting).responses[0].partitions[0]
    assert base_offsets(partition.records) == [0, 1]


def test_a_fetch_waits_for_min_bytes(emulator: Emulator, client: RawClient) -> None:
    size = len(plain_batch(b"x"))
    waiting = client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=60_000, min_bytes=size + 1))
    with RawClient(emulator.bootstrap_servers) as writer:
        writer.produce("t", plain_batch(b"x"))
        assert client.is_silent()
        writer.produce("t", plain_batch(b"x"))
    partition = client.receive("fetch", 12, waiting).responses[0].partitions[0]
    assert base_offsets(partition.records) == [0, 1]


def test_a_waiting_fetch_notices_that_its_topic_was_deleted(emulator: Emulator, client: RawClient) -> None:
    waiting = client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=60_000))
    with RawClient(emulator.bootstrap_servers) as other:
        other.delete_topic("t")
    assert client.receive("fetch", 12, waiting).responses[0].partitions[0].error_code == 3


def test_limits_never_keep_the_first_batch_back(client: RawClient) -> None:
    size = len(plain_batch(b"x"))
    for _ in range(4):
        client.produce("t", plain_batch(b"x"))
    assert base_offsets(client.fetch("t", max_bytes=1).records) == [0]
    assert base_offsets(client.fetch("t", partition_max_bytes=1).records) == [0]
    assert base_offsets(client.fetch("t", max_bytes=2 * size).records) == [0, 1]
    assert base_offsets(client.fetch("t", partition_max_bytes=3 * size, offset=1).records) == [1, 2, 3]


def test_max_bytes_is_shared_by_the_partitions(emulator: Emulator, client: RawClient) -> None:
    emulator.create_topic("two", 2)
    for partition in (0, 1, 0, 1):
        client.produce("two", plain_batch(b"x"), partition=partition)
    size = len(plain_batch(b"x"))
    partitions = tuple({"partition": index, "fetch_offset": 0, "partition_max_bytes": 2**20} for index in (1, 0))
    request = {
        **fetch_fields(12, "two", max_bytes=3 * size),
        "topics": ({"topic": "two", "partitions": partitions},),
    }
    response = client.call("fetch", 12, **request)
    assert [base_offsets(partition.records) for partition in response.responses[0].partitions] == [[0, 1], [0]]


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_aborted_transactions_of_a_partition_that_is_not_read_are_left_out(
    client: RawClient, isolation_level: int
) -> None:
    """An empty list; null would mean that the list was not requested."""
    assert client.fetch("nope", isolation_level=isolation_level).aborted_transactions == ()
    assert client.fetch("t", isolation_level=isolation_level, current_leader_epoch=1).aborted_transactions is None
    assert client.fetch("t", isolation_level=isolation_level, offset=99).aborted_transactions is None


@pytest.mark.parametrize(
    ("version", "timestamp", "isolation_level", "error", "offset"),
    [
        (11, LATEST, READ_UNCOMMITTED, 0, 2),
        (11, LATEST, READ_COMMITTED, 0, 1),
        (1, LATEST, READ_COMMITTED, 0, 2),
        (11, EARLIEST, READ_COMMITTED, 0, 0),
        (11, EARLIEST_LOCAL, READ_COMMITTED, 0, 0),
        (11, LATEST_TIERED, READ_COMMITTED, 0, -1),
        (11, 0, READ_COMMITTED, 0, 0),
        (11, 2**60, READ_COMMITTED, 0, -1),
        (6, MAX_TIMESTAMP, READ_COMMITTED, 35, -1),
        (7, -9, READ_COMMITTED, 35, -1),
    ],
)
def test_list_offsets(
    client: RawClient, version: int, timestamp: int, isolation_level: int, error: int, offset: int
) -> None:
    client.produce("t", plain_batch(b"0"))
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    row = client.list_offsets("t", timestamp, version=version, isolation_level=isolation_level)
    assert (row.error_code, row.offset) == (error, offset)


@pytest.mark.parametrize(
    ("topic", "epoch", "timestamp", "error"),
    [("t", 1, -9, 35), ("nope", -1, -9, 35), ("nope", -1, -1, 3), ("t", 1, -1, 75)],
)
def test_list_offsets_checks_the_timestamp_first(
    client: RawClient, topic: str, epoch: int, timestamp: int, error: int
) -> None:
    assert client.list_offsets(topic, timestamp, version=9, leader_epoch=epoch).error_code == error
