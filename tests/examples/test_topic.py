"""Reading the topic: all committed records and no others, or a clear error."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from dualwrite.broker_emulator.emulator import Emulator
from examples.flights.errors import UnfinishedTransactionError
from examples.flights.topic import read_topic
from tests.support.databases import unique


def transactional_producer(emulator: Emulator) -> Producer:
    producer = Producer({"bootstrap.servers": emulator.bootstrap_servers, "transactional.id": unique("topic-test")})
    producer.init_transactions(10)
    return producer


def test_an_open_transaction_is_not_taken_for_the_end(emulator: Emulator) -> None:
    emulator.create_topic("events", partitions=2)
    producer = transactional_producer(emulator)
    producer.begin_transaction()
    producer.produce("events", key="k", value="open", partition=1)
    assert producer.flush(10) == 0
    with pytest.raises(UnfinishedTransactionError, match="still open in events, partitions 1"):
        read_topic(emulator.bootstrap_servers, "events", timeout_s=0)
    producer.abort_transaction(10)
