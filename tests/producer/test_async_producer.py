"""AsyncProducer without cancellation: its loop, its futures, its blocks, its end."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import warnings
from typing import Any

import pytest

from dualwrite import (
    AbortableError,
    AsyncProducer,
    DeliveryError,
    DualWriteError,
    FatalError,
    IllegalStateError,
    InvalidRecordError,
    KafkaTimeoutError,
    Producer,
    ProducerState,
)
from dualwrite.broker_emulator import DropReply, Emulator, Error, Fault, Hold
from dualwrite.client.sender import Sender
from dualwrite.client.transactions.states import BLOCK_EXITS
from dualwrite.client.transactions.states import ProducerState as States
from tests.producer.conftest import ReadCommitted
from tests.producer.impatience import impatient


def make(emulator: Emulator, transactional_id: str | None = "tid", **settings: Any) -> AsyncProducer:
    settings = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5} | settings
    if transactional_id is not None:
        settings |= {"transactional_id": transactional_id, "transaction_two_phase_commit_enable": True}
    return AsyncProducer(bootstrap_servers=emulator.bootstrap_servers, **settings)


async def test_transactions_in_the_callers_loop_and_no_thread(
    either_loop: asyncio.Runner, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    threads = set(threading.enumerate())
    async with make(emulator) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            future = await producer.send("orders", "a", key="k", headers={"h": b"1"})
            assert (await future).offset == 0
            assert future.done()
            assert (await future.result(0)).topic == "orders"
            sent = await producer.send_batch("orders", ["b", "c"])
        assert [stored.record_count for stored in await sent] == [2]
        await producer.begin_transaction()
        await producer.send("orders", "d")
        state = await producer.prepare_transaction()
        assert producer.prepared_txn_state == state
        await producer.complete_transaction(state)
        await producer.begin_transaction()
        await producer.send("orders", "e")
        await producer.abort_transaction()
        started = {thread.name for thread in set(threading.enumerate()) - threads}
        assert not {name for name in started if "dualwrite" in name}
    assert producer.state is ProducerState.CLOSED
    assert read_committed() == [b"a", b"b", b"c", b"d"]


async def test_without_a_transactional_id(emulator: Emulator, read_committed: ReadCommitted) -> None:
    told: list[Any] = []
    producer = make(emulator, None)
    future = await producer.send("orders", "a", on_delivery=lambda *outcome: told.append(outcome))
    await producer.flush()
    assert future.done()
    await producer.send("orders", "b")
    await producer.close()
    await producer.close()
    with pytest.raises(DualWriteError, match="create a new producer"):
        await producer.send("orders", "c")
    assert read_committed() == [b"a", b"b"]
    assert [error for _, error in told] == [None]


def test_a_callback_that_exits_ends_the_loop_after_the_other_callbacks(
    either_loop: asyncio.Runner, emulator: Emulator
) -> None:
    told: list[Any] = []

    def leave(*_: Any) -> None:
        raise SystemExit("from a callback")

    async def main() -> None:
        async with make(emulator, None) as producer:
            for callback in (leave, lambda *outcome: told.append(outcome)):
                await producer.send("orders", "a", on_delivery=callback)
            await asyncio.Event().wait()

    with pytest.raises(SystemExit, match="from a callback"):
        either_loop.run(main())
    assert [error for _, error in told] == [None]


@pytest.mark.parametrize("place", ["_take_response", "_send_produce", "_settle"])
def test_an_exit_while_records_are_sent_or_acknowledged_ends_the_producer(
    either_loop: asyncio.Runner, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def leave(*_: Any) -> None:
        raise SystemExit("of a signal")

    async def main() -> None:
        future = await producer.send("orders", "a")
        futures.append(future)
        await future

    async def started() -> AsyncProducer:
        return make(emulator, None)

    async def end() -> None:
        with pytest.raises(FatalError, match="an interruption of the producer: SystemExit: of a signal"):
            await futures[0]
        await producer.close()

    futures: list[Any] = []
    producer = either_loop.run(started())
    with monkeypatch.context() as signal:
        signal.setattr(Sender, place, leave)
        with pytest.raises((SystemExit, FatalError), match="of a signal"):  # uvloop passes on no error of a protocol
            either_loop.run(main())
    either_loop.run(end())


async def test_the_outcome_of_a_record_without_waiting(emulator: Emulator) -> None:
    async with make(emulator, None, linger_ms=10_000) as producer:
        future = await producer.send("orders", "a")
        with pytest.raises(KafkaTimeoutError, match="still being sent"):
            future.outcome()
        await producer.flush()
        assert future.outcome() == await future


async def test_an_invalid_record_is_refused_at_once(emulator: Emulator) -> None:
    async with make(emulator, None) as producer:
        with pytest.raises(InvalidRecordError, match="not sent"):
            await producer.send("orders", "a", partition=-1)
        with pytest.raises(InvalidRecordError, match="not sent"):
            await producer.send("orders", "a", partition=7)


async def test_the_waits_are_bounded(emulator: Emulator) -> None:
    async with make(emulator) as producer:
        held = emulator.faults.add(Fault(api="InitProducerId", action=Hold()))
        unanswered = r"has not responded to InitProducerId yet.*repeat the same call"
        with impatient(producer, 500), pytest.raises(KafkaTimeoutError, match=unanswered):
            await producer.init_transactions()
        held.remove()
        await producer.init_transactions()
        held = emulator.faults.add(Fault(api="Metadata", action=Hold()))
        await producer.begin_transaction()
        with impatient(producer, 100), pytest.raises(KafkaTimeoutError, match="the record was not sent"):
            await producer.send("orders", "a")
        held.remove()
        future = await producer.send("orders", "a")
        held = emulator.faults.add(Fault(api="Produce", action=Hold()))
        with pytest.raises(KafkaTimeoutError, match="still being sent"):
            await future.result(0.05)
        held.remove()
        await producer.commit_transaction()


def test_another_loop_and_a_loop_that_is_closed(emulator: Emulator) -> None:
    async def init(producer: AsyncProducer | None = None) -> AsyncProducer:
        producer = make(emulator) if producer is None else producer
        await producer.init_transactions()
        return producer

    async def elsewhere(producer: AsyncProducer) -> None:
        with pytest.raises(IllegalStateError, match="belongs to another event loop"):
            await producer.begin_transaction()
        with pytest.raises(IllegalStateError, match="belongs to another event loop"):
            await producer.close()

    first = asyncio.new_event_loop()
    producer = first.run_until_complete(init())
    asyncio.run(elsewhere(producer))
    first.run_until_complete(producer.begin_transaction())
    first.run_until_complete(producer.send("orders", "a"))
    first.close()

    async def after() -> None:
        with pytest.raises(IllegalStateError, match="belongs to an event loop that is closed"):
            await producer.commit_transaction()
        await producer.close()
        assert producer.state is ProducerState.CLOSED
        async with make(emulator) as successor:
            await successor.init_transactions()

    asyncio.run(after())
    with pytest.raises(IllegalStateError, match="created in a coroutine"):
        make(emulator)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_cannot_use_the_producer(emulator: Emulator) -> None:
    async def main() -> int:
        async with make(emulator) as producer:
            await producer.init_transactions()
            child = os.fork()
            if child == 0:
                try:
                    producer.begin_transaction().send(None)
                except IllegalStateError as error:
                    os._exit(0 if "before the fork" in str(error) else 1)
                os._exit(2)
            _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the child runs no loop
            async with producer.transaction():
                await producer.send("orders", "a")
            return os.waitstatus_to_exitcode(status)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork beside other threads
        assert asyncio.run(main()) == 0


async def test_an_unclosed_producer_warns_and_frees_its_connections(emulator: Emulator) -> None:
    producers = [make(emulator)]
    await producers[0].init_transactions()
    with pytest.warns(ResourceWarning, match="was not closed"):
        producers.clear()
    await asyncio.sleep(0)


# ---- blocks -----------------------------------------------------------------------------------------------------


def test_an_exception_in_a_block_aborts(emulator: Emulator, read_committed: ReadCommitted) -> None:
    async def main() -> None:
        async with make(emulator) as producer:
            await producer.init_transactions()
            with pytest.raises(ValueError, match="mine"):
                async with producer.transaction():
                    await (await producer.send("orders", "a"))
                    raise ValueError("mine")
            assert producer.state is ProducerState.READY
            async with producer.transaction() as same:
                assert same is producer
                await producer.send("orders", "b")

    asyncio.run(main())
    with Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="sync") as producer:
        producer.init_transactions()
        with pytest.raises(ValueError, match="mine"):
            with producer.transaction():
                producer.send("orders", "c").result(60)
                raise ValueError("mine")
        with producer.transaction() as same:
            assert same is producer
            producer.send("orders", "d")
    assert read_committed() == [b"b", b"d"]


def test_a_commit_that_says_so_is_aborted(emulator: Emulator, read_committed: ReadCommitted) -> None:
    async def main() -> None:
        async with make(emulator) as producer:
            await producer.init_transactions()
            emulator.faults.add(Fault(api="Produce", action=Error(87)))
            with pytest.raises(AbortableError):
                async with producer.transaction():
                    await producer.send("orders", "a")
            assert producer.state is ProducerState.READY

    asyncio.run(main())
    with Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="sync") as producer:
        producer.init_transactions()
        emulator.faults.add(Fault(api="Produce", action=Error(87)))
        with pytest.raises(DeliveryError):
            with producer.transaction():
                producer.send("orders", "b")
        assert producer.state is ProducerState.READY
    assert read_committed() == []


def test_a_transaction_that_may_be_decided_is_left_alone(emulator: Emulator, read_committed: ReadCommitted) -> None:
    async def main() -> None:
        async with make(emulator) as producer:
            await producer.init_transactions()
            with pytest.raises(ValueError, match="mine") as raised:
                async with producer.transaction():
                    await producer.send("orders", "a")
                    state = await producer.prepare_transaction()
                    raise ValueError("mine")
            assert any("stays prepared" in note for note in raised.value.__notes__)
            assert producer.prepared_txn_state == state
            await producer.complete_transaction(state)

    asyncio.run(main())
    with Producer(bootstrap_servers=emulator.bootstrap_servers, transactional_id="sync") as producer:
        producer.init_transactions()
        held = emulator.faults.add(Fault(api="EndTxn", action=Hold()))
        with impatient(producer, 500), pytest.raises(KafkaTimeoutError) as raised:
            with producer.transaction():
                producer.send("orders", "b")
        assert any("repeat the call that commits" in note for note in raised.value.__notes__)
        held.remove()
        producer.commit_transaction()
    assert read_committed() == [b"a", b"b"]


async def test_a_failed_abort_is_noted_on_the_exception(emulator: Emulator) -> None:
    async with make(emulator) as producer:
        await producer.init_transactions()
        with pytest.raises(ValueError, match="mine") as raised:
            async with producer.transaction():
                await (await producer.send("orders", "a"))
                emulator.faults.add(Fault(api="EndTxn", action=Error(90)))
                raise ValueError("mine")
        assert any("could not be aborted" in note for note in raised.value.__notes__)


def test_leaving_a_block_is_decided_for_every_state() -> None:
    assert set(BLOCK_EXITS) == set(States)
    aborted = {state for state, block_exit in BLOCK_EXITS.items() if block_exit.abort}
    assert aborted == {States.IN_TRANSACTION, States.ABORTABLE_ERROR, States.ABORTING_TRANSACTION}


async def test_lost_connections_are_not_noticed(
    either_loop: asyncio.Runner, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    apis = ("Metadata", "InitProducerId", "Produce", "EndTxn")
    lost = [emulator.faults.add(Fault(api=api, action=DropReply())) for api in apis]
    async with make(emulator) as producer:
        await producer.init_transactions()
        for value in ("a", "b"):
            async with producer.transaction():
                await producer.send("orders", value)
            emulator.disconnect_clients()
    assert [each.hits for each in lost] == [1, 1, 1, 1]
    assert read_committed() == [b"a", b"b"]


def test_both_producers_have_the_same_calls_with_the_same_arguments() -> None:
    def calls(face: type) -> dict[str, list[tuple[str, Any]]]:
        methods = inspect.getmembers(face, callable)
        public = {name: method for name, method in methods if not name.startswith("_")}
        return {
            name: [(each.name, each.default) for each in inspect.signature(method).parameters.values()]
            for name, method in public.items()
        }

    assert calls(Producer) == calls(AsyncProducer)


async def test_full_batches_leave_while_a_task_does_nothing_but_send(
    either_loop: asyncio.Runner, emulator: Emulator
) -> None:
    async with make(emulator, None, batch_size=1000, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        async with asyncio.timeout(30):
            first = await producer.send("orders", b"x" * 100)
            sent = 1
            while not first.done():
                await producer.send("orders", b"x" * 100)
                sent += 1
        assert sent * 100 < 10_000_000  # a third of buffer.memory: a full buffer would let the loop run, too
