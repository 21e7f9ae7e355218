"""Clients while nodes stop, crash and start, and while leaders move."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator, PausePoint
from tests.emulator.api.raw_client import (
    batch_of,
    fetch_fields,
    milliseconds,
    plain_batch,
    produce_fields,
)
from tests.emulator.conftest import Connect
from tests.emulator.nodes.conftest import NODES


def others(node_id: int) -> list[int]:
    return [other for other in range(NODES) if other != node_id]


@pytest.mark.parametrize("end", ["stop_node", "crash_node"])
def test_a_stopped_node_does_not_answer(emulator: Emulator, connect: Connect, end: str) -> None:
    client = connect(1)
    assert client.metadata("t").controller_id == 0
    getattr(emulator, end)(1)
    assert client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        connect(1)
    for again in ("stop_node", "crash_node"):
        with pytest.raises(ValueError, match="node 1 is not running"):
            getattr(emulator, again)(1)
    emulator.start_node(1)
    assert connect(1).metadata("t").controller_id == 0
    with pytest.raises(ValueError, match="already running"):
        emulator.start_node(1)
    with pytest.raises(ValueError, match="no node 7"):
        emulator.start_node(7)


def test_a_partition_without_a_living_replica(emulator: Emulator, connect: Connect) -> None:
    assignment = ({"partition_index": 0, "broker_ids": (1,)},)
    topic = {"name": "single", "num_partitions": -1, "replication_factor": -1, "assignments": assignment, "configs": ()}
    created = connect(0).call("create_topics", 7, topics=(topic,), timeout=milliseconds(1000), validate_only=False)
    assert (created.topics[0].error_code, created.topics[0].replication_factor) == (0, 1)
    assert connect(1).produce("single", plain_batch(b"1")).error_code == 0
    with pytest.raises(ValueError, match="no complete replica"):
        emulator.move_leader("single", 0, 0)
    emulator.crash_node(1)
    (partition,) = connect(0).metadata("single").topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.isr_nodes) == (5, -1, ())
    assert connect(0).produce("single", plain_batch(b"1")).error_code == 6
    emulator.start_node(1)
    (partition,) = connect(0).metadata("single").topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 2)
    assert connect(1).fetch("single").high_watermark == 1


def test_a_long_poll_ends_with_the_leadership(emulator: Emulator, connect: Connect) -> None:
    leader = emulator.log("t").leader_id
    client = connect(leader)
    asked = client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=60_000))
    assert client.is_silent()
    emulator.move_leader("t", 0, others(leader)[0])
    answer = client.receive("fetch", 12, asked)
    assert answer.responses[0].partitions[0].error_code == 6


def test_an_append_of_the_old_leader_is_fenced(emulator: Emulator, connect: Connect) -> None:
    leader = emulator.log("t").leader_id
    producer = connect(emulator.coordinator(transactional_id="x")).init_producer_id("x")
    client = connect(leader)
    held = emulator.hold(PausePoint.AFTER_VERIFICATION)
    asked = client.send("produce", 12, **produce_fields(12, "t", batch_of(producer, b"1"), "x"))
    held.wait_reached()
    emulator.move_leader("t", 0, others(leader)[0])
    emulator.move_leader("t", 0, leader)  # even where it leads again: it is another term
    held.release()
    answer = client.receive("produce", 12, asked)
    assert answer.responses[0].partition_responses[0].error_code == 6
    assert emulator.log("t").log_end_offset == 0
    assert client.produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0


def test_a_crash_ends_unfinished_requests(emulator: Emulator, connect: Connect) -> None:
    """The node dies between the coordinator's yes and its append: the client knows nothing and the log has nothing."""
    leader = emulator.log("t").leader_id
    coordinator = others(leader)[0]
    emulator.move_coordinator(coordinator, transactional_id="x")
    producer = connect(coordinator).init_producer_id("x")
    client = connect(leader)
    held = emulator.hold(PausePoint.AFTER_VERIFICATION)
    client.send("produce", 12, **produce_fields(12, "t", batch_of(producer, b"1"), "x"))
    held.wait_reached()
    emulator.crash_node(leader)
    held.release()
    assert client.is_closed()
    assert emulator.log("t").log_end_offset == 0
    assert emulator.transactions()[0].state == "Ongoing"
    assert connect(coordinator).end_txn("x", producer, commit=False).error_code == 0


def test_a_coordinator_goes_on_when_the_asking_node_dies(emulator: Emulator, connect: Connect) -> None:
    leader = emulator.log("t").leader_id
    coordinator = others(leader)[0]
    emulator.move_coordinator(coordinator, transactional_id="x")
    producer = connect(coordinator).init_producer_id("x")
    held = emulator.hold(PausePoint.BEFORE_STATE_APPEND)
    connect(leader).send("produce", 12, **produce_fields(12, "t", batch_of(producer, b"1"), "x"))
    held.wait_reached()
    emulator.crash_node(leader)
    done = emulator.hold(PausePoint.AFTER_STATE_APPEND)
    held.release()
    done.wait_reached()
    done.release()
    assert connect(coordinator).end_txn("x", producer, commit=True).error_code == 0


def test_a_leader_whose_coordinator_dies_returns_a_retriable_error(emulator: Emulator, connect: Connect) -> None:
    leader = emulator.log("t").leader_id
    coordinator = others(leader)[0]
    emulator.move_coordinator(coordinator, transactional_id="x")
    producer = connect(coordinator).init_producer_id("x")
    client = connect(leader)
    held = emulator.hold(PausePoint.BEFORE_STATE_APPEND)
    asked = client.send("produce", 12, **produce_fields(12, "t", batch_of(producer, b"1"), "x"))
    held.wait_reached()
    emulator.crash_node(coordinator)
    held.release()
    answer = client.receive("produce", 12, asked)
    assert answer.responses[0].partition_responses[0].error_code == 19
    assert client.produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
