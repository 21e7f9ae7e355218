"""The partitions of records for each `partitioner`, beside librdkafka's own choice."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer as Confluent

from dualwrite.broker_emulator import Emulator
from dualwrite.client.records.send_arguments import PartitionChoice
from dualwrite.errors import InvalidRecordError
from tests.producer.conftest import MakeProducer
from tests.producer.readers import read_with_librdkafka

KEYS = [b"%d" % number for number in range(50)] + [b"a-little-bit-long-string", "schlüssel".encode()]


@pytest.mark.parametrize("name", ["murmur2_random", "consistent_random"])
def test_a_key_goes_where_librdkafka_puts_it(emulator: Emulator, make_producer: MakeProducer, name: str) -> None:
    confluent = Confluent({"bootstrap.servers": emulator.bootstrap_servers, "partitioner": name})
    for key in KEYS:
        confluent.produce("events", value=b"theirs", key=key)
    assert confluent.flush(10) == 0
    producer = make_producer(None, partitioner=name)
    for key in KEYS:
        producer.send("events", b"ours", key)
    producer.flush()
    where: dict[bytes, set[tuple[bytes, int]]] = {}
    for record in read_with_librdkafka(emulator, "events", 2 * len(KEYS), partitions=3):
        sent_key, value, partition = record.key(), record.value(), record.partition()
        assert sent_key is not None
        assert value is not None
        assert partition is not None
        where.setdefault(sent_key, set()).add((value, partition))
    assert len({partition for places in where.values() for _, partition in places}) == 3
    for key, places in where.items():
        assert {partition for value, partition in places if value == b"ours"} == {
            partition for value, partition in places if value == b"theirs"
        }, key


@pytest.mark.parametrize(("name", "key"), [("default", None), ("consistent_random", b"")])
def test_without_a_key_one_batch_is_filled_after_the_other(make_producer: MakeProducer, name: str, key: Any) -> None:
    producer = make_producer(None, partitioner=name, batch_size=1000, linger_ms=1000)
    futures = [producer.send("events", b"x" * 200, key) for _ in range(24)]
    producer.flush()
    partitions = [future.result(60).partition for future in futures]
    assert partitions == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4 + [1] * 4 + [2] * 4


def test_an_empty_key_is_a_key_by_default(make_producer: MakeProducer) -> None:
    producer = make_producer(None, batch_size=300)
    assert len({producer.send("events", b"x" * 200, b"").result(60).partition for _ in range(6)}) == 1


def test_round_robin(make_producer: MakeProducer) -> None:
    producer = make_producer(None, partitioner="round_robin")
    assert [producer.send("events", b"x", b"same").result(60).partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_callable_gets_the_bytes_that_are_sent_and_may_use_the_producer(make_producer: MakeProducer) -> None:
    asked: list[Any] = []

    def choose(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        asked.append((topic, key, value, partitions, producer.state.value))
        return 2

    producer = make_producer(None, partitioner=choose)
    assert producer.send("events", "wert", "k").result(60).partition == 2
    assert producer.send("events", "wert", partition=1).result(60).partition == 1
    assert [call[:4] for call in asked] == [("events", b"k", b"wert", 3)]


def test_a_callable_is_asked_also_if_the_topic_becomes_known_just_then(
    make_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make_producer(None, partitioner=lambda *_: 2)
    producer.send("events", b"x", "k").result(60)
    known = iter([0])
    before_lock = PartitionChoice.before_lock

    def too_early(choice: PartitionChoice, topic: Any, key: Any, value: Any, partition: Any, partitions: int) -> Any:
        return before_lock(choice, topic, key, value, partition, next(known, partitions))

    monkeypatch.setattr(PartitionChoice, "before_lock", too_early)
    assert producer.send("events", b"x", "k").result(60).partition == 2


def test_a_callable_out_of_range_sends_nothing(make_producer: MakeProducer) -> None:
    producer = make_producer(None, partitioner=lambda *_: 3)
    with pytest.raises(InvalidRecordError, match="returned 3, and 'events' has the partitions 0 to 2"):
        producer.send("events", b"x")
    producer.flush()
