"""kafka-transactions, and the program by which Kafka's own system tests look for lost and doubled records."""

from __future__ import annotations

import random

import pytest

from tests.interop.java.client import KafkaScripts
from tests.interop.logged_records import committed_values_of, values_of
from tests.interop.wire import READ_COMMITTED, Code, Identity, Wire

RECORDS = 400


def rows(out: str) -> list[dict[str, str]]:
    """A table of the tools."""
    header, *lines = [[cell.strip() for cell in line.split("\t")] for line in out.splitlines() if line.strip()]
    return [dict(zip(header, line, strict=True)) for line in lines]


@pytest.fixture
def opened(wire: Wire, transactional_id: str, topic: str) -> Identity:
    """A producer with one open transaction."""
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b").error == Code.NONE
    return identity


def test_list_and_describe(
    scripts: KafkaScripts, wire: Wire, opened: Identity, transactional_id: str, topic: str
) -> None:
    listed = {row["TransactionalId"]: row for row in rows(scripts.ok("kafka-transactions", "list"))}
    row = listed[transactional_id]
    assert (row["ProducerId"], row["TransactionState"]) == (str(opened.producer_id), "Ongoing")
    (described,) = rows(scripts.ok("kafka-transactions", "describe", "--transactional-id", transactional_id))
    assert described["TransactionState"] == "Ongoing"
    assert described["TransactionTimeoutMs"] == "60000"
    assert described["TopicPartitions"] == f"{topic}-0"
    assert int(described["TransactionDurationMs"]) >= 0


def test_list_by_filters(scripts: KafkaScripts, opened: Identity, transactional_id: str) -> None:
    def ids(*filters: str) -> list[str]:
        return [row["TransactionalId"] for row in rows(scripts.ok("kafka-transactions", "list", *filters))]

    assert transactional_id in ids("--duration-filter", "0")
    assert transactional_id not in ids("--duration-filter", "3600000")
    assert ids("--transactional-id-pattern", f"{transactional_id}|nobody") == [transactional_id]
    assert ids("--transactional-id-pattern", "nobody.*") == []


def test_describe_producers(scripts: KafkaScripts, opened: Identity, topic: str) -> None:
    out = scripts.ok("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0")
    (row,) = rows(out)
    assert (row["ProducerId"], row["ProducerEpoch"]) == (str(opened.producer_id), str(opened.producer_epoch))
    assert (row["LastSequence"], row["CurrentTransactionStartOffset"]) == ("1", "0")


def test_find_hanging_and_abort(
    scripts: KafkaScripts, wire: Wire, opened: Identity, transactional_id: str, topic: str
) -> None:
    hanging = scripts.ok("kafka-transactions", "find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    assert topic not in [row["Topic"] for row in rows(hanging)]  # its coordinator knows it
    options = ["--topic", topic, "--partition", "0", "--start-offset", "0"]
    scripts.ok("kafka-transactions", "abort", *options)
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 3
    assert committed_values_of(wire, topic) == []
    assert wire.describe(transactional_id).state == "Ongoing"  # it was not asked


def test_abort_of_an_absent_transaction_is_refused(scripts: KafkaScripts, topic: str) -> None:
    options = ["--topic", topic, "--partition", "0", "--start-offset", "0"]
    ended = scripts.run("kafka-transactions", "abort", *options)
    assert ended.exit_status == 1
    assert "Could not find any open transactions starting at offset 0" in ended.out + ended.err


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_copier_with_random_aborts_copies_exactly_once(
    scripts: KafkaScripts, wire: Wire, topic: str, transactional_id: str, group: str, seed: int
) -> None:
    source, target = topic, f"{topic}-copy"
    wire.create_topic(target)
    values = [b"%d" % number for number in range(RECORDS)]
    for start in range(0, RECORDS, 100):
        batch = values[start : start + 100]
        wire.write(source, *batch)
    size = random.Random(seed).randrange(20, 60)
    options = ["--transactional-id", transactional_id, "--input-topic", source, "--output-topic", target]
    options += ["--input-partition", "0", "--consumer-group", group, "--transaction-size", str(size)]
    options += ["--max-messages", str(RECORDS), "--enable-random-aborts", "--group-mode"]
    ended = scripts.run("transactional-message-copier", *options)
    assert ended.exit_status == 0, ended
    wire.wait_until_settled(transactional_id)
    copied = committed_values_of(wire, target)
    assert copied == values
    assert len(values_of(wire, target)) >= len(copied)
    assert wire.offset_fetch(group, source, require_stable=True) == (Code.NONE, RECORDS)
