"""`dualwrite transactions ...`: the columns of kafka-transactions.sh, and JSON with stable keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault
from dualwrite.errors import FencedError
from dualwrite.producer import Producer
from tests.cli.conftest import Call, Ended, assert_one_line
from tests.interop.wire import Identity, Wire, record_batch

LONG_AGO_MS = 1_600_000_000_000


@pytest.fixture
def broker() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_partition_verification_enable=False)
    with Emulator(config=config, topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def owner(broker: Emulator) -> Iterator[Producer]:
    """Give a producer with an open transaction."""
    producer = Producer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id="orders-1",
        transaction_two_phase_commit_enable=True,
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", value=b"1", partition=0)
    producer.flush()
    yield producer
    producer.close(timeout_s=0)


@pytest.fixture
def run(broker: Emulator, call: Call) -> Call:
    return lambda name, *more: call("transactions", name, "--bootstrap-server", broker.bootstrap_servers, *more)


def columns(done: Ended, code: int = 0, err: str = "") -> list[list[str]]:
    assert (done.code, done.err) == (code, err)
    return [line.split() for line in done.out.splitlines()]


@pytest.mark.usefixtures("owner")
def test_list(run: Call, broker: Emulator) -> None:
    (known,) = broker.transactions()
    assert columns(run("list")) == [
        ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"],
        ["orders-1", "0", str(known.producer_id), "Ongoing"],
    ]
    assert run("list", "--json").document == [
        {"transactional_id": "orders-1", "producer_id": known.producer_id, "state": "Ongoing", "coordinator_id": 0}
    ]
    assert run("list", "--state", "Empty", "--json").document == []
    assert len(run("list", "--state", "ongoing", "--json").document) == 1
    assert run("list", "--producer-id", known.producer_id + 1, "--json").document == []
    assert run("list", "--transactional-id-pattern", "orders-.*", "--json").document != []
    assert run("list", "--duration-filter", 3_600_000, "--json").document == []


@pytest.mark.usefixtures("owner")
def test_describe(run: Call) -> None:
    header, row = columns(run("describe", "--transactional-id", "orders-1"))
    assert header == [
        *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"),
        *("TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"),
    ]
    assert (row[1], row[4], row[5], row[8]) == ("orders-1", "Ongoing", "2147483647", "orders-0")
    assert run("describe", "--transactional-id", "orders-1", "--json").document.keys() == {
        *("transactional_id", "coordinator_id", "state", "producer_id", "producer_epoch", "transaction_timeout_ms"),
        *("transaction_start_time_ms", "transaction_duration_ms", "topic_partitions", "has_timeout"),
    }
    assert_one_line(run("describe", "--transactional-id", "nobody"), 1, "never used, or it expired")


def test_a_long_id_is_not_wrapped(run: Call, broker: Emulator) -> None:
    transactional_id = "[bold]" + "x" * 200
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id) as producer:
        producer.init_transactions()
    (_, row) = columns(run("list"))
    assert row[0] == transactional_id


@pytest.mark.usefixtures("owner")
def test_describe_producers(run: Call) -> None:
    header, row = columns(run("describe-producers", "--topic", "orders", "--partition", 0))
    assert header == [
        *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch"),
        *("LastSequence", "LastTimestamp", "CurrentTransactionStartOffset"),
    ]
    assert (row[1], row[2], row[3], row[5]) == ("0", "-1", "0", "0")
    (document,) = run("describe-producers", "--topic", "orders", "--partition", 0, "--json").document
    assert (document["coordinator_epoch"], document["current_transaction_start_offset"]) == (None, 0)
    assert columns(run("describe-producers", "--topic", "orders", "--partition", 1)) == [header]


@pytest.mark.usefixtures("owner")
def test_find_hanging_and_abort(run: Call, broker: Emulator) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        batch = record_batch([b"v"], Identity(4711, 0), 0, transactional=True, timestamp_ms=LONG_AGO_MS)
        wire.produce_bytes("nobody", "orders", batch, partition=1, version=11)
    next_step = (
        "orders-1: 4711:0 of an unknown id has written nothing since 2020-09-13 12:26:40 UTC. Kafka hides an "
        "id from clients without DESCRIBE on it, and then it may be in use: look again with DESCRIBE on all "
        "transactional ids. Only if none has it: if a database has decided it, as the error of its dual writer says: "
        "`dualwrite transactions commit --topic orders --partition 1 --prepared-state 4711:0`; else: "
        "`dualwrite transactions abort --topic orders --partition 1 --start-offset 0`\n"
    )
    header, row = columns(run("find-hanging", "--topic", "orders"), 1, next_step)
    assert header == [
        *("Topic", "Partition", "ProducerId", "ProducerEpoch"),
        *("CoordinatorEpoch", "StartOffset", "LastTimestamp", "Duration(min)"),
    ]
    assert row[:7] == ["orders", "1", "4711", "0", "-1", "0", "2020-09-13T12:26:40Z"]
    (document,) = run("find-hanging", "--broker-id", 0, "--json").document
    assert (document["topic"], document["partition"], document["transactional_id"]) == ("orders", 1, None)
    assert f"{document['next_step']}\n" == next_step
    done = run("abort", "--topic", "orders", "--partition", 1, "--start-offset", 0)
    assert (done.code, done.out) == (0, "aborted on orders-1\n")
    assert columns(run("find-hanging", "--topic", "orders")) == [header]
    assert_one_line(run("abort", "--topic", "orders", "--partition", 1, "--start-offset", 0), 1, "nothing was aborted")


@pytest.mark.usefixtures("owner")
def test_a_hanging_transaction_is_committed(run: Call, broker: Emulator) -> None:
    with Wire(broker.bootstrap_servers) as wire:
        batch = record_batch([b"v"], Identity(4711, 5), 0, transactional=True, timestamp_ms=LONG_AGO_MS)
        wire.produce_bytes("nobody", "orders", batch, partition=1, version=11)
    where = ("--topic", "orders", "--partition", 1)
    assert_one_line(run("commit", *where, "--prepared-state", "4711:4"), 1, "nothing was committed")
    assert run("commit", *where, "--prepared-state", "4711").code == 2
    assert run("commit", *where, "--prepared-state", "").code == 2
    assert broker.records("orders", 1) == []
    done = run("commit", *where, "--prepared-state", "4711:5")
    assert (done.code, done.out) == (0, "committed on orders-1\n")
    assert [record.value for record in broker.records("orders", 1)] == [b"v"]
    assert_one_line(run("commit", *where, "--prepared-state", "4711:5"), 1, "nothing was committed")


def test_an_unknown_broker_is_an_error_and_not_an_empty_result(run: Call) -> None:
    assert_one_line(run("find-hanging", "--broker-id", 7), 1, "broker 7 has no replica of the partitions to search")
    assert run("find-hanging", "--broker-id", 0).code == 0


def test_force_terminate(run: Call, owner: Producer) -> None:
    done = run("force-terminate", "--transactional-id", "orders-1", "--json")
    assert (done.code, done.document["found"]["state"]) == (0, "Ongoing")
    with pytest.raises(FencedError):
        owner.commit_transaction()
    assert_one_line(run("force-terminate", "--transactional-id", "nobody"), 1, "nobody")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "--state", "open"), "--state"),
        (("list", "--transactional-id-pattern", "("), "("),
        (("describe",), "--transactional-id"),
        (("describe-producers", "--topic", "orders"), "--partition"),
        (("find-hanging",), "give --topic or --broker-id"),
        (("find-hanging", "--partition", "1", "--broker-id", "0"), "--partition needs its --topic"),
        (("abort", "--topic", "orders", "--partition", "0"), "give --start-offset, or"),
        (
            ("abort", "--topic", "o", "--partition", "0", "--start-offset", "0", "--producer-id", "1"),
            "give --start-offset",
        ),
        (("abort", "--topic", "o", "--partition", "0", "--producer-id", "1"), "give --start-offset, or"),
        (("forget",), "forget"),
    ],
    ids=" ".join,
)
def test_wrong_usage(run: Call, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert_one_line(done, 1 if "(" in arguments else 2, said)


def test_list_fails_if_a_broker_cannot_list(run: Call, broker: Emulator) -> None:
    broker.faults.add(Fault(api="ListTransactions", count=None, action=Error(15)))
    assert run("list", "--timeout-ms", 200).code != 0
