"""Delivery callbacks: when and where they run, their arguments, and their permitted calls."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from dualwrite.broker_emulator import DropRequest, Emulator, Fault
from dualwrite.errors import DeliveryError, IllegalStateError, KafkaError
from dualwrite.producer import Producer, RecordFuture, RecordMetadata
from tests.producer.conftest import MakeProducer
from tests.support.conditions import until


def test_each_callback_is_called_once_in_order_and_in_the_io_thread(make_producer: MakeProducer) -> None:
    producer = make_producer(None)
    told: list[Any] = []
    for number in range(5):
        producer.send(
            "orders",
            b"x",
            timestamp_ms=1000 + number,
            on_delivery=lambda *fate: told.append((threading.current_thread().name, *fate)),
        )
    producer.flush()
    until(lambda: len(told) == 5)
    assert told == [("dualwrite-io", RecordMetadata("orders", 0, n, 1000 + n), None) for n in range(5)]


def test_a_callback_gets_the_error(producer: Producer) -> None:
    producer.begin_transaction()
    told: list[tuple[RecordMetadata | None, KafkaError | None]] = []
    producer.send("orders", b"x", on_delivery=lambda *fate: told.append(fate))
    producer.abort_transaction()
    until(lambda: len(told) == 1)
    assert told[0][0] is None
    assert isinstance(told[0][1], DeliveryError)


def test_a_callback_that_fails_is_logged_and_stops_nothing(
    make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make_producer(None)
    heard = threading.Event()
    producer.send("orders", b"a", on_delivery=lambda *_: 1 // 0)
    producer.send("orders", b"b", on_delivery=lambda *_: heard.set())
    assert heard.wait(60)
    assert producer.send("orders", b"c").result(60).offset == 2
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (line.name, line.getMessage()) == (
        "dualwrite.client.records.delivery",
        "a delivery callback of a record for orders-0 failed",
    )


@pytest.mark.parametrize("interruption", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_callback_that_exits_ends_neither_the_io_thread_nor_other_callbacks(
    make_producer: MakeProducer, interruption: type[BaseException]
) -> None:
    producer, another = make_producer(None), make_producer("another")
    another.init_transactions()

    def leave(*_: Any) -> None:
        raise interruption

    told: list[Any] = []
    for callback in (leave, lambda *fate: told.append(fate)):
        producer.send("orders", b"x", timestamp_ms=1000, on_delivery=callback)
    until(lambda: len(told) == 1)
    assert told == [(RecordMetadata("orders", 0, 1, 1000), None)]
    another.begin_transaction()
    another.send("orders", b"y")
    another.commit_transaction()
    assert producer.send("orders", b"z").result(60).offset == 4  # after the marker


def test_a_callback_may_send_and_may_not_wait(make_producer: MakeProducer) -> None:
    producer = make_producer(None)
    seen: list[Any] = []

    def on_delivery(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        seen.append(producer.send("orders", b"from the callback"))
        with pytest.raises(IllegalStateError, match="I/O thread"):
            producer.flush()
        seen.append("refused")

    producer.send("orders", b"first", on_delivery=on_delivery)
    until(lambda: len(seen) == 2)
    assert seen[0].result(60).offset == 1


def test_a_future_calls_back_early_or_late(make_producer: MakeProducer) -> None:
    producer = make_producer(None)
    future = producer.send("orders", b"x")
    told: list[RecordFuture] = []
    future.add_done_callback(told.append)
    future.result(60)
    future.add_done_callback(told.append)
    until(lambda: told == [future, future])


def test_callbacks_hear_of_closing(emulator: Emulator, make_producer: MakeProducer) -> None:
    emulator.faults.add(Fault(api="Produce", action=DropRequest()))
    producer = make_producer(None)
    told: list[Any] = []
    producer.send("orders", b"x", on_delivery=lambda *fate: told.append(fate))
    producer.close(timeout_s=0)
    until(lambda: len(told) == 1)
