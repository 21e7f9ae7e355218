"""Log messages: by module, with the transactional id and the state; nothing is printed."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from dualwrite.broker_emulator import Emulator, Error, Fault
from dualwrite.errors import AbortableError, FencedError
from tests.producer.conftest import MakeProducer

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
    assert [level for level, _ in lines(caplog)] == [logging.INFO, logging.INFO, logging.WARNING]
