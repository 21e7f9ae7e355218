"""Cancellation at every suspension of every call: the same call returns the outcome; nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from dualwrite import (
    AsyncProducer,
    IllegalStateError,
    KafkaTimeoutError,
    PreparedTxnState,
    ProducerState,
    TopicPartition,
)
from dualwrite.broker_emulator import Delay, DropReply, Emulator, Fault, Hold
from dualwrite.broker_emulator.faults.actions import Action
from tests.producer.cancelling import Moment, cancelled_at
from tests.producer.impatience import impatient
from tests.support.topics import read_topic, wait_until_settled

MOMENTS = list(Moment)
APIS = ["Metadata", "FindCoordinator", "InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"]
STEPS = 7
"""More suspensions than any program here has; a test makes sure that the last one is met."""

_names = itertools.count(1)

Call = Callable[[AsyncProducer], Awaitable[Any]]


@pytest.fixture(scope="module")
def shared_emulator() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


@pytest.fixture
def broker(shared_emulator: Emulator) -> Iterator[Emulator]:
    yield shared_emulator
    shared_emulator.faults.clear()


@pytest.fixture
def topic() -> str:
    """A topic for each case, with a transactional id of the same name."""
    return f"t-{next(_names)}"


def make(broker: Emulator, name: str, **settings: Any) -> AsyncProducer:
    settings = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5} | settings
    return AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=name,
        transaction_two_phase_commit_enable=True,
        **settings,
    )


def committed(broker: Emulator, topic: str) -> list[str]:
    wait_until_settled(broker)
    return [value for _, value in read_topic(broker.bootstrap_servers, topic)]


def committed_offset(broker: Emulator, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        (position,) = consumer.committed([KafkaPartition(topic, 0)], timeout=60)
        return int(position.offset)
    finally:
        consumer.close()


def everything(topic: str) -> list[Call]:
    """Two transactions that commit, one that does not, and every waiting call."""
    offsets = {TopicPartition(topic, 0): 5}
    prepared: list[PreparedTxnState] = []

    async def prepare(producer: AsyncProducer) -> None:
        prepared.append(await producer.prepare_transaction())

    return [
        lambda producer: producer.init_transactions(),
        lambda producer: producer.begin_transaction(),
        lambda producer: producer.send(topic, "a"),
        lambda producer: producer.send_offsets_to_transaction(offsets, f"group of {topic}"),
        prepare,
        lambda producer: producer.complete_transaction(prepared[0]),
        lambda producer: producer.begin_transaction(),
        lambda producer: producer.send(topic, "b"),
        lambda producer: producer.flush(),
        lambda producer: producer.commit_transaction(),
        lambda producer: producer.begin_transaction(),
        lambda producer: producer.send(topic, "c"),
        lambda producer: producer.abort_transaction(),
        lambda producer: producer.close(),
    ]


async def run_and_repeat(producer: AsyncProducer, calls: list[Call], at: int, moment: Moment) -> int:
    """Make the calls, repeating the cancelled one. Return the number of suspensions."""
    met = 0
    for call in calls:
        stepping = await cancelled_at(awaited(call, producer), at - met, moment)
        met += stepping.suspensions
        if stepping.came:
            await call(producer)
            at = 0
    return met


async def awaited(call: Call, producer: AsyncProducer) -> Any:
    return await call(producer)


def faults(broker: Emulator, action: Action, **settings: Any) -> None:
    for api in APIS:
        broker.faults.add(Fault(api=api, action=action, client_id="dualwrite", **settings))


WORLDS = ["asyncio", "uvloop", "lost replies", "slow replies"]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("at", range(STEPS + 1))
def test_the_same_call_again_and_all_is_as_if_nothing_had_been(
    broker: Emulator, topic: str, at: int, moment: Moment, world: str
) -> None:
    if world == "lost replies":
        faults(broker, DropReply())
    elif world == "slow replies":
        faults(broker, Delay(3), count=None)

    async def run() -> None:
        # a record that left by itself may be stored before the call that should wait for it
        producer = make(broker, topic, linger_ms=60_000, delivery_timeout_ms=120_000)
        met = await run_and_repeat(producer, everything(topic), at, moment)
        assert met == STEPS or at or "replies" in world

    (uvloop.run if world == "uvloop" else asyncio.run)(run())
    assert committed(broker, topic) == ["a", "b"]
    assert committed_offset(broker, f"group of {topic}", topic) == 5


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("at", range(1, 8))
async def test_the_next_owner_completes_the_transaction_by_the_stored_state(
    broker: Emulator, topic: str, at: int, moment: Moment
) -> None:
    """Cancelled, closed, and left to the next owner of the id, who has only the state stored with the decision."""
    row = PreparedTxnState()
    decided: list[str] = []

    async def transactions(producer: AsyncProducer) -> None:
        nonlocal row
        await producer.init_transactions()
        for value in ("a", "b"):
            await producer.begin_transaction()
            await producer.send(topic, value)
            row = await producer.prepare_transaction()
            decided.append(value)
            await producer.complete_transaction(row)

    producer = make(broker, topic)
    stepping = await cancelled_at(transactions(producer), at, moment)
    assert stepping.came or stepping.suspensions == 6
    await producer.close(timeout_s=0)
    async with make(broker, topic) as successor:
        await successor.init_transactions(keep_prepared_txn=True)
        await successor.complete_transaction(row)
        await successor.begin_transaction()
        await successor.send(topic, "next")
        await successor.commit_transaction()
    assert committed(broker, topic) == [*decided, "next"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("at", range(1, 5))
def test_a_block_is_aborted_or_its_commit_has_an_unknown_outcome(
    broker: Emulator, topic: str, at: int, moment: Moment
) -> None:
    async def block(producer: AsyncProducer) -> None:
        async with producer.transaction():
            future = await producer.send(topic, "a")
            await future
            await producer.send(topic, "b")

    async def run() -> list[str]:
        expected: list[str] = []
        async with make(broker, topic, linger_ms=0) as producer:
            await producer.init_transactions()
            stepping = await cancelled_at(block(producer), at, moment)
            assert stepping.came or stepping.suspensions == 3
            if await is_open(producer) or not stepping.came:
                expected = ["a", "b"]
            async with producer.transaction():
                await producer.send(topic, "next")
        return [*expected, "next"]

    assert asyncio.run(run()) == committed(broker, topic)


async def is_open(producer: AsyncProducer) -> bool:
    """Whether a commit has no known outcome; if so, ask for it."""
    try:
        await producer.begin_transaction()
    except IllegalStateError:
        await producer.commit_transaction()
        return True
    await producer.abort_transaction()
    return False


async def test_a_timeout_around_a_commit_does_not_stop_the_commit(broker: Emulator, topic: str) -> None:
    held = broker.faults.add(Fault(api="EndTxn", action=Hold()))

    async def expire(limit: asyncio.Timeout) -> None:
        await asyncio.to_thread(held.wait_held)
        limit.reschedule(0)

    async with make(broker, topic) as producer:
        await producer.init_transactions()
        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                group.create_task(expire(limit))
                async with producer.transaction():
                    await producer.send(topic, "a")
        assert producer.state is ProducerState.COMMITTING_TRANSACTION
        assert raised.value.__context__ is not None
        assert any("repeat the same call" in note for note in raised.value.__context__.__notes__)
        with pytest.raises(IllegalStateError, match="not known"):
            await producer.abort_transaction()
        held.remove()
        await producer.commit_transaction()
    assert committed(broker, topic) == ["a"]


async def test_one_of_two_tasks_that_wait_for_the_same_commit_is_cancelled(broker: Emulator, topic: str) -> None:
    held = broker.faults.add(Fault(api="EndTxn", action=Hold()))
    async with make(broker, topic) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send(topic, "a")
        first, second = (asyncio.create_task(producer.commit_transaction()) for _ in range(2))
        await asyncio.to_thread(held.wait_held)
        first.cancel()
        held.release()
        await second
        assert (await asyncio.wait([first]))[0].pop().cancelled()
        await producer.begin_transaction()
    assert committed(broker, topic) == ["a"]


async def test_a_sibling_that_fails_aborts_the_block(broker: Emulator, topic: str) -> None:
    async with make(broker, topic) as producer:
        await producer.init_transactions()
        with pytest.raises(ExceptionGroup) as raised:
            async with asyncio.TaskGroup() as group:
                sent = asyncio.Event()

                async def fail() -> None:
                    await sent.wait()
                    raise ValueError("the sibling")

                async def transact() -> None:
                    async with producer.transaction():
                        await (await producer.send(topic, "a"))
                        sent.set()
                        await asyncio.Event().wait()

                group.create_task(transact())
                group.create_task(fail())
        assert [str(error) for error in raised.value.exceptions] == ["the sibling"]
        assert producer.state is ProducerState.READY
        async with producer.transaction():
            await producer.send(topic, "b")
    assert committed(broker, topic) == ["b"]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_closing_is_bounded_for_every_pending_call(
    broker: Emulator, topic: str, cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker.faults.add(Fault(api="EndTxn", action=Hold(), count=None))
    producer = make(broker, topic)
    await producer.init_transactions()
    await producer.begin_transaction()
    await producer.send(topic, "a")
    if cancelled:
        committing = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
    else:
        with impatient(producer, 150), pytest.raises(KafkaTimeoutError):
            await producer.commit_transaction()
    with impatient(producer, 150):
        await producer.close()
    assert producer.state is ProducerState.CLOSED
    assert "closed while the commit" in caplog.text


async def test_a_record_that_waits_for_room_is_not_sent_when_cancelled(broker: Emulator, topic: str) -> None:
    async with make(broker, topic, batch_size=200, buffer_memory=200) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.send(topic, "a" * 150)
        held = broker.faults.add(Fault(api="Produce", action=Hold()))
        waiting = asyncio.create_task(producer.send(topic, "b" * 150))
        await asyncio.to_thread(held.wait_held)
        waiting.cancel()
        await asyncio.wait([waiting])
        held.release()
        await producer.commit_transaction()
    assert committed(broker, topic) == ["a" * 150]
