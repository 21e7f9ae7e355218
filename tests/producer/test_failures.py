"""Lost requests, lost replies, dropped connections and refusals, at every step of a transaction."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

import pytest

from dualwrite.broker_emulator import CloseBefore, DropReply, DropRequest, Emulator, Error, Fault
from dualwrite.broker_emulator.faults.actions import Action
from dualwrite.client.io_thread import this_process
from dualwrite.client.sender import Sender
from dualwrite.errors import (
    AbortableError,
    DeliveryError,
    FatalError,
    IllegalStateError,
)
from dualwrite.producer import Producer, ProducerState
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.support.in_doubt import send_in_doubt
from tests.support.threads import in_threads
from tests.support.topics import wait_until_settled


def run(producer: Producer, *values: str) -> None:
    for value in values:
        producer.begin_transaction()
        producer.send("orders", value)
        producer.complete_transaction(producer.prepare_transaction())


def test_a_lost_record_fails_the_prepare(producer: Producer, emulator: Emulator, read_committed: ReadCommitted) -> None:
    emulator.faults.add(Fault(api="Produce", action=Error(87)))
    producer.begin_transaction()
    future = producer.send("orders", "lost")
    with pytest.raises(AbortableError) as raised:
        producer.prepare_transaction()
    assert raised.value.error_code == 87
    with pytest.raises(DeliveryError):
        future.result(0)
    assert producer.state is ProducerState.ABORTABLE_ERROR
    with pytest.raises(AbortableError, match="abort_transaction"):
        producer.send("orders", "more")
    producer.abort_transaction()
    run(producer, "a")
    assert read_committed() == [b"a"]


def test_batches_in_flight_keep_their_order_over_retries(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    producer = make_producer(batch_size=300, linger_ms=0)
    producer.init_transactions()
    actions: list[tuple[Action, int]] = [(Error(19), 1), (DropReply(), 6), (Error(6), 12), (CloseBefore(), 20)]
    for action, skip in actions:
        emulator.faults.add(Fault(api="Produce", action=action, skip=skip))
    producer.begin_transaction()
    values = [f"{i:04}" for i in range(1000)]
    futures = [producer.send("orders", value) for value in values]
    producer.commit_transaction()
    assert [future.result(0).offset for future in futures] == list(range(1000))
    assert read_committed() == [value.encode() for value in values]


def test_an_idempotent_producer_goes_on_after_a_lost_batch(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    """The batches behind it are refused as out of order, and sent again."""
    producer = make_producer(None, batch_size=100)
    producer.send("orders", "a").result(60)
    emulator.faults.add(Fault(api="Produce", action=Error(87)))
    with pytest.raises(DeliveryError, match="with INVALID_RECORD"):
        producer.send_batch("orders", [bytes(100), b"b" * 100, b"c" * 100]).result(60)
    assert producer.send("orders", "d").result(60).offset == 3
    assert read_committed() == [b"a", b"b" * 100, b"c" * 100, b"d"]


def test_an_idempotent_producer_does_not_double_a_batch_in_doubt(
    emulator: Emulator, read_committed: ReadCommitted
) -> None:
    assert send_in_doubt(emulator.bootstrap_servers, "orders", "events") == [0, 1, 2]
    assert read_committed() == [b"first", b"in doubt", b"last"]


def test_close_aborts_an_open_transaction(producer: Producer, emulator: Emulator) -> None:
    producer.begin_transaction()
    producer.send("orders", "v").result(60)
    producer.close()
    wait_until_settled(emulator)
    assert [transaction.state for transaction in emulator.transactions()] == ["CompleteAbort"]
    with pytest.raises(IllegalStateError, match="create a new producer"):
        producer.begin_transaction()


def test_a_waiting_caller_gets_an_error_when_another_thread_closes(producer: Producer, emulator: Emulator) -> None:
    producer.begin_transaction()
    producer.send("orders", "v").result(60)
    held = emulator.faults.add(Fault(api="EndTxn", action=Error(51), count=None))
    told: list[BaseException] = []

    def commit() -> None:
        try:
            producer.commit_transaction()
        except FatalError as error:
            told.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    held.wait(1)
    producer.close(timeout_s=0)
    thread.join(60)
    assert len(told) == 1
    assert "outcome is unknown" in str(told[0])


def test_many_threads_share_a_producer(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(batch_size=500)
    producer.init_transactions()
    producer.begin_transaction()

    def send_some(name: int) -> None:
        for i in range(500):
            producer.send("events", f"{name}-{i}")

    in_threads(*(partial(send_some, name) for name in range(4)))
    producer.commit_transaction()
    expected = sorted(f"{name}-{i}".encode() for name in range(4) for i in range(500))
    assert sorted(read_committed("events", 3)) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_after_a_fork_the_child_has_its_own_thread_and_the_parent_continues(
    producer: Producer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    run(producer, "parent 1")
    child = os.fork()
    if child == 0:
        os._exit(_in_the_child(producer, emulator.bootstrap_servers))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    run(producer, "parent 2")
    assert read_committed() == [b"parent 1", b"child", b"parent 2"]


def _in_the_child(inherited: Producer, bootstrap_servers: str) -> int:
    try:
        inherited.begin_transaction()
    except IllegalStateError:
        inherited.close()
        with Producer(bootstrap_servers=bootstrap_servers, transactional_id="child") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", "child")
            producer.commit_transaction()
        return 0
    return 1


def test_nothing_waits_in_a_forked_child_for_threads_of_the_parent(
    producer: Producer, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.faults.add(Fault(api="Produce", action=DropRequest()))
    producer.begin_transaction()
    record, records = producer.send("orders", "a"), producer.send_batch("orders", ["b"])
    uses: list[Callable[[], object]] = [
        lambda: record.result(0),
        lambda: records.result(0),
        lambda: record.add_done_callback(print),
        producer.metrics,
        lambda: producer.next_prepared_state,
        lambda: producer._core.manifest,
    ]
    with monkeypatch.context() as child:
        child.setattr(this_process, "generation", this_process.generation + 1)
        for use in uses:
            with pytest.raises(IllegalStateError, match="before the fork"):
                use()


def test_a_bug_ends_the_wait_for_a_topic(
    make_producer: MakeProducer, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.faults.add(Fault(api="Metadata", action=DropRequest(), count=None))

    genuine = Sender._poll_manager

    def broken(sender: Sender, now_ms: float) -> None:
        if sender._topic_waiters:
            raise RuntimeError("oops")
        genuine(sender, now_ms)

    monkeypatch.setattr(Sender, "_poll_manager", broken)
    producer = make_producer(None, two_phase_commit=False)
    with pytest.raises(FatalError, match="a bug in the producer: RuntimeError: oops"):
        producer.send("orders", "a")
