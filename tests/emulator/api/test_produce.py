"""Produce without records, and without a response; the rest is in tests/interop/raw_wire."""

from __future__ import annotations

from tests.emulator.api.raw_client import (
    RawClient,
    plain_batch,
    produce_fields,
)


def test_null_instead_of_records(client: RawClient) -> None:
    assert client.produce("t", None).error_code == 87


def test_without_acks_there_is_no_response(client: RawClient) -> None:
    client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"1"), acks=0))
    assert client.produce("t", plain_batch(b"2")).base_offset == 1


def test_an_error_with_acks_0_closes_the_connection(client: RawClient) -> None:
    client.send("produce", 12, **produce_fields(12, "nope", plain_batch(b"2"), acks=0))
    assert client.is_closed()
