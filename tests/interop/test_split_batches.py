"""Batches that are too large for their topic are split and stored in order, on the emulator and on Apache Kafka."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from dualwrite.errors import AbortableError, DeliveryError
from dualwrite.producer import Producer

from .both_brokers import broker  # noqa: F401 - a fixture
from .conftest import Broker
from .foreign_clients import CLIENTS
from .wire import Wire, wait_for

MESSAGE_TOO_LARGE = 10
LIMIT = 20_000
VALUES = [b"%03d" % number * 300 for number in range(80)]  # two batches; the second is not too large


MakeProducer = Callable[..., Producer]


@pytest.fixture
def topic(wire: Wire, transactional_id: str) -> str:
    name = f"{transactional_id}-small"
    wire.create_topic(name, max_message_bytes=str(LIMIT))
    return name


@pytest.fixture
def make_producer(broker: Broker) -> Iterator[MakeProducer]:  # noqa: F811
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        defaults: dict[str, Any] = {
            "bootstrap_servers": broker.bootstrap_servers,
            "batch_size": 65_536,
            "linger_ms": 50,
        }
        made.append(Producer(**(defaults | settings)))
        return made[-1]

    yield make
    for producer in made:
        producer.close(timeout_s=0)


@pytest.fixture
def stored(broker: Broker, wire: Wire, topic: str, transactional_id: str) -> Callable[[], list[bytes]]:  # noqa: F811
    """The values that a read_committed consumer reads of the topic, from its beginning to its end."""

    def read() -> list[bytes]:
        wire.wait_until_settled(transactional_id)
        return CLIENTS[0].read(broker.bootstrap_servers, topic, wire.list_offsets(topic), committed=True)

    return read


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_all_records_of_a_producer_that_the_broker_does_not_know_are_stored_in_order(
    topic: str, make_producer: MakeProducer, stored: Callable[[], list[bytes]], codec: str
) -> None:
    values = VALUES if codec == "none" else [random.Random(number).randbytes(600) for number in range(118)]
    called: list[int] = []
    producer = make_producer(compression_type=codec)
    futures = [
        producer.send(topic, value, on_delivery=lambda where, _: called.append(where.offset if where else -1))
        for value in values
    ]
    producer.flush()
    assert [future.result(0).offset for future in futures] == list(range(len(values)))
    assert wait_for(lambda: called, lambda offsets: len(offsets) == len(values)) == list(range(len(values)))
    assert stored() == values


@pytest.mark.parametrize("as_table", [False, True], ids=["list", "arrow"])
def test_all_records_of_a_transaction_are_stored_in_order(
    topic: str, make_producer: MakeProducer, stored: Callable[[], list[bytes]], transactional_id: str, as_table: bool
) -> None:
    producer = make_producer(transactional_id=transactional_id)
    producer.init_transactions()
    for begin in (0, len(VALUES) + 1):  # a marker stands between
        producer.begin_transaction()
        sent = producer.send_batch(topic, pa.table({"value": VALUES}) if as_table else VALUES)
        producer.commit_transaction()
        offsets = [part.offset + n for part in sent.result(0) for n in range(part.record_count)]
        assert offsets == list(range(begin, begin + len(VALUES)))
    assert stored() == VALUES * 2


def test_a_record_that_is_too_large_alone_fails_alone(
    topic: str, make_producer: MakeProducer, stored: Callable[[], list[bytes]]
) -> None:
    producer = make_producer()
    futures = [producer.send(topic, value) for value in [*VALUES[:30], b"x" * LIMIT, *VALUES[30:]]]
    producer.flush()
    with pytest.raises(DeliveryError, match=r"1 record.*TOO_LARGE.*takes 20[0-9]{3} bytes") as refused:
        futures.pop(30).result(0)
    assert refused.value.error_code == MESSAGE_TOO_LARGE
    assert [future.result(0).offset for future in futures] == list(range(len(VALUES)))
    assert stored() == VALUES


def test_in_a_transaction_a_split_batch_is_abortable(
    topic: str, make_producer: MakeProducer, stored: Callable[[], list[bytes]], transactional_id: str
) -> None:
    producer = make_producer(transactional_id=transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    futures = [producer.send(topic, value) for value in [*VALUES[:10], b"x" * LIMIT, *VALUES[10:]]]
    with pytest.raises(AbortableError, match=r"TOO_LARGE"):
        producer.commit_transaction()
    producer.abort_transaction()
    with pytest.raises(DeliveryError, match=r"1 record.*TOO_LARGE"):
        futures[10].result(0)
    with pytest.raises(DeliveryError, match="not sent"):
        futures[-1].result(0)
    with producer.transaction():
        producer.send(topic, b"next")
    assert stored() == [b"next"]
