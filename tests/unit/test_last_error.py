"""The last error, and the reasons for failed connections."""

from __future__ import annotations

import errno
import socket

import pytest

from dualwrite.client.error_texts import LastError, reason_of


def test_the_newest_error_is_returned_unless_it_is_too_old() -> None:
    last_error = LastError()
    assert last_error.last() is None
    last_error.note(10, "first")
    last_error.note(20, "second")
    assert last_error.last() == last_error.last(since_ms=20) == "second"
    assert last_error.last(since_ms=21) is None


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
