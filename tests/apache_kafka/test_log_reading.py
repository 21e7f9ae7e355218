"""Real brokers' proof about a prepared transaction, and its records as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient

from dualwrite.admin import TransactionAdmin
from dualwrite.client.log.batches import StoredRecord
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import OutcomeUnknown, RecordsGoneError
from tests.interop.wire import wait_for

from .clusters import Cluster
from .conftest import MakeFace, NewName
from .faces import Face
from .reading import read_committed

SHORT_TIMEOUT_MS: Final = 3_000
SHORTLY_MS: Final = 2_000
RECORDS: Final[list[dict[str, Any]]] = [
    {"value": b"plain" * 200, "timestamp_ms": 1},
    {"value": None, "key": b"tombstone", "timestamp_ms": 2},
    {"value": bytes(range(256)), "key": b"", "timestamp_ms": 3, "headers": [("a", b"1"), ("a", None)]},
]


@pytest.fixture
def make(cluster: Cluster, face: str, make_face: MakeFace, transactional_id: str) -> MakeFace:
    def new(name: str = transactional_id, **settings: Any) -> Face:
        return make_face(face, cluster.settings(name, **settings))

    return new


def create_topic(cluster: Cluster, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([new])[name].result(30)
    return name


def prepare(producer: Face, topic: str, *values: bytes, partition: int = 0) -> Manifest:
    producer.begin()
    for value in values:
        producer.send(topic, value, partition=partition)
    return prepared(producer)


def prepared(producer: Face) -> Manifest:
    state = producer.prepare_open()
    manifest = producer.manifest
    assert manifest is not None
    assert manifest.prepared_state == state
    return manifest


def ready(made: Face) -> Face:
    made.init_transactions()
    return made


def abort(cluster: Cluster, transactional_id: str) -> None:
    with TransactionAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.force_terminate_transaction(transactional_id)
    cluster.wait_until_settled(transactional_id)


def test_committed_and_aborted(cluster: Cluster, make: MakeFace, new_name: NewName, transactional_id: str) -> None:
    topic = create_topic(cluster, new_name("topic"), 2)
    producer = ready(make())
    committed = prepare(producer, topic, b"a", b"b")
    producer.complete_transaction(committed.prepared_state)
    cluster.wait_for_state(transactional_id, "CompleteCommit")
    aborted = prepare(producer, topic, b"c", b"d", partition=1)
    reader = make()
    reader.init_transactions(keep_prepared_txn=True)
    assert reader.coordinator_knows(aborted.prepared_state)
    with pytest.raises(OutcomeUnknown, match="no marker ends it yet"):
        reader.end_of(aborted, SHORTLY_MS)
    abort(cluster, transactional_id)
    reader = make()
    reader.init_transactions(keep_prepared_txn=True)
    assert not reader.coordinator_knows(aborted.prepared_state)
    assert reader.end_of(committed).committed
    assert reader.end_of(aborted).aborted == aborted.partitions == (PartitionManifest(topic, 1, 0, 1, 2),)
    assert [record.value for record in reader.records_of(aborted, aborted.partitions)] == [b"c", b"d"]


def test_what_the_timeout_aborted_is_read_and_published_again(
    cluster: Cluster, make: MakeFace, new_name: NewName, transactional_id: str
) -> None:
    if not cluster.is_bounded:
        pytest.skip("a prepared transaction has no timeout here")
    topic = create_topic(cluster, new_name("topic"))
    manifest = prepare(ready(make(transaction_timeout_ms=SHORT_TIMEOUT_MS)), topic, b"a", b"b")
    cluster.wait_for_state(transactional_id, "CompleteAbort")
    producer = make()
    producer.init_transactions(keep_prepared_txn=True)
    assert not producer.coordinator_knows(manifest.prepared_state)
    end = producer.end_of(manifest)
    assert end.aborted == manifest.partitions
    records = producer.records_of(manifest, end.aborted)
    producer.complete_before_fencing(manifest.prepared_state, is_over=True)
    producer.fence_others()
    producer.begin()
    for record in records:
        producer.send(
            record.topic, record.value, key=record.key, headers=record.headers,
            partition=record.partition, timestamp_ms=record.timestamp_ms,
        )  # fmt: skip
    again = prepared(producer)
    producer.complete_transaction(again.prepared_state)
    cluster.wait_until_settled(transactional_id)
    assert producer.end_of(again).committed
    assert producer.end_of(manifest).aborted == manifest.partitions
    assert read_committed({"bootstrap.servers": cluster.bootstrap_servers}, topic) == [b"a", b"b"]


def test_another_open_transaction_holds_the_last_stable_offset_back(
    cluster: Cluster, make: MakeFace, new_name: NewName, transactional_id: str
) -> None:
    topic, other_id = create_topic(cluster, new_name("topic")), new_name("other")
    other = ready(make(other_id))
    other.begin()
    other.send(topic, b"open", partition=0)
    other.flush()
    producer = ready(make())
    committed = prepare(producer, topic, b"a")
    producer.complete_transaction(committed.prepared_state)
    cluster.wait_until_settled(transactional_id)
    aborted = prepare(producer, topic, b"b")
    abort(cluster, transactional_id)
    reader = ready(make(new_name("reader")))
    assert reader.end_of(committed).committed
    assert reader.end_of(aborted).aborted == aborted.partitions
    other.abort_transaction()


@pytest.mark.parametrize("recompressed", ["producer", "gzip", "snappy", "lz4", "zstd"])
def test_records_as_the_broker_stores_them(
    cluster: Cluster, make: MakeFace, new_name: NewName, transactional_id: str, recompressed: str
) -> None:
    config = {"compression.type": recompressed, "retention.ms": "-1"}  # the timestamps are old
    topic = create_topic(cluster, new_name("topic"), 1, config)
    producer = ready(make())
    producer.begin()
    for record in RECORDS:
        producer.send(topic, partition=0, **record)
    manifest = prepared(producer)
    abort(cluster, transactional_id)
    assert ready(make(new_name("reader"))).records_of(manifest, manifest.partitions) == [
        StoredRecord(
            topic, 0, record.get("key"), record["value"], record.get("headers", []), record["timestamp_ms"], offset
        )
        for offset, record in enumerate(RECORDS)
    ]


def test_many_partitions(cluster: Cluster, make: MakeFace, new_name: NewName, transactional_id: str) -> None:
    many = 40
    topic = create_topic(cluster, new_name("topic"), many)
    producer = ready(make())
    producer.begin()
    for partition in range(many):
        producer.send(topic, b"%d" % partition + b"." * 100_000, partition=partition)
    manifest = prepared(producer)
    abort(cluster, transactional_id)
    reader = ready(make(new_name("reader")))
    end = reader.end_of(manifest)
    assert end.aborted == manifest.partitions
    values = [record.value or b"" for record in reader.records_of(manifest, end.aborted)]
    assert [value.rstrip(b".") for value in values] == [b"%d" % partition for partition in range(many)]


def test_deleted_records_and_topics(cluster: Cluster, make: MakeFace, new_name: NewName, transactional_id: str) -> None:
    topic = create_topic(cluster, new_name("topic"))
    manifest = prepare(ready(make()), topic, b"a", b"b")
    abort(cluster, transactional_id)
    reader = ready(make(new_name("reader")))
    delete_records(cluster, topic, 1)
    assert reader.end_of(manifest).aborted == manifest.partitions
    with pytest.raises(RecordsGoneError, match=r"of its 2 record.*Nothing was changed"):
        reader.records_of(manifest, manifest.partitions)
    delete_records(cluster, topic, 2)
    assert reader.end_of(manifest).gone == manifest.partitions
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)
    assert wait_for(lambda: reader.end_of(manifest), lambda end: bool(end.gone)).gone == manifest.partitions


def delete_records(cluster: Cluster, topic: str, before: int) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.delete_records({KafkaTopicPartition(topic, 0): before})
    admin.close()
