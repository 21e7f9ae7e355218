"""A producer's metrics, compared with its actions."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator, Error, Fault
from dualwrite.client.metrics import CALL_METRICS
from dualwrite.errors import AbortableError
from dualwrite.producer import Producer, TopicPartition
from tests.producer.conftest import MakeProducer

NOT_LEADER = 6
MESSAGE_TOO_LARGE = 10


def test_records_batches_and_requests_are_counted(make_producer: MakeProducer) -> None:
    producer = make_producer(None, linger_ms=5000, delivery_timeout_ms=60_000)
    for _ in range(10):
        producer.send("orders", b"x" * 100)
    waiting = producer.metrics()
    assert waiting["buffer-available-bytes"] < waiting["buffer-total-bytes"]
    assert (waiting["record-send-total"], waiting["batch-total"]) == (0, 0)
    producer.flush()
    metrics = producer.metrics()
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    assert (metrics["record-send-total"], metrics["record-error-total"], metrics["record-retry-total"]) == (10, 0, 0)
    assert (metrics["batch-total"], metrics["request-total"], metrics["response-total"]) == (1, 1, 1)
    assert (metrics["records-per-request-avg"], metrics["requests-in-flight"]) == (10, 0)
    assert 1000 < metrics["batch-size-avg"] < 1200
    assert 0 < metrics["request-latency-avg"] <= metrics["request-latency-max"] < 5000
    assert 0 < metrics["record-queue-time-avg"] <= metrics["record-queue-time-max"]
    assert metrics["flush-time-ns-total"] > 0


def test_retries_and_errors(emulator: Emulator, make_producer: MakeProducer) -> None:
    producer = make_producer(two_phase_commit=False)
    producer.init_transactions()
    producer.begin_transaction()
    emulator.faults.add(Fault(api="Produce", action=Error(NOT_LEADER), count=1))
    producer.send("orders", b"x").result(60)
    emulator.faults.add(Fault(api="Produce", action=Error(MESSAGE_TOO_LARGE), count=1))
    producer.send("orders", b"x")
    with pytest.raises(AbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    metrics = producer.metrics()
    assert (metrics["record-send-total"], metrics["record-error-total"], metrics["record-retry-total"]) == (1, 1, 1)


def test_every_call_of_a_transaction_is_timed(producer: Producer) -> None:
    for call in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.send("orders", b"x")
        call()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("events", 0): 1}, "g")
    producer.send("orders", b"x")
    producer.complete_transaction(producer.prepare_transaction())
    producer.flush()
    metrics = producer.metrics()
    assert {name for name in CALL_METRICS.values() if metrics[name] <= 0} == set()
    before = metrics["txn-commit-time-ns-total"]
    producer.begin_transaction()
    producer.send("orders", b"x")
    producer.commit_transaction()
    assert producer.metrics()["txn-commit-time-ns-total"] > before
