"""The records of a topic over HTTP, and the reset between two tests of a session."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from dualwrite.broker_emulator import Fault, Hold
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.errors import FencedError
from tests.emulator.control.client import Client
from tests.emulator.control.conftest import Transaction
from tests.support.topics import read_topic


@pytest.fixture
def fresh() -> Iterator[Emulator]:
    with Emulator(nodes=2, clock=VirtualClock(), topics={"orders": 2}, control="127.0.0.1:0") as emulator:
        yield emulator


@pytest.fixture
def asked(fresh: Emulator) -> Client:
    return Client(fresh.control_url)


def send(emulator: Emulator, topic: str, *values: bytes | None, **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": emulator.bootstrap_servers, "linger.ms": 20, **settings})
    for value in values:
        producer.produce(topic, value, b"key", partition=0, timestamp=1000, headers={"h": b"\xff", "none": None})
    assert producer.flush(30) == 0


def values(client: Client, query: str = "") -> list[str | None]:
    return [each["value"] for each in client.get(f"/v1/topics/orders/records{query}")["records"]]


def test_every_part_of_a_record(fresh: Emulator, asked: Client) -> None:
    send(fresh, "orders", b"lamp", b"\xff\x00", None)
    found = asked.get("/v1/topics/orders/records?encoding=base64&partition=0")
    assert found["total"] == 3
    assert found["records"][1] == {
        "partition": 0,
        "offset": 1,
        "timestamp_ms": 1000,
        "key": base64.b64encode(b"key").decode(),
        "value": base64.b64encode(b"\xff\x00").decode(),
        "headers": [{"key": "h", "value": base64.b64encode(b"\xff").decode()}, {"key": "none", "value": None}],
        "producer_id": None,
        "transaction": None,
        "marker": None,
    }
    assert found["records"][2]["value"] is None
    refused = asked.refused(409, "GET", "/v1/topics/orders/records")
    assert refused["code"] == "not-text"
    assert "the header 'h' at offset 0 of orders-0 is not UTF-8" in refused["message"]


def test_invalid_queries_for_records_are_refused(asked: Client) -> None:
    assert asked.get("/v1/topics/never-used/records") == {"records": [], "total": 0}
    assert asked.get("/v1/topics/orders/records") == {"records": [], "total": 0}
    asked.refused(404, "GET", "/v1/topics/orders/records?partition=2")
    assert "needs a 'query.partition'" in asked.refused(400, "GET", "/v1/topics/orders/records?offset=1")["message"]
    asked.refused(400, "GET", "/v1/topics/orders/records?isolation=dirty")


def test_both_isolations_are_those_of_consumers(fresh: Emulator, asked: Client) -> None:
    transactions = [Transaction(fresh, name) for name in ("committed", "aborted", "open")]
    for transaction in transactions:
        transaction.producer.send("orders", value=transaction.transactional_id.encode(), partition=0)
        transaction.producer.flush()
    transactions[0].commit()
    transactions[1].producer.abort_transaction()
    send(fresh, "orders", b"behind")
    for isolation in ("read_committed", "read_uncommitted"):
        consumed = [value for _, value in read_topic(fresh.bootstrap_servers, "orders", isolation_level=isolation)]
        asked_for = asked.get(f"/v1/topics/orders/records?isolation={isolation}&encoding=base64")["records"]
        assert [base64.b64decode(each["value"]).decode() for each in asked_for] == consumed
    everything = "/v1/topics/orders/records?isolation=read_uncommitted&markers=true&encoding=base64"
    kinds = [each["marker"] or each["transaction"] for each in asked.get(everything)["records"]]
    assert kinds == ["committed", "aborted", "open", "commit", "abort", None]
    for transaction in transactions:
        transaction.producer.close()


def test_a_reset_leaves_a_broker_as_new_to_clients_that_stay(fresh: Emulator, asked: Client) -> None:
    kept = Transaction(fresh, "kept")
    kept.send("orders")
    kept.commit()
    left_open = Transaction(fresh, "left-open", two_phase_commit=True)
    left_open.send("orders")
    held = fresh.faults.add(Fault(api="Fetch", action=Hold(), count=None))
    fresh.hold(PausePoint.BEFORE_MARKER)
    fresh.hold_replication("orders", 1)
    fresh.crash_node(1)
    consumer = Consumer({"bootstrap.servers": fresh.bootstrap_servers, "group.id": "gone", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    while not consumer.assignment():
        consumer.poll(0.05)
    consumer.close()

    asked.post("/v1/reset")

    assert held not in fresh.faults.live
    state = asked.get("/v1/state")
    assert (state["faults"], state["holds"], state["groups"]["groups"]) == ([], [], [])
    assert fresh.living_nodes == [0, 1]
    assert not any(
        each["is_replication_held"] or each["open_transactions"] for each in state["partitions"]["partitions"]
    )
    assert fresh.records("orders", read_committed=False) == []
    assert read_topic(fresh.bootstrap_servers, "orders") == []
    kept.producer.begin_transaction()
    kept.send("orders")
    kept.commit()  # under the pair that it had
    assert [record.value for record in fresh.records("orders")] == [b"lamp"]
    with pytest.raises(FencedError):
        left_open.commit()
    for transaction in (kept, left_open):
        transaction.producer.close()


def test_a_reset_waits_for_a_commit_that_is_under_way(fresh: Emulator) -> None:
    transaction = Transaction(fresh, "deciding")
    transaction.send("orders")
    held = fresh.hold(PausePoint.AFTER_PREPARE_APPEND)
    with ThreadPoolExecutor(1) as threads:
        commit = threads.submit(transaction.commit)
        held.wait_reached()
        fresh.reset()
        commit.result(30)
    (left,) = fresh.transactions()
    assert str(left.state) != "Ongoing"
    assert fresh.log("orders").last_stable_offset == fresh.log("orders").log_end_offset
    assert fresh.records("orders", read_committed=False) == []
    transaction.producer.close()
