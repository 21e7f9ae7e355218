"""The reasons in timeout errors, and the log messages of a producer that is closed after one."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator import DropRequest, Emulator, Error, Fault
from dualwrite.errors import AuthorizationError, DeliveryError, KafkaTimeoutError
from dualwrite.producer import Producer
from tests.producer.conftest import MakeProducer
from tests.producer.impatience import impatient, until_said
from tests.producer.listeners import address, answer_everybody
from tests.producer.listeners import listener as listener

ALWAYS = 1_000_000


def assert_init_says(words: str, servers: str, **settings: Any) -> None:
    settings = {"max_block_ms": 500, "reconnect_backoff_ms": 20} | settings
    with Producer(bootstrap_servers=servers, transactional_id="t", **settings) as producer:
        until_said(f"{re.escape(words)}.*repeat the same call", KafkaTimeoutError, producer.init_transactions)
        producer.close(timeout_s=0)


def test_an_impossible_host_name() -> None:
    assert_init_says("cannot connect to a..b:9092: ", "a..b:9092")


def test_a_listener_that_never_responds(listener: socket.socket) -> None:
    assert_init_says(f"(still connecting to {address(listener)})", address(listener))
    assert_init_says(
        "no response to ApiVersions within request.timeout.ms=50", address(listener), request_timeout_ms=50
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"",
            "the connection was lost before ApiVersions got a response; is this a listener of a Kafka broker?",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a response claimed to have 1213486160 bytes"),
        (b"\0\0\0\6\0\0\0\1\0\0", "the response to ApiVersions v3, of 2 bytes, is malformed"),
        (b"\0\0\0\4\0\0\0\7", "a response matches no request"),
    ],
    ids=["closed", "http", "garbage", "another correlation id"],
)
def test_a_listener_of_another_protocol(listener: socket.socket, answer: bytes, words: str) -> None:
    answer_everybody(listener, answer)
    assert_init_says(words, address(listener))


def test_a_request_without_a_response(make_producer: MakeProducer, emulator: Emulator) -> None:
    make_producer("first").init_transactions()  # the emulator loads its messages when they are first asked for
    emulator.faults.add(Fault(api="InitProducerId", action=DropRequest(), count=ALWAYS))
    producer = make_producer(max_block_ms=2_000, request_timeout_ms=500)
    words = r"InitProducerId got no response within request\.timeout\.ms=500"
    until_said(words, KafkaTimeoutError, producer.init_transactions)


def test_a_record_that_does_not_get_there(make_producer: MakeProducer, emulator: Emulator) -> None:
    emulator.faults.add(Fault(api="Produce", action=Error(19), count=ALWAYS))
    future = make_producer(None).send("orders", "v")
    words = r"not acknowledged within 0\.1 s \(.*NOT_ENOUGH_REPLICAS \(19\)"
    until_said(words, KafkaTimeoutError, lambda: future.result(0.1))
    producer = make_producer(None, request_timeout_ms=500, delivery_timeout_ms=1_500)
    words = r"delivery\.timeout\.ms=1500 \(.*NOT_ENOUGH_REPLICAS \(19\)"
    until_said(words, DeliveryError, lambda: producer.send("orders", "v").result(60))


def test_errors_by_their_names_and_the_rights_that_are_missing(make_producer: MakeProducer, emulator: Emulator) -> None:
    producer = make_producer(None)
    emulator.faults.add(Fault(api="Metadata", action=Error(29)))
    with pytest.raises(
        AuthorizationError, match=r"TOPIC_AUTHORIZATION_FAILED \(29\), the right .* DESCRIBE on the top"
    ):
        producer.send("orders", "v")
    emulator.faults.add(Fault(api="Produce", action=Error(29)))
    with pytest.raises(DeliveryError, match=r"TOPIC_AUTHORIZATION_FAILED \(29\): the right .* WRITE on the topic 'ord"):
        producer.send("orders", "v").result(60)
    for two_phase_commit, words in (
        (True, "TWO_PHASE_COMMIT on it"),
        (False, r"is WRITE on the transactional id 'tid'; grant it, then"),
    ):
        emulator.faults.add(Fault(api="InitProducerId", action=Error(53)))
        with pytest.raises(AuthorizationError, match=words):
            make_producer(two_phase_commit=two_phase_commit).init_transactions()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Producer.commit_transaction, "closed while the commit for transactional id 'tid' had no response"),
        (lambda producer: producer.complete_transaction(producer.prepare_transaction()), "stays prepared until"),
        (
            lambda producer: producer.close(timeout_s=0),
            "closed while the abort for transactional id 'tid' had no response",
        ),
    ],
    ids=["commit", "complete", "abort by close"],
)
def test_closing_logs_pending_calls_and_their_completion_once(
    producer: Producer,
    emulator: Emulator,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[Producer], None],
    words: str,
) -> None:
    producer.begin_transaction()
    producer.send("orders", "v").result(60)
    emulator.faults.add(Fault(api="EndTxn", action=DropRequest(), count=ALWAYS))
    with caplog.at_level(logging.INFO, "dualwrite"):
        with impatient(producer, 300), contextlib.suppress(KafkaTimeoutError):
            end(producer)
        producer.close(timeout_s=0)
        producer.close(timeout_s=0)
    said = [record.getMessage() for record in caplog.records if "closed" in record.getMessage()]
    assert len(said) == 1
    assert words in said[0]


SCRIPT = """
import sys
if {without_fast}:
    sys.modules["aiokafka"] = sys.modules["uvloop"] = None
from dualwrite.producer import Producer
with Producer(bootstrap_servers=sys.argv[1], transactional_id="x", compression_type="gzip") as producer:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", "v", headers={{"h": b"1"}})
    producer.commit_transaction()
"""


@pytest.mark.parametrize("without_fast", [False, True])
def test_a_program_that_uses_a_with_block_hears_no_warning(emulator: Emulator, without_fast: bool) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error"),  # not in the development mode, which tells of slow steps
            *("-c", SCRIPT.format(without_fast=without_fast), emulator.bootstrap_servers),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
