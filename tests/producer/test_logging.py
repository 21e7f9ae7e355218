"""Log messages: by module, with the transactional id and the state; nothing is printed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
from itertools import pairwise

import pytest

from dualwrite.broker_emulator import DropReply, Emulator, Error, Fault
from dualwrite.client import late_log, producer_core
from dualwrite.client.io_thread import shared_io_thread
from dualwrite.errors import AbortableError, FatalError, FencedError
from dualwrite.producer import Producer, ProducerState
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.support.conditions import until
from tests.support.strikes import Strike, strike

MESSAGE_TOO_LARGE = 10
LOGGER = "dualwrite.client.transactions.producer_state"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records if record.name == LOGGER]


def test_each_change_of_state_is_a_line(
    make_producer: MakeProducer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    with make_producer("log-1", two_phase_commit=False) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"x")
        producer.commit_transaction()
    logged = lines(caplog)
    assert {level for level, _ in logged} == {logging.DEBUG}
    assert all(line.startswith("transactional id log-1: ") for _, line in logged)
    changes = [line.split(": ", 1)[1].split(" by ")[0].split(" -> ") for _, line in logged]
    assert all(before[1] == after[0] for before, after in pairwise(changes)), changes
    assert len(changes) >= 5
    assert "(producer id " in logged[-1][1]
    assert capsys.readouterr() == ("", "")


def test_the_error_that_makes_a_producer_unusable_is_logged_without_debug(
    emulator: Emulator, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dualwrite")
    producer = make_producer("log-2", two_phase_commit=False)
    producer.init_transactions()
    producer.begin_transaction()
    emulator.faults.add(Fault(api="Produce", action=Error(MESSAGE_TOO_LARGE), count=1))
    producer.send("orders", b"x")
    with pytest.raises(AbortableError):
        producer.commit_transaction()
    until(lambda: bool(lines(caplog)))
    ((level, line),) = lines(caplog)
    assert level == logging.INFO
    assert line.startswith("transactional id log-2: ")
    assert "COMMITTING_TRANSACTION -> ABORTABLE_ERROR by ABORTABLE_FAILURE" in line
    assert "MESSAGE_SIZE_TOO_LARGE (10)" in line
    producer.abort_transaction()
    with make_producer("log-2", two_phase_commit=False) as successor:
        successor.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"x")
        with pytest.raises(AbortableError):
            producer.commit_transaction()
        with pytest.raises(FencedError):
            producer.abort_transaction()
    until(lambda: len(lines(caplog)) == 3)
    assert [level for level, _ in lines(caplog)] == [logging.INFO, logging.INFO, logging.WARNING]


def test_nothing_is_logged_under_the_lock(
    producer: Producer, emulator: Emulator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may use the producer that logs, to send messages to Kafka."""
    free: dict[str, bool] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lock = producer._core.lock
            free[record.getMessage()] = acquired = lock.acquire(timeout=20)
            if acquired:
                lock.release()

    caplog.set_level(logging.DEBUG, "dualwrite.client")
    monkeypatch.setattr(logging.getLogger("dualwrite.client"), "handlers", [Handler()])
    producer.begin_transaction()
    emulator.faults.add(Fault(api="Produce", action=Error(MESSAGE_TOO_LARGE), count=1))
    producer.send_batch("orders", [b"x", b"y"])
    producer.prepare_transaction()
    producer.close()
    events = ("by BEGIN_TRANSACTION", "it is split", "by FLUSHED_FOR_PREPARE", "it stays in doubt", "by CLOSE")
    until(lambda: all(any(event in message for message in list(free)) for event in events))
    assert all(free.values()), free


def test_a_signal_leaves_the_lock_to_the_handler_of_its_exception(make_producer: MakeProducer) -> None:
    """Its traceback keeps each frame alive that it has passed; a lock that such a frame holds is held meanwhile."""
    core = make_producer("log-3")._core
    places = (producer_core.__file__, late_log.__file__, contextlib.__file__)

    def act() -> None:
        try:
            core.last_operation()
        except BaseException:
            assert core.lock.acquire(timeout=60)
            core.lock.release()
            raise

    with Strike(inside=places) as counted:
        act()
    assert counted.places > 0
    for place in range(1, counted.places + 1):
        strike(place, act, inside=places)


# ---- handlers that fail -----------------------------------------------------------------------------------------


@pytest.fixture
def failing_handler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a handler of the application fail at each message of the client, as on a full disk; return the messages."""
    failed: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failed.append(record.getMessage())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    client = logging.getLogger("dualwrite.client")
    monkeypatch.setattr(client, "handlers", [Handler()])
    monkeypatch.setattr(client, "level", logging.DEBUG)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    return failed


def test_a_commit_goes_on_over_another_connection_although_a_handler_fails(
    producer: Producer, emulator: Emulator, read_committed: ReadCommitted, failing_handler: list[str]
) -> None:
    producer.begin_transaction()
    producer.send("orders", b"x")
    emulator.faults.add(Fault(api="EndTxn", action=DropReply(), count=1))
    producer.commit_transaction()
    assert read_committed() == [b"x"]
    assert any("connection was lost" in message for message in failing_handler), failing_handler


def test_a_broker_that_was_away_is_connected_to_although_a_handler_fails(
    failing_handler: list[str],
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{reserved.getsockname()[1]}"
    producer = Producer(bootstrap_servers=listen, transactional_id="away", reconnect_backoff_ms=5, retry_backoff_ms=5)
    waiting = threading.Thread(target=producer.init_transactions)
    waiting.start()
    until(lambda: any(message.startswith("cannot connect") for message in failing_handler))
    with Emulator(listen=listen):
        waiting.join(60)
        assert producer.state is ProducerState.READY
        producer.close()


def test_the_callbacks_of_a_batch_are_called_although_a_handler_fails_after_one(
    make_producer: MakeProducer, failing_handler: list[str]
) -> None:
    called: list[str] = []

    def failing(metadata: object, error: object) -> None:
        called.append("first")
        raise ValueError("of the application")

    with make_producer(None, linger_ms=60_000) as producer:
        producer.send("orders", b"1", on_delivery=failing)
        producer.send("orders", b"2", on_delivery=lambda metadata, error: called.append("second"))
        producer.flush()
        until(lambda: called == ["first", "second"])


def test_a_bug_ends_the_calls_of_a_producer_although_a_handler_fails(
    producer: Producer, failing_handler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(now_ms: float) -> None:
        raise AssertionError("a bug")

    producer.begin_transaction()
    producer.send("orders", b"x")
    monkeypatch.setattr(producer._core._sender, "_poll_manager", bug)
    with pytest.raises(FatalError, match="a bug"):
        producer.commit_transaction()
    assert producer.state is ProducerState.FATAL_ERROR


def test_the_io_thread_goes_on_although_a_handler_fails(failing_handler: list[str]) -> None:
    thread = shared_io_thread()

    def ends_the_loop() -> None:
        raise SystemExit

    thread.loop.call_soon_threadsafe(ends_the_loop)
    until(lambda: any("raised SystemExit" in message for message in failing_handler))
    assert thread.start(asyncio.sleep(0, "alive")).result(60) == "alive"
