"""An outcome is kept until the caller has received it, and no longer: however early it came, however the wait ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dualwrite.async_producer import AsyncProducer
from dualwrite.broker_emulator import Emulator, Fault, Hold
from dualwrite.client.operations import Operation
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.record_future import Waiter
from dualwrite.errors import FatalError, IllegalStateError, KafkaUnreachableError
from dualwrite.producer import Producer, ProducerState
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.support.conditions import until


def test_a_response_that_arrives_before_it_is_waited_for(
    make_producer: MakeProducer, read_committed: ReadCommitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make_producer()
    start = ProducerCore.start

    def start_and_be_slow(core: ProducerCore, call: Callable[[], Operation], listener: Callable[[], None]) -> Operation:
        operation = start(core, call, listener)
        until(lambda: operation.done)
        return operation

    monkeypatch.setattr(ProducerCore, "start", start_and_be_slow)
    producer.init_transactions()
    for value in ("a", "b"):
        producer.begin_transaction()
        producer.send("orders", value)
        producer.commit_transaction()
    assert read_committed() == [b"a", b"b"]


@contextmanager
def interruption_of(
    owner: object, call: str, monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] | None = None
) -> Iterator[None]:
    """Expect the interruption that this call is replaced with."""

    def interrupted(*_: object) -> None:
        if before is not None:
            before()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(owner, call, interrupted)
        yield


@pytest.mark.parametrize("late", [False, True], ids=["before the answer", "after the answer"])
def test_an_interrupted_wait_loses_no_outcome(
    producer: Producer, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    producer.begin_transaction()
    producer.send("orders", "a")
    held = emulator.faults.add(Fault(api="EndTxn", action=Hold()))

    def answered() -> None:
        held.wait_held()
        held.release()
        until(lambda: producer.state is ProducerState.READY)

    with interruption_of(Waiter, "wait", monkeypatch, answered if late else None):
        producer.commit_transaction()
    with pytest.raises(IllegalStateError, match="repeat that call"):
        producer.begin_transaction()
    held.remove()
    producer.commit_transaction()
    producer.begin_transaction()


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
async def test_an_interruption_reaches_each_caller_that_waits_for_the_same(emulator: Emulator, api: str) -> None:
    """Also the second one, if the first waits again meanwhile: no success is reported before there is one."""
    async with AsyncProducer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="tid") as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        held = emulator.faults.add(Fault(api=api, action=Hold()))
        record = await producer.send("orders", b"a")
        wait: Callable[[], Any] = record.result if api == "Produce" else producer.commit_transaction
        interrupted = []

        async def wait_until_it_ends(number: int) -> None:
            try:
                await wait()
            except KafkaUnreachableError:
                interrupted.append(number)
                await wait()

        waiting = [asyncio.create_task(wait_until_it_ends(number)) for number in range(2)]
        await asyncio.to_thread(held.wait_held)
        with producer._core.lock:
            producer._core._interrupt_waits(KafkaUnreachableError("no broker"))
        for _ in range(5):  # turns of the loop, in which both callers wait again
            await asyncio.sleep(0)
        held.remove()
        await asyncio.gather(*waiting)
        assert interrupted == [0, 1]


def test_a_signal_that_interrupts_a_wake_up_delays_no_later_call(
    make_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make_producer(None)
    with interruption_of(producer._core, "_call_soon", monkeypatch):
        producer.send("orders", "a")
    assert producer.send("orders", "b").result().offset == 0


def test_a_close_that_is_interrupted_closes(make_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = make_producer(None)
    producer.send("orders", "a").result()
    with interruption_of(Waiter, "wait", monkeypatch):
        producer.close()
    with pytest.raises(FatalError, match="closed"):
        producer.send("orders", "b")
