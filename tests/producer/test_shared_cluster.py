"""The connections shared by all producers of a process with the same settings, and their separate state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite import AsyncProducer, KafkaTimeoutError, Producer
from dualwrite.broker_emulator import DropReply, DropRequest, Emulator, Fault, Hold
from dualwrite.client.wire import pool
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.producer.impatience import impatient
from tests.support.conditions import until


def transact(producer: Producer, *values: str, topic: str = "orders") -> None:
    for value in values:
        with producer.transaction():
            producer.send(topic, value)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def broken(emulator: Emulator) -> int:
    """Disconnect our producers; return how many connections they had."""
    return sum(emulator.disconnect_clients(client_id=name) for name in ("dualwrite", "one", "two"))


def ready(make_producer: MakeProducer, *names: str, **settings: Any) -> list[Producer]:
    producers = [make_producer(name, **settings) for name in names]
    for producer in producers:
        producer.init_transactions()
    return producers


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request wait for another connection however long that takes, rather than behind another request."""
    monkeypatch.setattr(pool, "_PATIENCE_MS", 60_000.0)


def test_idle_producers_share_one_connection_until_the_last_is_closed(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    producers = ready(make_producer, *(f"p-{i}" for i in range(10)))
    for producer in producers:
        transact(producer, "a")
    assert broken(emulator) == 1
    for producer in producers:
        transact(producer, "b")
    for producer in producers[:-1]:
        producer.close()
    assert 0 < broken(emulator) < len(producers) - 1, "those of nine producers are closed"
    transact(producers[-1], "c")
    producers[-1].close()
    until(lambda: broken(emulator) == 0)
    assert sorted(read_committed()) == [b"a"] * 10 + [b"b"] * 10 + [b"c"]


def test_other_settings_mean_another_connection(make_producer: MakeProducer, emulator: Emulator) -> None:
    ready(make_producer, "a", "b", client_id="one")
    ready(make_producer, "c", "d", client_id="two")
    ready(make_producer, "e", linger_ms=1, client_id="two")
    assert broken(emulator) == 2


async def test_loops_do_not_share(make_producer: MakeProducer, emulator: Emulator) -> None:
    ready(make_producer, "sync")
    settings: dict[str, Any] = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5}
    async with (
        AsyncProducer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="a", **settings) as first,
        AsyncProducer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="b", **settings) as second,
    ):
        await first.init_transactions()
        await second.init_transactions()
        assert await asyncio.to_thread(broken, emulator) == 2
        async with first.transaction(), second.transaction():
            await first.send("orders", "a")
            await second.send("orders", "b")


def test_metadata_is_requested_once_for_all(make_producer: MakeProducer, emulator: Emulator) -> None:
    asked = emulator.faults.add(Fault(api="Metadata", client_id="dualwrite", count=None))
    for producer in ready(make_producer, *(f"p-{i}" for i in range(5))):
        transact(producer, "a")
    assert asked.hits == 1


@pytest.mark.usefixtures("patient")
def test_a_stuck_request_delays_no_other_user(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    stuck, busy = ready(make_producer, "stuck", "busy")
    held = emulator.faults.add(Fault(api="Produce", transactional_id="stuck", action=Hold()))
    thread = in_thread(lambda: transact(stuck, "late"))
    held.wait_held()
    transact(busy, "a", "b", "c")
    held.release()
    thread.join(60)
    assert read_committed() == [b"a", b"b", b"c", b"late"]
    assert broken(emulator) == 2


def test_with_a_single_connection_the_error_names_the_request_ahead(
    make_producer: MakeProducer, emulator: Emulator
) -> None:
    stuck, waiting = ready(make_producer, "stuck", "waiting", connections_max_per_node=1)
    transact(waiting, "a")
    held = emulator.faults.add(Fault(api="Produce", transactional_id="stuck", action=Hold()))
    stuck.begin_transaction()
    stuck.send("orders", "late")
    thread = in_thread(stuck.flush)
    held.wait_held()
    behind = "has not responded to Produce, which is queued behind Produce of another user"
    with impatient(waiting, 400), pytest.raises(KafkaTimeoutError, match=behind):
        transact(waiting, "b")
    held.release()
    thread.join(60)
    waiting.commit_transaction()
    stuck.commit_transaction()


def test_a_connection_that_times_out_costs_other_users_one_retry(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    """request.timeout.ms closes the shared connection: requests on their way are sent again, and recognised."""
    names = ["stuck", "b", "c", "d"]
    producers = ready(make_producer, *names, connections_max_per_node=1, request_timeout_ms=200)
    for api in ("Produce", "EndTxn"):
        emulator.faults.add(Fault(api=api, transactional_id="stuck", action=DropRequest()))
        emulator.faults.add(Fault(api=api, transactional_id="b", action=DropReply()))
    values = [[f"{name}-{i}" for i in range(4)] for name in names]
    threads = [
        in_thread(lambda producer=producer, own=own: transact(producer, *own))  # type: ignore[misc]
        for producer, own in zip(producers, values, strict=True)
    ]
    for thread in threads:
        thread.join(60)
    seen = [value.decode() for value in read_committed()]
    assert sorted(seen) == sorted(value for own in values for value in own)
    for name, own in zip(names, values, strict=True):
        assert [value for value in seen if value.startswith(name)] == own


def test_batches_keep_their_order_while_others_come_and_go(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    (long,) = ready(make_producer, "long", batch_size=300, linger_ms=0)
    others = ready(make_producer, *(f"p-{i}" for i in range(4)), batch_size=300, linger_ms=0)
    threads = [in_thread(lambda other=other: transact(other, *"abcdefgh", topic="events")) for other in others]  # type: ignore[misc]
    values = [f"{i:04}" for i in range(1000)]
    with long.transaction():
        futures = [long.send("orders", value) for value in values]
        broken(emulator)
    for thread in threads:
        thread.join(60)
    assert [future.result(0).offset for future in futures] == list(range(1000))
    assert read_committed() == [value.encode() for value in values]


@pytest.mark.usefixtures("patient")
def test_no_more_connections_than_set(make_producer: MakeProducer, emulator: Emulator) -> None:
    producers = ready(make_producer, *(f"p-{i}" for i in range(6)), connections_max_per_node=3)
    held = emulator.faults.add(Fault(api="Produce", action=Hold(), count=None))
    for producer in producers:
        producer.begin_transaction()
        producer.send("orders", "a")
    threads = [in_thread(producer.commit_transaction) for producer in producers]
    held.wait_held(3)
    held.remove()
    for thread in threads:
        thread.join(60)
    assert broken(emulator) == 3
