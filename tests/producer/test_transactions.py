"""Transactions without two-phase commit, offsets, and records of all kinds."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.partitioner.default import murmur2

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.faults import Fault
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.errors import (
    AuthorizationError,
    ConfigError,
    FencedError,
    IllegalStateError,
    InvalidRecordError,
    KafkaTimeoutError,
    UnsupportedByBrokerError,
)
from dualwrite.producer import ConsumerGroupMetadata, OffsetAndMetadata, Producer, ProducerState, TopicPartition
from tests.producer.conftest import MakeProducer, ReadCommitted, wait_until_markers_are_written


def test_commit_and_abort(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(two_phase_commit=False)
    producer.init_transactions()
    for value, commit in [("a", True), ("b", False), ("c", True)]:
        producer.begin_transaction()
        producer.send("orders", value).result(60)
        (producer.commit_transaction if commit else producer.abort_transaction)()
    assert read_committed() == [b"a", b"c"]


def test_one_record_transaction_is_two_requests(producer: Producer, emulator: Emulator) -> None:
    producer.begin_transaction()
    producer.send("orders", "warm")
    producer.commit_transaction()
    seen = emulator.faults.add(Fault(client_id="dualwrite", count=None))
    for _ in range(5):
        producer.begin_transaction()
        producer.send("orders", "v")
        producer.commit_transaction()
    assert seen.hits == 10


def test_several_topics_and_partitions_in_one_transaction(producer: Producer, read_committed: ReadCommitted) -> None:
    producer.begin_transaction()
    futures = [producer.send("events", f"e{i}", partition=i % 3) for i in range(9)]
    futures.append(producer.send("orders", "o"))
    producer.commit_transaction()
    placed = [future.result(0) for future in futures]
    assert [(m.topic, m.partition, m.offset) for m in placed[:9]] == [("events", i % 3, i // 3) for i in range(9)]
    assert placed[9][:3] == ("orders", 0, 0)
    assert sorted(read_committed("events", 3)) == sorted(f"e{i}".encode() for i in range(9))
    assert read_committed("orders") == [b"o"]


def test_key_headers_timestamp_and_tombstone_arrive(producer: Producer, emulator: Emulator) -> None:
    producer.begin_transaction()
    producer.send("orders", "v", key="k", headers={"h": b"1", "n": None}, timestamp_ms=1234567890123)
    producer.send("orders", None, key=b"gone", headers=[("h", b"1"), ("h", b"2")])
    producer.commit_transaction()
    consumer = KafkaConsumer(bootstrap_servers=emulator.bootstrap_servers, auto_offset_reset="earliest")
    try:
        consumer.assign([KafkaTopicPartition("orders", 0)])
        records = [next(consumer), next(consumer)]
    finally:
        consumer.close()
    assert [(r.key, r.value) for r in records] == [(b"k", b"v"), (b"gone", None)]
    assert list(records[0].headers) == [("h", b"1"), ("n", None)]
    assert records[0].timestamp == 1234567890123
    assert list(records[1].headers) == [("h", b"1"), ("h", b"2")]


def test_the_same_key_goes_where_kafkas_own_client_sends_it(make_producer: MakeProducer) -> None:
    producer = make_producer(None)
    metadata = producer.send("events", "v", key="customer-1").result(60)
    assert metadata.partition == (murmur2(b"customer-1") & 0x7FFFFFFF) % 3


@pytest.mark.parametrize("compression", ["gzip"])
def test_compression(make_producer: MakeProducer, read_committed: ReadCommitted, compression: str) -> None:
    producer = make_producer(compression_type=compression)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(100):
        producer.send("orders", "same " * 20)
    producer.commit_transaction()
    assert read_committed() == [b"same " * 20] * 100


def test_many_records_keep_their_order(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(batch_size=1000)
    producer.init_transactions()
    producer.begin_transaction()
    futures = [producer.send("orders", f"{i:05}") for i in range(5000)]
    producer.commit_transaction()
    assert [future.result(0).offset for future in futures] == list(range(5000))
    assert read_committed() == [f"{i:05}".encode() for i in range(5000)]


def test_memory_is_bounded(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(batch_size=1000, buffer_memory=4000)
    producer.init_transactions()
    producer.begin_transaction()
    for i in range(1000):
        producer.send("orders", f"{i:05}")
    producer.commit_transaction()
    assert len(read_committed()) == 1000


def test_offsets_are_committed_with_the_transaction(producer: Producer, emulator: Emulator) -> None:
    partition = TopicPartition("events", 1)
    for offset, commit in [(5, True), (9, False)]:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({partition: offset}, "readers")
        assert producer.transaction_has_records
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.begin_transaction()
    producer.send("orders", "v")
    group = ConsumerGroupMetadata("others")
    producer.send_offsets_to_transaction({("events", 2): OffsetAndMetadata(3, "note")}, group)
    producer.complete_transaction(producer.prepare_transaction())
    assert committed(emulator, "readers", 1) == 5
    assert committed(emulator, "others", 2) == 3


def committed(emulator: Emulator, group: str, partition: int) -> int | None:
    consumer = KafkaConsumer(bootstrap_servers=emulator.bootstrap_servers, group_id=group, enable_auto_commit=False)
    try:
        offset: int | None = consumer.committed(KafkaTopicPartition("events", partition))
        return offset
    finally:
        consumer.close()


def test_without_a_transactional_id(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(None)
    assert producer.send("orders", "a").result(60).offset == 0
    producer.send("orders", "b")
    producer.flush()
    producer.send("orders", "c")
    producer.close()
    assert read_committed() == [b"a", b"b", b"c"]
    with pytest.raises(IllegalStateError, match="has no transactional_id"):
        make_producer(None).begin_transaction()


@pytest.mark.parametrize("acks", [0, 1])
def test_without_idempotence(make_producer: MakeProducer, emulator: Emulator, acks: int) -> None:
    producer = make_producer(None, enable_idempotence=False, acks=acks)
    future = producer.send("orders", "a")
    assert future.result(60).offset == (-1 if acks == 0 else 0)
    producer.close()
    if acks == 1:
        assert emulator.log("orders").log_end_offset == 1


def test_a_new_producer_fences_the_old_one(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    old = make_producer(two_phase_commit=False)
    old.init_transactions()
    old.begin_transaction()
    old.send("orders", "old").result(60)
    new = make_producer(two_phase_commit=False)
    new.init_transactions()
    with pytest.raises(FencedError):
        old.commit_transaction()
    new.begin_transaction()
    new.send("orders", "new")
    new.commit_transaction()
    assert read_committed() == [b"new"]


def test_an_empty_transaction_sends_nothing(make_producer: MakeProducer, emulator: Emulator) -> None:
    producer = make_producer(two_phase_commit=False)
    producer.init_transactions()
    seen = emulator.faults.add(Fault(api="EndTxn", count=None))
    producer.begin_transaction()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    assert seen.hits == 0
    assert producer.state is ProducerState.READY


@pytest.mark.parametrize(
    "send",
    [
        {"topic": "orders", "value": b"x" * 2_000_000},
        {"topic": "orders", "partition": 1},
        {"topic": "orders", "value": 5},
        {"topic": "orders", "headers": [("h", 5)]},
        {"topic": "no such topic!"},
    ],
    ids=["too large", "no such partition", "not bytes", "header is a number", "invalid topic"],
)
def test_what_cannot_be_sent_changes_nothing(
    producer: Producer, read_committed: ReadCommitted, send: dict[str, object]
) -> None:
    producer.begin_transaction()
    producer.send("orders", "good")
    with pytest.raises(InvalidRecordError, match="not sent"):
        producer.send(**send)  # type: ignore[arg-type]
    producer.commit_transaction()
    assert read_committed() == [b"good"]


def test_an_unknown_topic_is_waited_for_no_longer_than_max_block() -> None:
    with Emulator(config=BrokerConfig(auto_create_topics_enable=False)) as emulator:
        # the last request before giving up is followed by a back-off that is longer than max.block.ms
        settings: dict[str, Any] = {"max_block_ms": 1_500, "retry_backoff_ms": 1_000, "retry_backoff_max_ms": 60_000}
        with Producer(bootstrap_servers=emulator.bootstrap_servers, **settings) as producer:
            with pytest.raises(KafkaTimeoutError, match="not sent"):
                producer.send("nowhere", "v")
            emulator.create_topic("nowhere")
            assert producer.send("nowhere", "v").result(60).offset == 0


def test_two_phase_commit_switched_off_at_the_broker() -> None:
    with (
        Emulator(config=BrokerConfig(transaction_two_phase_commit_enable=False)) as emulator,
        Producer(
            bootstrap_servers=emulator.bootstrap_servers,
            transactional_id="t",
            transaction_two_phase_commit_enable=True,
        ) as producer,
    ):
        with pytest.raises(AuthorizationError, match=r"two\.phase\.commit\.enable"):
            producer.init_transactions()
        assert producer.state is ProducerState.UNINITIALIZED


def test_a_setting_is_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="transaction_two_phase"):
        Producer(bootstrap_servers="127.0.0.1:1", transaction_two_phase_commit_enable=True)


def test_no_broker_responds() -> None:
    with Producer(
        bootstrap_servers="127.0.0.1:1", transactional_id="t", max_block_ms=100, reconnect_backoff_ms=10
    ) as producer:
        with pytest.raises(KafkaTimeoutError, match="repeat the same call"):
            producer.init_transactions()
        with pytest.raises(IllegalStateError, match="not known"):
            producer.begin_transaction()
        with pytest.raises(KafkaTimeoutError):
            producer.init_transactions()
        producer.close(timeout_s=0.05)


@pytest.mark.parametrize(
    ("config", "two_phase_commit", "words"),
    [
        (BrokerConfig(profile=Profile.KAFKA_4_3), True, "InitProducerId v6"),
        (BrokerConfig(profile=Profile.KAFKA_3_9), True, "transaction.version=0"),
        (BrokerConfig(transaction_version=1), True, "transaction.version=1"),
    ],
    ids=["4.3 without unstable versions", "3.9", "transaction.version 1"],
)
def test_a_broker_that_cannot_is_named_in_a_sentence(config: BrokerConfig, two_phase_commit: bool, words: str) -> None:
    with (
        Emulator(config=config) as emulator,
        Producer(
            bootstrap_servers=emulator.bootstrap_servers,
            transactional_id="t",
            transaction_two_phase_commit_enable=two_phase_commit,
        ) as producer,
    ):
        with pytest.raises(UnsupportedByBrokerError, match=words):
            producer.init_transactions()
        assert producer.state is ProducerState.FATAL_ERROR


def test_plain_transactions_work_on_a_released_kafka() -> None:
    with (
        Emulator(config=BrokerConfig(profile=Profile.KAFKA_4_3), topics={"orders": 1}) as emulator,
        Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="t") as producer,
    ):
        producer.init_transactions()
        for _ in range(3):
            producer.begin_transaction()
            producer.send("orders", "v")
            producer.commit_transaction()
        wait_until_markers_are_written(emulator)
        assert emulator.log("orders").log_end_offset == 6, "three records and three markers"


def test_partitions_and_coordinators_on_several_nodes() -> None:
    with (
        Emulator(nodes=3, topics={"events": 6}) as emulator,
        Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="t") as producer,
    ):
        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            for partition in range(6):
                producer.send("events", "v", partition=partition)
            producer.send_offsets_to_transaction({TopicPartition("events", 0): 1}, "readers")
            producer.commit_transaction()
        wait_until_markers_are_written(emulator)
        logs = [emulator.log("events", partition) for partition in range(6)]
        assert len({log.leader_id for log in logs}) == 3
        assert [log.log_end_offset for log in logs[1:]] == [4] * 5, "two records and two markers"
