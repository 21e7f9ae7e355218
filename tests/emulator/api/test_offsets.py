"""Committed offsets over the wire, inside and outside of transactions (2.5, 2.12, 3.7)."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.groups.records import decode_offset_key, decode_offset_value
from dualwrite.broker_emulator.log.record_batch import iter_records, parse_header
from dualwrite.broker_emulator.transactions.transaction_log import partition_for
from tests.emulator.api.offset_requests import commit, settle
from tests.emulator.api.raw_client import RawClient


def delete(client: RawClient, group_id: str) -> int:
    response = client.call("delete_groups", 2, groups_names=(group_id,))
    return int(response.results[0].error_code)


def offset_of(client: RawClient, group_id: str, **values: Any) -> tuple[int, int]:
    row = client.offset_fetch(group_id, "t", **values)
    return int(row.error_code), row.committed_offset


def test_commit_and_fetch(client: RawClient) -> None:
    assert offset_of(client, "g") == (0, -1)
    assert commit(client, "g", 7, metadata="here") == 0
    row = client.offset_fetch("g", "t")
    assert (row.committed_offset, row.metadata, row.error_code) == (7, "here", 0)
    assert offset_of(client, "other") == (0, -1)


def test_commits_that_are_refused(client: RawClient) -> None:
    assert commit(client, "g", 1, topic="nope") == 3
    assert commit(client, "g", 1, generation_id_or_member_epoch=3) == 69
    assert commit(client, "g", 1, metadata="x" * 4097) == 12
    assert offset_of(client, "g") == (0, -1)


def test_a_group_of_which_nothing_is_stored(client: RawClient) -> None:
    """Its first commit makes it a group, even if no offset of it is valid."""
    assert commit(client, "g", 1, topic="nope") == 3
    assert delete(client, "g") == 69
    assert commit(client, "g", 1, metadata="x" * 4097) == 12
    assert commit(client, "g", 1, generation_id_or_member_epoch=3) == 25
    assert delete(client, "g") == 0
    assert delete(client, "g") == 69


def test_a_group_of_which_nothing_is_stored_in_a_transaction(client: RawClient) -> None:
    producer = client.init_producer_id("x")
    assert client.txn_offset_commit("x", producer, "g", "t", 1, metadata="x" * 4097) == 12
    assert delete(client, "g") == 0


def test_a_later_plain_commit_wins_over_the_pending_one(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.txn_offset_commit("x", producer, "g", "t", 5)
    commit(client, "g", 9)
    settle(emulator, client, producer, commit=True)
    assert offset_of(client, "g") == (0, 9)


def test_the_log_holds_kafkas_records(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    commit(client, "g", 1, metadata="m")
    client.txn_offset_commit("x", producer, "g", "t", 5)
    settle(emulator, client, producer, commit=True)
    plain, transactional, marker = emulator.log("__consumer_offsets", partition_for("g", 5)).batches
    (record,) = iter_records(plain)
    assert record.key is not None
    assert record.value is not None
    assert decode_offset_key(record.key) == ("g", "t", 0)
    value = decode_offset_value(record.value)
    assert (value.offset, value.metadata, value.topic_id) == (1, "m", client.topic_id("t"))
    assert parse_header(transactional).is_transactional
    assert parse_header(transactional).producer_id == producer.producer_id
    assert parse_header(marker).is_control


def test_all_offsets_of_a_group(client: RawClient) -> None:
    commit(client, "g", 1)
    for version in (2, 7):
        response = client.call("offset_fetch", version, group_id="g", topics=None)
        rows = [(topic.name, topic.partitions[0].committed_offset) for topic in response.topics]
        assert rows == [("t", 1)]


def test_groups_of_another_node() -> None:
    with Emulator(nodes=2, topics={"t": 1}) as emulator:
        clients = [RawClient(address) for address in emulator.bootstrap_servers.split(",")]
        errors = [commit(client, "g", 1) for client in clients]
        coordinator = clients[0].call("find_coordinator", 3, key="g", key_type=0)
        assert sorted(errors) == [0, 16]
        assert errors[coordinator.node_id] == 0
