"""The log's proof about a prepared transaction, and its records: the cases of the emulator and of Apache Kafka."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient

from dualwrite.admin import TransactionAdmin
from dualwrite.client.log.transaction_end import PartitionEnd
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import OutcomeUnknown, PreparedTransactionLost, RecordsGoneError
from dualwrite.prepared_state import PreparedTxnState
from tests.apache_kafka.faces import Face
from tests.support.conditions import until
from tests.support.topics import read_topic

SHORTLY_MS: Final = 2_000
"""A timeout for events that never come."""


class LogWorld(ABC):
    """A broker with a topic of two partitions, and producers of one face."""

    def __init__(self, bootstrap_servers: str, face: str, topic: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.face = face
        self.topic = topic
        self.made: list[Face] = []

    @abstractmethod
    def id_of(self, name: str) -> str:
        """Return the transactional id that stands for a name."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until decided transactions are complete."""

    @abstractmethod
    def abort_by_timeout(self) -> None:
        """Let the broker abort transactions that have been open for too long, as `time_out_soon` has said before."""

    @abstractmethod
    def time_out_soon(self) -> None:
        """Let transactions that begin from now on time out as soon as possible."""

    def settings(self, name: str, **settings: Any) -> dict[str, Any]:
        defaults: dict[str, Any] = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "linger_ms": 0}
        defaults |= {"transaction_two_phase_commit_enable": True, "accept_bounded_guarantee": True}
        defaults |= {"bootstrap_servers": self.bootstrap_servers, "transactional_id": self.id_of(name)}
        return defaults | settings

    def producer(self, name: str = "tid", **settings: Any) -> Face:
        made = Face(self.face, self.settings(name, **settings))
        self.made.append(made)
        return made

    def ready(self, name: str = "tid", **settings: Any) -> Face:
        made = self.producer(name, **settings)
        made.init_transactions()
        return made

    def recovering(self) -> Face:
        """Return a producer that has found the transaction of the id's last owner."""
        made = self.producer()
        made.init_transactions(keep_prepared_txn=True)
        return made

    def prepared(self, *values: bytes, **record: Any) -> Manifest:
        """Return the manifest of a transaction prepared by a producer that is gone."""
        producer = self.ready()
        producer.begin()
        for value in values:
            producer.send(self.topic, value, **{"partition": 0} | record)
        manifest = prepared(producer)
        producer.close()
        return manifest

    def abort_by_operator(self) -> None:
        with TransactionAdmin(bootstrap_servers=self.bootstrap_servers) as admin:
            admin.force_terminate_transaction(self.id_of("tid"))
        self.settle()

    def commit(self, state: PreparedTxnState) -> None:
        """Commit by another process, which leaves the id to others."""
        producer = self.producer()
        producer.init_transactions(keep_prepared_txn=True)
        producer.complete_transaction(state)
        producer.close()
        self.settle()

    def commit_others(self, *values: bytes, partition: int = 0, **record: Any) -> None:
        producer = self.ready("other")
        producer.begin()
        for value in values:
            producer.send(self.topic, value, partition=partition, **record)
        producer.commit_transaction()
        producer.close()
        self.settle()

    def create_topic(self, topic: str, partitions: int, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(60)

    def delete_records(self, before: int) -> None:
        admin: Any = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        admin.delete_records({KafkaTopicPartition(self.topic, 0): before})
        admin.close()

    def delete_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.delete_topics([self.topic])[self.topic].result(60)

    def close(self) -> None:
        for producer in self.made:
            producer.close()


def prepared(producer: Face) -> Manifest:
    """Prepare the open transaction; return its manifest."""
    state = producer.prepare_open()
    manifest = producer.manifest
    assert manifest is not None
    assert manifest.prepared_state == state
    assert Manifest.parse(str(manifest)) == manifest
    return manifest


def only(manifest: Manifest) -> PartitionManifest:
    (part,) = manifest.partitions
    return part


def values(records: list[StoredRecord]) -> list[bytes | None]:
    return [record.value for record in records]


RECORDS: Final[list[dict[str, Any]]] = [
    {"value": b"plain"},
    {"value": None, "key": b"tombstone"},
    {"value": b"", "key": b""},
    {"value": bytes(range(256)), "key": b"\x00\xff", "timestamp_ms": 1},
    {"value": b"h", "headers": [("a", b"1"), ("a", None), ("\u00fc", b"")]},
    {"value": b"long" * 5_000, "key": b"k" * 300, "timestamp_ms": 0},
]


class LogCases:
    """Each with the fixture `broker`, a `LogWorld`; with `bounded`, one on which prepared transactions time out."""

    def test_committed(self, broker: LogWorld) -> None:
        manifest = broker.prepared(b"a", b"b")
        assert broker.recovering().memory.knows(manifest.prepared_state)
        broker.commit(manifest.prepared_state)
        broker.commit_others(b"x")
        end = broker.recovering().end_of(manifest)
        assert end.committed
        assert end.by_partition == {only(manifest): PartitionEnd.COMMITTED}

    def test_aborted_by_the_timeout(self, bounded: LogWorld) -> None:
        bounded.time_out_soon()
        manifest = bounded.prepared(b"a", b"b")
        bounded.abort_by_timeout()
        bounded.commit_others(b"x")
        producer = bounded.recovering()
        end = producer.end_of(manifest)
        assert not end.committed
        assert end.aborted == manifest.partitions
        assert values(producer.records_of(manifest, end.aborted)) == [b"a", b"b"]

    def test_aborted_by_an_operator_and_taken_over(self, broker: LogWorld) -> None:
        manifest = broker.prepared(b"a")
        broker.abort_by_operator()
        producer = broker.recovering()
        assert not producer.memory.knows(manifest.prepared_state)
        assert producer.end_of(manifest).aborted == manifest.partitions
        producer.complete_before_fencing(manifest.prepared_state, is_over=True)
        producer.fence_others()
        producer.begin()
        producer.send(broker.topic, b"again", partition=0)
        again = prepared(producer)
        producer.complete_transaction(again.prepared_state)
        broker.settle()
        assert producer.end_of(manifest).aborted == manifest.partitions  # and so it remains
        assert producer.end_of(again).committed
        assert read_topic(broker.bootstrap_servers, broker.topic) == [("", "again")]

    def test_earlier_and_later_transactions_of_the_producer_id_prove_nothing(self, broker: LogWorld) -> None:
        producer = broker.ready()
        producer.begin()
        producer.send(broker.topic, b"before", partition=0)
        producer.abort_transaction()
        producer.begin()
        producer.send(broker.topic, b"a", partition=0)
        committed = prepared(producer)
        producer.complete_transaction(committed.prepared_state)
        producer.begin()
        producer.send(broker.topic, b"b", partition=0)
        aborted = prepared(producer)
        producer.abort_transaction()
        producer.begin()
        producer.send(broker.topic, b"after", partition=0)
        producer.commit_transaction()
        broker.settle()
        assert producer.end_of(committed).committed
        assert producer.end_of(aborted).aborted == aborted.partitions

    @pytest.mark.parametrize("commits", [True, False])
    def test_another_open_transaction_holds_the_last_stable_offset_back(self, broker: LogWorld, commits: bool) -> None:
        other = broker.ready("other")
        other.begin()
        other.send(broker.topic, b"open", partition=0)
        other.flush()
        manifest = broker.prepared(b"a", b"b")
        if commits:
            broker.commit(manifest.prepared_state)
        else:
            broker.abort_by_operator()
        end = broker.recovering().end_of(manifest)
        assert end.by_partition == {only(manifest): PartitionEnd.COMMITTED if commits else PartitionEnd.ABORTED}
        other.abort_transaction()

    def test_still_prepared(self, broker: LogWorld) -> None:
        manifest = broker.prepared(b"a")
        producer = broker.recovering()
        assert producer.memory.knows(manifest.prepared_state)
        with pytest.raises(
            OutcomeUnknown, match=r"-0: no marker ends it yet.*Nothing was changed; repeat the call"
        ) as told:
            producer.end_of(manifest, SHORTLY_MS)
        assert told.value.transactional_id == broker.id_of("tid")
        assert told.value.prepared_state == str(manifest.prepared_state)
        producer.complete_transaction(PreparedTxnState())

    def test_several_batches_make_one_range_with_the_records_of_others_between(self, broker: LogWorld) -> None:
        producer = broker.ready()
        producer.begin()
        producer.send(broker.topic, b"a", partition=0)
        producer.flush()
        broker.commit_others(b"x")
        producer.send(broker.topic, b"b", partition=0)
        producer.flush()
        manifest = prepared(producer)
        assert manifest.partitions == (PartitionManifest(broker.topic, 0, 0, 3, 2),)
        broker.abort_by_operator()
        assert broker.recovering().end_of(manifest).aborted == manifest.partitions
        assert values(broker.recovering().records_of(manifest, manifest.partitions)) == [b"a", b"b"]

    def test_deleted_records_and_topics(self, broker: LogWorld) -> None:
        manifest = broker.prepared(b"a", b"b")
        broker.abort_by_operator()
        broker.commit_others(b"x")
        producer = broker.recovering()
        broker.delete_records(1)  # the first of the two; the batch stays whole, and cannot be read from its begin
        assert producer.end_of(manifest).aborted == manifest.partitions
        with pytest.raises(RecordsGoneError, match=r"of its 2 record.*Nothing was changed") as told:
            producer.records_of(manifest, manifest.partitions)
        assert isinstance(told.value, PreparedTransactionLost)
        assert told.value.transactional_id == broker.id_of("tid")
        broker.delete_records(4)
        assert producer.end_of(manifest).gone == manifest.partitions
        broker.delete_topic()
        until(lambda: producer.end_of(manifest).gone == manifest.partitions)
        with pytest.raises(RecordsGoneError, match="the log has 0"):
            producer.records_of(manifest, manifest.partitions)

    def test_many_partitions(self, broker: LogWorld) -> None:
        many, wide = 40, f"{broker.topic}-wide"
        broker.create_topic(wide, many)
        producer = broker.ready()
        producer.begin()
        for partition in range(many):
            for number in range(3):
                producer.send(wide, b"%d-%d" % (partition, number) + b"." * 40_000, partition=partition)
        manifest = prepared(producer)
        broker.abort_by_operator()
        reader = broker.ready("reader")
        end = reader.end_of(manifest)
        assert end.aborted == manifest.partitions
        records = reader.records_of(manifest, end.aborted)
        assert [(record.value or b"").rstrip(b".") for record in records] == [
            b"%d-%d" % (partition, number) for partition in range(many) for number in range(3)
        ]

    @pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_records_are_read_as_they_were_sent(self, broker: LogWorld, compression: str) -> None:
        """Compressed by the producer, or by the broker."""
        for sent, stored in ((compression, "producer"), ("none", compression.replace("none", "uncompressed"))):
            topic = f"{broker.topic}-{stored}"
            broker.create_topic(topic, 1, **{"compression.type": stored, "retention.ms": "-1"})  # timestamps are old
            producer = broker.ready(compression_type=sent)
            producer.begin()
            for number, record in enumerate(RECORDS):
                producer.send(topic, partition=0, **{"timestamp_ms": number} | record)
            manifest = prepared(producer)
            producer.close()
            broker.abort_by_operator()
            assert broker.recovering().records_of(manifest, manifest.partitions) == [
                StoredRecord(
                    topic, 0, record.get("key"), record["value"], record.get("headers", []),
                    record.get("timestamp_ms", number), number,
                )
                for number, record in enumerate(RECORDS)
            ]  # fmt: skip
