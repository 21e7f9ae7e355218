"""Transactions of other people's clients: the cases that every library in Python has to pass, on each broker.

A folder inherits them and names its client by its fixture `client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.conftest import Broker
from tests.interop.foreign_clients import Aiokafka, Confluent, FencedError, ForeignClient, ForeignProducer, KafkaPython
from tests.interop.wire import GROUP, READ_COMMITTED, Wire, wait_for

ProducerOf = Callable[..., ForeignProducer]


def end_of(wire: Wire, topic: str) -> int:
    """The end of the partition, once no transaction is open on it."""

    def ends() -> tuple[int, int]:
        return wire.list_offsets(topic, isolation=READ_COMMITTED), wire.list_offsets(topic)

    return wait_for(ends, lambda answers: answers[0] == answers[1])[0]


class TransactionCases:
    """A transactional client on one partition, and on several."""

    @pytest.fixture
    def new_producer(self, broker: Broker, client: ForeignClient, transactional_id: str) -> Iterator[ProducerOf]:
        """Makes initialised producers of the test's transactional id, and closes them."""
        made: list[ForeignProducer] = []

        def make(**settings: object) -> ForeignProducer:
            producer = client.producer(broker.bootstrap_servers, transactional_id, **settings)  # type: ignore[arg-type]
            made.append(producer)
            producer.init()
            return producer

        yield make
        for producer in reversed(made):
            producer.close()

    def test_commit_and_abort(
        self,
        wire: Wire,
        broker: Broker,
        client: ForeignClient,
        new_producer: ProducerOf,
        transactional_id: str,
        topic: str,
    ) -> None:
        producer = new_producer()
        for outcome, values in (("commit", (b"a", b"b")), ("abort", (b"c",)), ("commit", (b"d",)), ("abort", (b"e",))):
            producer.begin()
            for value in values:
                producer.send(topic, value)
            producer.flush()
            getattr(producer, outcome)()
            wire.wait_until_settled(transactional_id)
        assert wire.describe(transactional_id).state == "CompleteAbort"
        end = end_of(wire, topic)
        assert end == 9
        servers = broker.bootstrap_servers
        assert client.read(servers, topic, end, committed=True) == [b"a", b"b", b"d"]
        assert client.read(servers, topic, end, committed=False) == [b"a", b"b", b"c", b"d", b"e"]

    def test_open_transaction_is_seen_by_uncommitted_readers_only(
        self, wire: Wire, broker: Broker, client: ForeignClient, new_producer: ProducerOf, topic: str
    ) -> None:
        producer = new_producer()
        producer.begin()
        producer.send(topic, b"open")
        producer.flush()
        servers = broker.bootstrap_servers
        assert client.end_offset(servers, topic, committed=False) == 1
        assert (
            client.end_offset(servers, topic, committed=True) == wire.list_offsets(topic, isolation=READ_COMMITTED) == 0
        )
        assert client.read(servers, topic, 1, committed=False) == [b"open"]
        producer.commit()
        assert client.end_offset(servers, topic, committed=True) == end_of(wire, topic) == 2
        assert client.read(servers, topic, 2, committed=True) == [b"open"]

    def test_second_producer_fences_the_first(
        self, wire: Wire, broker: Broker, client: ForeignClient, new_producer: ProducerOf, topic: str
    ) -> None:
        first = new_producer()
        first.begin()
        first.send(topic, b"of the first")
        first.flush()
        second = new_producer()
        second.begin()
        second.send(topic, b"of the second")
        second.commit()
        with pytest.raises(FencedError):
            first.commit()
        end = end_of(wire, topic)
        assert client.read(broker.bootstrap_servers, topic, end, committed=True) == [b"of the second"]

    def test_empty_transactions(
        self,
        wire: Wire,
        broker: Broker,
        client: ForeignClient,
        new_producer: ProducerOf,
        transactional_id: str,
        topic: str,
    ) -> None:
        producer = new_producer()
        for outcome in ("commit", "abort", "commit"):
            producer.begin()
            getattr(producer, outcome)()
        producer.begin()
        producer.send(topic, b"at last")
        producer.commit()
        wire.wait_until_settled(transactional_id)
        assert client.read(broker.bootstrap_servers, topic, end_of(wire, topic), committed=True) == [b"at last"]

    def test_offsets_of_a_group_without_members(
        self,
        wire: Wire,
        broker: Broker,
        client: ForeignClient,
        new_producer: ProducerOf,
        transactional_id: str,
        topic: str,
        group: str,
    ) -> None:
        wire.wait_for_coordinator(group, GROUP)
        producer = new_producer()
        for offset, outcome, committed in ((3, "commit", 3), (5, "abort", 3), (7, "commit", 7)):
            producer.begin()
            producer.send(topic, b"v")
            producer.send_offsets(group, topic, offset)
            getattr(producer, outcome)()
            wire.wait_until_settled(transactional_id)
            assert client.committed_offset(broker.bootstrap_servers, group, topic) == committed

    def test_transaction_over_many_partitions(
        self, wire: Wire, new_producer: ProducerOf, transactional_id: str, group: str
    ) -> None:
        topics = [f"{transactional_id}-{letter}" for letter in "ab"]
        for topic in topics:
            wire.create_topic(topic, 3)
        producer = new_producer()
        for outcome in ("commit", "abort", "commit"):
            producer.begin()
            for topic in topics:
                for partition in range(3):
                    producer.send(topic, b"v", partition)
            producer.flush()
            getattr(producer, outcome)()
        wire.wait_until_settled(transactional_id)
        for topic in topics:
            for partition in range(3):
                assert wire.list_offsets(topic, partition=partition) == 6
                aborted = wire.fetch(topic, isolation=READ_COMMITTED, partition=partition).aborted
                assert [offset for _, offset in aborted or ()] == [2]

    def test_many_records_in_compressed_batches(
        self,
        wire: Wire,
        broker: Broker,
        client: ForeignClient,
        new_producer: ProducerOf,
        transactional_id: str,
        topic: str,
    ) -> None:
        producer = new_producer(compression="gzip")
        values = [b"value %d " % number * 10 for number in range(500)]
        producer.begin()
        for value in values:
            producer.send(topic, value)
        producer.commit()
        wire.wait_until_settled(transactional_id)
        assert client.read(broker.bootstrap_servers, topic, end_of(wire, topic), committed=True) == values

    def test_transaction_timeout(
        self,
        wire: Wire,
        broker: Broker,
        client: ForeignClient,
        new_producer: ProducerOf,
        transactional_id: str,
        topic: str,
    ) -> None:
        producer = new_producer(timeout_ms=client.shortest_timeout_ms)
        producer.begin()
        producer.send(topic, b"too slow")
        producer.flush()
        wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
        with pytest.raises(FencedError):
            producer.commit()
        assert wire.describe(transactional_id).state == "CompleteAbort"
        assert client.read(broker.bootstrap_servers, topic, end_of(wire, topic), committed=True) == []

    def test_reads_what_another_client_wrote(
        self, wire: Wire, broker: Broker, client: ForeignClient, transactional_id: str, topic: str
    ) -> None:
        writers: tuple[ForeignClient, ...] = (Confluent(), Aiokafka(), KafkaPython())
        for number, writer in enumerate(writers):
            producer = writer.producer(broker.bootstrap_servers, f"{transactional_id}-{number}")
            producer.init()
            for outcome in ("abort", "commit"):
                producer.begin()
                producer.send(topic, f"{outcome} of {writer.name}".encode())
                producer.flush()
                getattr(producer, outcome)()
            producer.close()
        expected = [f"commit of {writer.name}".encode() for writer in writers]
        assert client.read(broker.bootstrap_servers, topic, end_of(wire, topic), committed=True) == expected
