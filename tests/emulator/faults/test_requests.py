"""The effects of faults on requests, and pause points, as connections see them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dualwrite.broker_emulator import (
    CloseAfter,
    CloseBefore,
    Duplicate,
    Emulator,
    Error,
    Fault,
    Hold,
    HoldReply,
    PartitionError,
    PausePoint,
    Reorder,
)
from tests.emulator.api.raw_client import (
    RawClient,
    batch_of,
    fetch_fields,
    milliseconds,
    plain_batch,
    produce_fields,
)

NOT_LEADER = 6


def produce_two_topics(client: RawClient, version: int = 12, acks: int = -1) -> dict[tuple[str, int], Any]:
    topics = tuple(
        {
            "name": topic,
            "topic_id": client.topic_id(topic) if version > 12 else None,
            "partition_data": tuple({"index": index, "records": plain_batch(b"1")} for index in range(3)),
        }
        for topic in ("t", "u")
    )
    response = client.call(
        "produce", version, transactional_id=None, acks=acks, timeout=milliseconds(1000), topic_data=topics
    )
    return {
        (topic, row.index): row
        for topic, answered in zip(("t", "u"), response.responses, strict=True)
        for row in answered.partition_responses
    }


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_one_partition_of_a_request_fails(emulator: Emulator, client: RawClient, version: int) -> None:
    emulator.faults.add(Fault(api="Produce", topic="t", partition=1, action=PartitionError(NOT_LEADER)))
    rows = produce_two_topics(client, version)
    assert len(rows) == 6
    assert {name for name, row in rows.items() if row.error_code} == {("t", 1)}
    assert rows["t", 1].error_code == NOT_LEADER
    assert [emulator.log("t", index).log_end_offset for index in range(3)] == [1, 0, 1]
    assert [emulator.log("u", index).log_end_offset for index in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("version", [1, 7, 8, 9])
def test_one_partition_of_an_offset_fetch_fails(emulator: Emulator, client: RawClient, version: int) -> None:
    emulator.faults.add(Fault(group="g", topic="t", partition=1, action=PartitionError("UNSTABLE_OFFSET_COMMIT")))
    if version >= 8:
        topics = ({"name": "t", "partition_indexes": (0, 1)},)
        groups = ({"group_id": "g", "topics": topics},)
        response = client.call("offset_fetch", version, groups=groups, require_stable=True).groups[0]
    else:
        topics = ({"name": "t", "partition_indexes": (0, 1)},)
        response = client.call("offset_fetch", version, group_id="g", topics=topics, require_stable=True)
    assert getattr(response, "error_code", 0) == 0
    assert {row.partition_index: row.error_code for row in response.topics[0].partitions} == {0: 0, 1: 88}


@pytest.mark.parametrize("version", [3, 5])
def test_one_partition_of_add_partitions_fails(emulator: Emulator, client: RawClient, version: int) -> None:
    producer = client.init_producer_id("x")
    emulator.faults.add(Fault(topic="t", partition=1, action=PartitionError("TOPIC_AUTHORIZATION_FAILED")))
    named = ({"name": "t", "partitions": (0, 1, 2)},)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    if version >= 4:
        transaction = {"transactional_id": "x", **identity, "verify_only": False, "topics": named}
        response = client.call("add_partitions_to_txn", version, transactions=(transaction,))
        topics = response.results_by_transaction[0].topic_results
    else:
        old = {"transactional_id": "x", **identity, "topics": named}
        fields = {f"v3_and_below_{name}": value for name, value in old.items()}
        topics = client.call("add_partitions_to_txn", version, **fields).results_by_topic_v3_and_below
    errors = {row.partition_index: row.partition_error_code for row in topics[0].results_by_partition}
    assert errors == {0: 0, 1: 29, 2: 0}
    assert emulator.transactions()[0].topic_partitions == (("t", 0), ("t", 2))


def test_one_topic_of_metadata_fails(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="Metadata", topic="t", action=PartitionError("LEADER_NOT_AVAILABLE")))
    response = client.metadata("t", "u")
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in response.topics] == [
        ("t", 5, 0),
        ("u", 0, 3),
    ]
    assert len(response.brokers) == 1


def test_one_topic_is_not_deleted(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="DeleteTopics", topic="t", action=PartitionError("TOPIC_DELETION_DISABLED")))
    response = client.call("delete_topics", 5, topic_names=("t", "u"), timeout=timedelta(0))
    assert {row.name: row.error_code for row in response.responses} == {"t": 73, "u": 0}


def test_coordinator_lookups_are_selected_by_transactional_id(emulator: Emulator, client: RawClient) -> None:
    handle = emulator.faults.add(Fault(transactional_id="x", action=Error("COORDINATOR_NOT_AVAILABLE")))
    assert client.call("find_coordinator", 3, key="x", key_type=0).error_code == 0
    assert client.call("find_coordinator", 3, key="x", key_type=1).error_code == 15
    assert handle.hits == 1


def test_a_held_request_is_applied_when_released(emulator: Emulator, client: RawClient, other: RawClient) -> None:
    held = emulator.faults.add(Fault(api="Produce", client_id="raw", action=Hold()))
    correlation_id = client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"held")))
    held.wait_held()
    assert other.produce("t", plain_batch(b"first")).base_offset == 0
    held.release()
    response = client.receive("produce", 12, correlation_id)
    assert response.responses[0].partition_responses[0].base_offset == 1
    assert held.held == 0


def test_a_held_request_outlives_its_connection(emulator: Emulator, other: RawClient) -> None:
    held = emulator.faults.add(Fault(api="Produce", client_id="zombie", action=Hold()))
    with RawClient(emulator.bootstrap_servers, "zombie") as zombie:
        zombie.send("produce", 12, **produce_fields(12, "t", plain_batch(b"late")))
        held.wait_held()
    waiting = other.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=5000))
    held.release()
    assert other.receive("fetch", 12, waiting).responses[0].partitions[0].high_watermark == 1


def test_a_held_reply_is_of_an_applied_request(emulator: Emulator, client: RawClient, other: RawClient) -> None:
    held = emulator.faults.add(Fault(api="Produce", client_id="raw", action=HoldReply()))
    correlation_id = client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"1")))
    held.wait_held()
    assert other.produce("t", plain_batch(b"2")).base_offset == 1
    assert client.is_silent(0.01)
    held.release()
    assert client.receive("produce", 12, correlation_id).responses[0].partition_responses[0].base_offset == 0


def test_removing_a_fault_releases_its_held_requests(emulator: Emulator, client: RawClient) -> None:
    held = emulator.faults.add(Fault(api="Produce", count=None, action=Hold()))
    correlation_id = client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"1")))
    held.wait_held()
    emulator.faults.clear()
    client.receive("produce", 12, correlation_id)
    assert client.produce("t", plain_batch(b"2")).base_offset == 1


def test_a_duplicate_is_applied_at_once(emulator: Emulator, client: RawClient) -> None:
    twice = emulator.faults.add(Fault(api="Produce", action=Duplicate()))
    assert client.produce("t", plain_batch(b"1")).base_offset == 0
    assert emulator.log("t").log_end_offset == 2
    (copy,) = twice.unsent
    assert copy.responses[0].partition_responses[0].base_offset == 1
    assert client.produce("t", plain_batch(b"2")).base_offset == 2


def test_a_late_copy_comes_after_other_requests(emulator: Emulator, client: RawClient) -> None:
    zombie = emulator.faults.add(Fault(api="Produce", action=Duplicate(after_requests=2)))
    offsets = [client.produce("t", plain_batch(b"%d" % index)).base_offset for index in range(4)]
    assert offsets == [0, 1, 2, 4]
    assert zombie.unsent[0].responses[0].partition_responses[0].base_offset == 3
    assert not emulator.faults.active


def test_a_late_copy_comes_when_released(emulator: Emulator, client: RawClient) -> None:
    zombie = emulator.faults.add(Fault(api="EndTxn", action=Duplicate(on_release=True)))
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    following = client.end_txn("x", producer, commit=True)
    assert client.fetch("t", max_wait_ms=5000).last_stable_offset == 2
    client.produce("t", batch_of(following, b"2"), transactional_id="x")
    zombie.wait_held()
    zombie.release()
    (answer,) = zombie.wait_unsent()
    assert answer.error_code == 90  # of another epoch: it does not touch the open transaction
    assert emulator.transactions()[0].state == "Ongoing"


def test_two_connections_are_reordered(emulator: Emulator, client: RawClient, other: RawClient) -> None:
    swapped = emulator.faults.add(Fault(api="Produce", action=Reorder()))
    correlation_id = client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"first")))
    swapped.wait()
    assert other.produce("t", plain_batch(b"second")).base_offset == 0
    assert client.receive("produce", 12, correlation_id).responses[0].partition_responses[0].base_offset == 1
    assert client.produce("t", plain_batch(b"third")).base_offset == 2
    assert swapped.hits == 1


def test_requests_outside_the_reordering_are_served_meanwhile_and_answered_behind(
    emulator: Emulator, client: RawClient, other: RawClient
) -> None:
    swapped = emulator.faults.add(Fault(api="Produce", action=Reorder()))
    first = client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"first")))
    between = client.send("find_coordinator", 3, key="x", key_type=1)
    swapped.wait()
    assert client.is_silent(0.01)
    assert other.produce("t", plain_batch(b"second")).base_offset == 0
    assert client.receive("produce", 12, first).responses[0].partition_responses[0].base_offset == 1
    client.receive("find_coordinator", 3, between)


def test_the_first_of_a_pair_can_be_let_go(emulator: Emulator, client: RawClient) -> None:
    swapped = emulator.faults.add(Fault(api="Produce", action=Reorder()))
    correlation_id = client.send("produce", 12, **produce_fields(12, "t", plain_batch(b"alone")))
    swapped.wait_held()
    swapped.release()
    assert client.receive("produce", 12, correlation_id).responses[0].partition_responses[0].base_offset == 0
    assert client.produce("t", plain_batch(b"next")).base_offset == 1


def test_closing_before_and_after(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="Produce", action=CloseBefore()))
    emulator.faults.add(Fault(api="Produce", action=CloseAfter()))
    with pytest.raises(ConnectionResetError):
        client.produce("t", plain_batch(b"1"))
    assert emulator.log("t").log_end_offset == 0
    with RawClient(emulator.bootstrap_servers) as second:
        assert second.produce("t", plain_batch(b"1")).error_code == 0
        assert second.is_closed()


@pytest.mark.parametrize(
    ("fault", "hit"),
    [
        (Fault(), True),
        (Fault(topic="t"), True),
        (Fault(topic="u"), False),
        (Fault(client_id="raw"), True),
        (Fault(client_id="other"), False),
        (Fault(transactional_id="x"), True),
        (Fault(transactional_id="y"), False),
        (Fault(node=0), True),
        (Fault(node=1), False),
        (Fault(api="EndTxn"), False),
        (Fault(partition=0), True),
        (Fault(partition=1), False),
        (Fault(topic="t", partition=0), True),
        (Fault(topic="u", partition=0), False),
        (Fault(group="g"), False),
        (Fault(predicate=lambda request: request.acks == -1), True),
        (Fault(predicate=lambda request: request.acks == 0), False),
    ],
)
def test_selectors(emulator: Emulator, client: RawClient, fault: Fault, hit: bool) -> None:
    producer = client.init_producer_id("x")
    handle = emulator.faults.add(fault)
    assert client.produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
    assert handle.hits == int(hit)


def test_observing_changes_nothing_and_does_not_use_up_the_next_fault(emulator: Emulator, client: RawClient) -> None:
    observed = emulator.faults.add(Fault(api="Produce"))
    emulator.faults.add(Fault(api="Produce", action=Error(7)))
    assert [client.produce("t", plain_batch(b"1")).error_code for _ in range(2)] == [7, 0]
    observed.wait(2)
    with pytest.raises(TimeoutError, match="2 of 3"):
        observed.wait(3, timeout_s=0.01)
    emulator.faults.clear()
    assert not emulator.faults.active


def test_a_held_point_is_reached_and_released(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    client.produce("u", batch_of(producer, b"1"), transactional_id="x")
    hold = emulator.hold(PausePoint.BEFORE_MARKER, lambda context: context["topic"] == "u")
    with pytest.raises(TimeoutError, match="not reached"):
        hold.wait_reached(timeout_s=0.01)
    client.end_txn("x", producer, commit=True)
    hold.wait_reached()
    assert hold.hits == 1
    assert client.fetch("t", max_wait_ms=5000).last_stable_offset == 2
    assert client.fetch("u").last_stable_offset == 0
    assert emulator.transactions()[0].state == "PrepareCommit"
    hold.release()
    assert client.fetch("u", max_wait_ms=5000).last_stable_offset == 2
