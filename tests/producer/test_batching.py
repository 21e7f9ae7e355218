"""`linger.ms`, `batch.size`, headers and timestamps, as another client finds them in the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.client import producer_core
from dualwrite.client.records import accumulator, value_batch
from dualwrite.producer import Producer
from tests.producer.conftest import MakeProducer
from tests.producer.readers import read_with_librdkafka
from tests.support.strikes import KINDS, Strike, explained, strike

LONG_MS = 60_000
QUEUES = (producer_core.__file__, accumulator.__file__, value_batch.__file__)


@pytest.mark.parametrize(
    "act",
    [
        lambda producer: producer.send("orders", b"struck" * 100),
        lambda producer: producer.send("orders", b"too large for the batch" * 1000, "key"),
        lambda producer: producer.send_batch("orders", [b"struck" * 100] * 20),
        lambda producer: producer.send_batch("orders", [(b"struck", b"key")] * 3),
        lambda producer: producer.flush(),
    ],
)
def test_an_exception_from_a_signal_handler_affects_no_other_record(
    emulator: Emulator, make_producer: MakeProducer, act: Callable[[Producer], object]
) -> None:
    producer = make_producer(None, linger_ms=LONG_MS, delivery_timeout_ms=2 * LONG_MS, batch_size=10_000)
    with Strike(inside=QUEUES) as counted:
        act(producer)
    sent = []
    for place in range(1, counted.places + 1):
        value = b"%d;" % place * 200
        before = [producer.send("orders", value) for _ in range(2)]
        with explained(strike(place, lambda: act(producer), KINDS[place % 2], QUEUES)):
            sent += [(value, future) for future in (*before, producer.send("orders", value))]
            producer.flush()
            assert all(future.done() for _, future in sent)
    metrics = producer.metrics()
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
    stored = [future.outcome().offset for _, future in sent]
    assert stored == sorted(set(stored))
    read = read_with_librdkafka(emulator, "orders", stored[-1] + 1)
    assert [read[offset].value() for offset in stored] == [value for value, _ in sent]


def test_a_full_batch_does_not_linger(make_producer: MakeProducer) -> None:
    producer = make_producer(None, linger_ms=LONG_MS, delivery_timeout_ms=2 * LONG_MS, batch_size=1000)
    futures = [producer.send("orders", b"x" * 300) for _ in range(4)]
    assert [future.result(60).offset for future in futures[:3]] == [0, 1, 2]
    assert not futures[3].done(), "it has a batch of its own, which has room"
    producer.flush()
    assert futures[3].result(0).offset == 3


def test_without_lingering_a_record_is_sent_at_once(make_producer: MakeProducer) -> None:
    producer = make_producer(None, linger_ms=0)
    assert [producer.send("orders", b"x").result(60).offset for _ in range(3)] == [0, 1, 2]
    assert producer.metrics()["batch-total"] == 3


def test_batch_size_zero_sends_each_record_in_its_own_batch(make_producer: MakeProducer) -> None:
    producer = make_producer(None, linger_ms=LONG_MS, delivery_timeout_ms=2 * LONG_MS, batch_size=0)
    sent = producer.send_batch("orders", [b"a", b"b", b"c"])
    producer.flush()
    assert sum(stored.record_count for stored in sent.result()) == 3
    assert producer.metrics()["batch-total"] == 3


@pytest.mark.parametrize("bulk", [False, True])
def test_headers_and_timestamps_arrive_as_given(emulator: Emulator, make_producer: MakeProducer, bulk: bool) -> None:
    headers = [("a", b"1"), ("a", b"2"), ("", b""), ("null", None), ("ü", b"\xff")]
    times = [1000, 5, 2**40, 0]
    producer = make_producer(None)
    records = [{"value": b"v", "headers": headers, "timestamp_ms": time_ms} for time_ms in times]
    if bulk:
        producer.send_batch("orders", records)
    else:
        for record in records:
            producer.send("orders", **record)  # type: ignore[arg-type]
    producer.flush()
    read = read_with_librdkafka(emulator, "orders", len(times))
    assert [record.headers() for record in read] == [headers] * len(times)
    assert [record.timestamp()[1] for record in read] == times


def test_keys_in_batches_without_numpy(
    emulator: Emulator, make_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%d" % number for number in range(60)]
    with make_producer(None) as producer:
        producer.send_batch("events", [(key, b"with") for key in keys])
        producer.flush()
        monkeypatch.setattr("dualwrite.client.records.bulk._key_hasher", lambda: None)
        producer.send_batch("events", [(key, b"without") for key in keys])
        producer.flush()
    read = read_with_librdkafka(emulator, "events", 120, partitions=3)
    where = {value: {r.key(): r.partition() for r in read if r.value() == value} for value in (b"with", b"without")}
    assert where[b"with"] == where[b"without"]
    assert len(where[b"with"]) == 60
