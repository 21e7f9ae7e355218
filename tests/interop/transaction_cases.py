"""Transactions of other people's clients: the cases that every library in Python has to pass, on each broker.

A folder inherits them and names its client by its fixture `client`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop.conftest import Broker
from tests.interop.foreign_clients import Aiokafka, Confluent, FencedError, ForeignClient, ForeignProducer, KafkaPython
from tests.interop.wire import GROUP, READ_COMMITTED, Wire, wait_for


@dataclass(frozen=True, slots=True)
class Scene:
    """A client and a topic on a broker."""

    wire: Wire
    servers: str
    client: ForeignClient
    transactional_id: str
    topic: str
    made: list[ForeignProducer]

    def producer(self, **settings: Any) -> ForeignProducer:
        """An initialised producer of the transactional id."""
        producer = self.client.producer(self.servers, self.transactional_id, **settings)
        self.made.append(producer)
        producer.init()
        return producer

    def end(self) -> int:
        """The end of the partition, once no transaction is open on it."""

        def ends() -> tuple[int, int]:
            return self.wire.list_offsets(self.topic, isolation=READ_COMMITTED), self.wire.list_offsets(self.topic)

        return wait_for(ends, lambda answers: answers[0] == answers[1])[0]

    def read(self, *, committed: bool = True) -> list[bytes]:
        return self.client.read(self.servers, self.topic, self.end(), committed=committed)

    def end_offset(self, *, committed: bool = True) -> int:
        return self.client.end_offset(self.servers, self.topic, committed=committed)

    def settle(self) -> None:
        self.wire.wait_until_settled(self.transactional_id)


class TransactionCases:
    """A transactional client on one partition, and on several."""

    @pytest.fixture
    def scene(
        self, wire: Wire, broker: Broker, client: ForeignClient, transactional_id: str, topic: str
    ) -> Iterator[Scene]:
        scene = Scene(wire, broker.bootstrap_servers, client, transactional_id, topic, [])
        yield scene
        for producer in reversed(scene.made):
            producer.close()

    def test_commit_and_abort(self, scene: Scene) -> None:
        producer = scene.producer()
        for outcome, values in (("commit", (b"a", b"b")), ("abort", (b"c",)), ("commit", (b"d",)), ("abort", (b"e",))):
            producer.begin()
            for value in values:
                producer.send(scene.topic, value)
            producer.flush()
            getattr(producer, outcome)()
            scene.settle()
        assert scene.wire.describe(scene.transactional_id).state == "CompleteAbort"
        assert scene.end() == 9
        assert scene.read() == [b"a", b"b", b"d"]
        assert scene.read(committed=False) == [b"a", b"b", b"c", b"d", b"e"]

    def test_open_transaction_is_seen_by_uncommitted_readers_only(self, scene: Scene) -> None:
        producer = scene.producer()
        producer.begin()
        producer.send(scene.topic, b"open")
        producer.flush()
        assert scene.end_offset(committed=False) == 1
        assert scene.end_offset() == scene.wire.list_offsets(scene.topic, isolation=READ_COMMITTED) == 0
        assert scene.client.read(scene.servers, scene.topic, 1, committed=False) == [b"open"]
        producer.commit()
        assert scene.end_offset() == scene.end() == 2
        assert scene.read() == [b"open"]

    def test_second_producer_fences_the_first(self, scene: Scene) -> None:
        first = scene.producer()
        first.begin()
        first.send(scene.topic, b"of the first")
        first.flush()
        second = scene.producer()
        second.begin()
        second.send(scene.topic, b"of the second")
        second.commit()
        with pytest.raises(FencedError):
            first.commit()
        assert scene.read() == [b"of the second"]

    def test_empty_transactions(self, scene: Scene) -> None:
        producer = scene.producer()
        for outcome in ("commit", "abort", "commit"):
            producer.begin()
            getattr(producer, outcome)()
        producer.begin()
        producer.send(scene.topic, b"at last")
        producer.commit()
        scene.settle()
        assert scene.read() == [b"at last"]

    def test_offsets_of_a_group_without_members(self, scene: Scene, group: str) -> None:
        scene.wire.wait_for_coordinator(group, GROUP)
        producer = scene.producer()
        for offset, outcome, committed in ((3, "commit", 3), (5, "abort", 3), (7, "commit", 7)):
            producer.begin()
            producer.send(scene.topic, b"v")
            producer.send_offsets(group, scene.topic, offset)
            getattr(producer, outcome)()
            scene.settle()
            assert scene.client.committed_offset(scene.servers, group, scene.topic) == committed

    def test_transaction_over_many_partitions(self, scene: Scene) -> None:
        topics = [f"{scene.transactional_id}-{letter}" for letter in "ab"]
        for topic in topics:
            scene.wire.create_topic(topic, 3)
        producer = scene.producer()
        for outcome in ("commit", "abort", "commit"):
            producer.begin()
            for topic in topics:
                for partition in range(3):
                    producer.send(topic, b"v", partition)
            producer.flush()
            getattr(producer, outcome)()
        scene.settle()
        for topic in topics:
            for partition in range(3):
                assert scene.wire.list_offsets(topic, partition=partition) == 6
                aborted = scene.wire.fetch(topic, isolation=READ_COMMITTED, partition=partition).aborted
                assert [offset for _, offset in aborted or ()] == [2]

    def test_many_records_in_compressed_batches(self, scene: Scene) -> None:
        producer = scene.producer(compression="gzip")
        values = [b"value %d " % number * 10 for number in range(500)]
        producer.begin()
        for value in values:
            producer.send(scene.topic, value)
        producer.commit()
        scene.settle()
        assert scene.read() == values

    def test_transaction_timeout(self, scene: Scene) -> None:
        producer = scene.producer(timeout_ms=scene.client.shortest_timeout_ms)
        producer.begin()
        producer.send(scene.topic, b"too slow")
        producer.flush()
        wait_for(
            lambda: scene.wire.describe(scene.transactional_id), lambda described: described.state == "CompleteAbort"
        )
        with pytest.raises(FencedError):
            producer.commit()
        assert scene.wire.describe(scene.transactional_id).state == "CompleteAbort"
        assert scene.read() == []

    def test_reads_the_records_of_another_client(self, scene: Scene) -> None:
        writers: tuple[ForeignClient, ...] = (Confluent(), Aiokafka(), KafkaPython())
        for number, writer in enumerate(writers):
            producer = writer.producer(scene.servers, f"{scene.transactional_id}-{number}")
            producer.init()
            for outcome in ("abort", "commit"):
                producer.begin()
                producer.send(scene.topic, f"{outcome} of {writer.name}".encode())
                producer.flush()
                getattr(producer, outcome)()
            producer.close()
        expected = [f"commit of {writer.name}".encode() for writer in writers]
        assert scene.read() == expected
