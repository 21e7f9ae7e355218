"""Faults and pause points, used from the thread of a test on real connections."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import (
    CloseAfter,
    CloseBefore,
    Delay,
    DropReply,
    DropRequest,
    Emulator,
    Error,
    Fault,
    PausePoint,
)
from tests.emulator.api.raw_client import RawClient, batch_of, encode, plain_batch, produce_fields

NOT_COORDINATOR = 16


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(topics={"t": 1, "u": 1}) as broker:
        yield broker


def test_an_error_is_answered_and_nothing_applied(emulator: Emulator, client: RawClient) -> None:
    fault = emulator.faults.add(Fault(api="Produce", action=Error(NOT_COORDINATOR)))
    assert client.produce("t", plain_batch(b"1")).error_code == NOT_COORDINATOR
    assert client.produce("t", plain_batch(b"1")).base_offset == 0
    assert fault.hits == 1
    assert not emulator.faults.active


def test_count_and_skip(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api=0, skip=1, count=2, action=Error(7)))
    assert [client.produce("t", plain_batch(b"1")).error_code for _ in range(4)] == [0, 7, 7, 0]


def test_a_fault_without_count_lasts_until_removed(emulator: Emulator, client: RawClient) -> None:
    fault = emulator.faults.add(Fault(api="produce", count=None, action=Error(7)))
    assert [client.produce("t", plain_batch(b"1")).error_code for _ in range(3)] == [7, 7, 7]
    fault.remove()
    fault.remove()
    assert client.produce("t", plain_batch(b"1")).error_code == 0


def test_a_reply_can_be_dropped_after_applying(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="Produce", action=DropReply()))
    with pytest.raises(ConnectionResetError):
        client.produce("t", plain_batch(b"1"))
    assert emulator.log("t").log_end_offset == 1


def test_a_request_can_be_dropped(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="Produce", action=DropRequest()))
    client.send_bytes(_produce_frame())
    client.send_bytes(_produce_frame())
    assert client.is_silent()
    assert emulator.log("t").log_end_offset == 0
    with RawClient(emulator.bootstrap_servers) as other:
        assert other.produce("t", plain_batch(b"1")).error_code == 0


def test_closing_before_and_after(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="Produce", action=CloseBefore()))
    emulator.faults.add(Fault(api="Produce", action=CloseAfter()))
    with pytest.raises(ConnectionResetError):
        client.produce("t", plain_batch(b"1"))
    assert emulator.log("t").log_end_offset == 0
    with RawClient(emulator.bootstrap_servers) as second:
        assert second.produce("t", plain_batch(b"1")).error_code == 0
        assert second.is_closed()


def test_a_delay(emulator: Emulator, client: RawClient) -> None:
    emulator.faults.add(Fault(api="Produce", action=Delay(30)))
    started_s = time.monotonic()
    assert client.produce("t", plain_batch(b"1")).error_code == 0
    assert time.monotonic() - started_s >= 0.028  # the loop counts whole milliseconds, from the beginning of its turn


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
        (Fault(predicate=lambda request: request.acks == -1), True),
        (Fault(predicate=lambda request: request.acks == 0), False),
    ],
)
def test_selectors(emulator: Emulator, client: RawClient, fault: Fault, hit: bool) -> None:
    producer = client.init_producer_id("x")
    handle = emulator.faults.add(fault)
    assert client.produce("t", batch_of(producer, b"1"), transactional_id="x").error_code == 0
    assert handle.hits == int(hit)


def test_topics_are_recognised_by_id(emulator: Emulator, client: RawClient) -> None:
    topic_id = client.topic_id("t")
    handle = emulator.faults.add(Fault(topic="t"))
    client.produce(topic_id, plain_batch(b"1"), version=13)
    client.fetch(topic_id, version=13)
    assert handle.hits == 2


def test_observing_changes_nothing_and_leaves_the_next_fault_its_turn(emulator: Emulator, client: RawClient) -> None:
    observed = emulator.faults.add(Fault(api="Produce"))
    emulator.faults.add(Fault(api="Produce", action=Error(7)))
    assert [client.produce("t", plain_batch(b"1")).error_code for _ in range(2)] == [7, 0]
    observed.wait(2)
    with pytest.raises(TimeoutError, match="2 of 3"):
        observed.wait(3, timeout_s=0.01)
    emulator.faults.clear()
    assert not emulator.faults.active


def test_waiting_for_a_hit(emulator: Emulator, client: RawClient) -> None:
    fault = emulator.faults.add(Fault(api="Produce", action=DropRequest()))
    client.send_bytes(_produce_frame())
    fault.wait()
    assert fault.hits == 1


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


def _produce_frame() -> bytes:
    return encode("produce", 12, 1, "raw", **produce_fields(12, "t", plain_batch(b"1")))
