"""Produce over the wire: which producers may append which batches (2.11). Sequences and epochs: see the log's tests."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.api.produce import ADD_PARTITION, DEFAULT_ERROR, GENERIC_ERROR_SUPPORTED, error_table
from tests.emulator.api.raw_client import (
    RawClient,
    batch_of,
    plain_batch,
    produce_fields,
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


def test_null_instead_of_records(client: RawClient) -> None:
    assert client.produce("t", None).error_code == 87


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
