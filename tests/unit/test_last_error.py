"""The reasons for failed connections, Kafka's names of codes, and missing rights."""

from __future__ import annotations

import errno
import socket

import pytest

from dualwrite.client.error_texts import error_name, missing_right, reason_of
from dualwrite.errors import ERROR_CLASSES, Api


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (ConnectionError("the connection was lost"), "the connection was lost"),
        (OSError("Multiple exceptions: one, two"), "Multiple exceptions: one, two"),
    ],
)
def test_reasons_are_words(error: OSError, reason: str) -> None:
    assert reason_of(error) == reason


def test_names_are_kafkas() -> None:
    assert error_name(29) == "TOPIC_AUTHORIZATION_FAILED (29)"
    assert error_name(90) == "PRODUCER_FENCED (90)"
    assert error_name(9999) == "error 9999, unknown to this version of dualwrite"


def test_every_error_that_the_client_knows_has_a_name() -> None:
    assert not [code for _, code in ERROR_CLASSES if "no name" in error_name(code)]


@pytest.mark.parametrize(("api", "code"), [row for row in ERROR_CLASSES if row[1] in (29, 30, 31, 53)])
def test_every_refusal_names_a_right(api: Api, code: int) -> None:
    assert missing_right(api, code, "thing")


def test_the_missing_right_is_on_the_requested_resource() -> None:
    assert missing_right(Api.PRODUCE, 29, "orders") == "WRITE on the topic 'orders'"
    assert missing_right(Api.PRODUCE, 10, "orders") is None


def test_apis_by_their_names() -> None:
    assert [api.kafka_name for api in (Api.INIT_PRODUCER_ID, Api.PRODUCE)] == ["InitProducerId", "Produce"]
