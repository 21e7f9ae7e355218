"""Committed offsets over the wire (2.5, 2.12, 3.7), and Produce without records or a response."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.offset_requests import commit, settle
from tests.emulator.api.raw_client import (
    RawClient,
    plain_batch,
    produce_fields,
)


def delete(client: RawClient, group_id: str) -> int:
    response = client.call("delete_groups", 2, groups_names=(group_id,))
    return int(response.results[0].error_code)


def offset_of(client: RawClient, group_id: str, **values: Any) -> tuple[int, int]:
    row = client.offset_fetch(group_id, "t", **values)
    return int(row.error_code), row.committed_offset


def test_a_group_of_which_nothing_is_stored(client: RawClient) -> None:
    """Its first commit makes it a group, even if no offset of it is valid."""
    assert commit(client, "g", 1, topic="nope") == 3
    assert delete(client, "g") == 69
    assert commit(client, "g", 1, metadata="x" * 4097) == 12
    assert commit(client, "g", 1, generation_id_or_member_epoch=3) == 25
    assert delete(client, "g") == 0
    assert delete(client, "g") == 69


def test_a_later_plain_commit_replaces_the_pending_offset(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.txn_offset_commit("x", producer, "g", "t", 5)
    commit(client, "g", 9)
    settle(emulator, client, producer, commit=True)
    assert offset_of(client, "g") == (0, 9)


def test_null_instead_of_records(client: RawClient) -> None:
    assert client.produce("t", None).error_code == 87


def test_an_error_with_acks_0_closes_the_connection(client: RawClient) -> None:
    client.send("produce", 12, **produce_fields(12, "nope", plain_batch(b"2"), acks=0))
    assert client.is_closed()
