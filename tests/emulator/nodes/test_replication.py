"""Replication held back: waiting requests, unaffected ones, and records lost with the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator, PausePoint
from tests.emulator.api.raw_client import (
    RawClient,
    batch_of,
    milliseconds,
    plain_batch,
    produce_fields,
)
from tests.emulator.conftest import Connect
from tests.support.conditions import until

LONG_MS = 60_000


def leader_of(emulator: Emulator, topic: str = "t", partition: int = 0) -> int:
    return emulator.log(topic, partition).leader_id


def another(node_id: int) -> int:
    return (node_id + 1) % 3


def send_produce(client: RawClient, records: bytes, *, timeout_ms: int = LONG_MS, acks: int = -1) -> Callable[[], Any]:
    """Send without waiting; the call gives the response."""
    asked = client.send("produce", 12, **produce_fields(12, "t", records, acks=acks, timeout_ms=timeout_ms))
    return lambda: client.receive("produce", 12, asked).responses[0].partition_responses[0]


def test_replication_released_in_steps(emulator: Emulator, connect: Connect) -> None:
    client, first, second = (connect(leader_of(emulator)) for _ in range(3))
    held = emulator.hold_replication("t")
    one = send_produce(first, plain_batch(b"1", b"2"))
    assert first.is_silent()
    two = send_produce(second, plain_batch(b"3"))
    assert second.is_silent()
    for impossible in (1, 4):
        with pytest.raises(ValueError):
            held.release(up_to=impossible)
    held.release(up_to=2)
    assert one().base_offset == 0
    assert second.is_silent()
    assert client.fetch("t").high_watermark == 2
    with pytest.raises(ValueError):
        held.release(up_to=0)
    held.release(up_to=3)
    assert two().base_offset == 2
    three = send_produce(first, plain_batch(b"4"))
    assert first.is_silent()
    held.release()
    assert three().error_code == 0
    assert client.produce("t", plain_batch(b"5")).base_offset == 4


def test_a_partition_is_held_once(emulator: Emulator) -> None:
    held = emulator.hold_replication("t")
    with pytest.raises(ValueError, match="already held"):
        emulator.hold_replication("t")
    with pytest.raises(KeyError):
        emulator.hold_replication("t", 1)
    held.release()
    emulator.hold_replication("t")


@pytest.mark.parametrize("end", ["crash_node", "stop_node", "move"])
def test_unreplicated_records_are_lost_with_the_leader(emulator: Emulator, connect: Connect, end: str) -> None:
    leader = leader_of(emulator)
    client = connect(leader)
    client.produce("t", plain_batch(b"kept"))
    held = emulator.hold_replication("t")
    assert client.produce("t", plain_batch(b"promised"), acks=1).base_offset == 1
    waiting = connect(leader)
    answer = send_produce(waiting, plain_batch(b"lost"))
    assert waiting.is_silent()
    if end == "move":
        emulator.move_leader("t", 0, another(leader))
    else:
        getattr(emulator, end)(leader)
    if end == "crash_node":
        assert waiting.is_closed()
    else:
        assert answer().error_code == 6
    log = emulator.log("t")
    assert (log.log_end_offset, log.high_watermark, log.leader_epoch) == (1, 1, 1)
    held.release()
    assert connect(leader_of(emulator)).produce("t", plain_batch(b"new")).base_offset == 1


def test_a_leader_that_comes_back_alone_has_everything(emulator: Emulator, connect: Connect) -> None:
    leader = leader_of(emulator)
    held = emulator.hold_replication("t")
    assert connect(leader).produce("t", plain_batch(b"1"), acks=1).error_code == 0
    for node_id in (another(leader), another(another(leader)), leader):
        emulator.crash_node(node_id)
    emulator.start_node(leader)
    client = connect(leader)
    assert emulator.log("t").log_end_offset == 1
    assert client.list_offsets("t").error_code == 78  # all records are of earlier terms, and not replicated
    assert client.list_offsets("t", version=4).error_code == 5
    held.release()
    assert client.list_offsets("t").offset == 1


def test_a_transaction_loses_its_last_records_and_cannot_commit_them(emulator: Emulator, connect: Connect) -> None:
    """The producer was never told that its second batch is safe; after the crash it sends it again."""
    leader = leader_of(emulator)
    emulator.move_coordinator(another(leader), transactional_id="x")
    coordinator = connect(another(leader))
    producer = coordinator.init_producer_id("x")
    client = connect(leader)
    assert client.produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
    held = emulator.hold_replication("t")
    second = batch_of(producer, b"2", sequence=1)
    assert client.produce("t", second, transactional_id="x", timeout_ms=20).error_code == 7
    emulator.crash_node(leader)
    held.release()
    client = connect(leader_of(emulator))
    third = batch_of(producer, b"3", sequence=2)
    assert client.produce("t", third, transactional_id="x").error_code == 45  # the gap is seen
    assert client.produce("t", second, transactional_id="x").base_offset == 1
    assert client.produce("t", third, transactional_id="x").base_offset == 2
    done = emulator.hold(PausePoint.AFTER_COMPLETE_APPEND)
    assert coordinator.end_txn("x", producer, commit=True).error_code == 0
    done.wait_reached()
    done.release()
    assert emulator.log("t").last_stable_offset == 4


def test_markers_wait_for_replication(emulator: Emulator, connect: Connect) -> None:
    """Complete must not be written before every marker is safe, or a crash would leave a transaction open forever."""
    leader = leader_of(emulator)
    emulator.move_coordinator(another(leader), transactional_id="x")
    coordinator = connect(another(leader))
    producer = coordinator.init_producer_id("x")
    assert connect(leader).produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
    held = emulator.hold_replication("t")
    marked = emulator.hold(PausePoint.BEFORE_MARKER)
    complete = emulator.hold(PausePoint.AFTER_COMPLETE_APPEND)
    assert coordinator.end_txn("x", producer, commit=True).error_code == 0
    marked.wait_reached()
    marked.release()
    until(lambda: emulator.log("t").log_end_offset == 2)
    assert emulator.transactions()[0].state == "PrepareCommit"
    emulator.crash_node(leader)  # and the marker with it
    assert emulator.log("t").last_stable_offset == 0
    held.release()
    complete.wait_reached()
    complete.release()
    log = emulator.log("t")
    assert (log.log_end_offset, log.last_stable_offset) == (2, 2)


@pytest.mark.parametrize("end", ["crash_node", "move"])
def test_a_decision_that_was_not_replicated_was_not_made(emulator: Emulator, connect: Connect, end: str) -> None:
    coordinator = emulator.coordinator(transactional_id="x")
    emulator.move_leader("t", 0, another(coordinator))
    client = connect(coordinator)
    producer = client.init_producer_id("x", transaction_timeout=milliseconds(60_000))
    assert connect(another(coordinator)).produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
    index = next(index for index in range(3) if emulator.log("__transaction_state", index).log_end_offset)
    held = emulator.hold_replication("__transaction_state", index)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    asked = client.send("end_txn", 5, transactional_id="x", committed=True, **identity)
    assert client.is_silent()
    if end == "move":
        emulator.move_coordinator(another(coordinator), transactional_id="x")
        assert client.receive("end_txn", 5, asked).error_code == 16
    else:
        emulator.crash_node(coordinator)
    held.release()
    assert emulator.transactions()[0].state == "Ongoing"
    assert connect(emulator.coordinator(transactional_id="x")).end_txn("x", producer, commit=False).error_code == 0
