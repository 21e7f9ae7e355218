"""Sends the frames of a case over a connection of its own."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tests.emulator.api.raw_client import RawClient, encode
from tests.fuzz.broker import FuzzedBroker
from tests.fuzz.cases import Case, Entrance
from tests.fuzz.child import PASSWORD, USER

_PATIENCE_S: Final = 30.0
_HANDSHAKE: Final = encode("sasl_handshake", 1, 1, "fuzz", mechanism="PLAIN")
_LOGIN: Final = encode("sasl_authenticate", 2, 2, "fuzz", auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
_GREETINGS: Final = {Entrance.IN_LOGIN: (_HANDSHAKE,), Entrance.LOGGED_IN: (_HANDSHAKE, _LOGIN)}


class NoEndError(Exception):
    """The broker neither responded nor closed the connection."""


def attack(broker: FuzzedBroker, case: Case) -> None:
    """Send the case and read until the broker closes the connection. Raises NoEndError, OSError if it is not there.

    The sending half is shut down behind the last frame, so that no read waits for a response that never comes.
    """
    host, port = broker.address(case.entrance)
    with RawClient(f"{host}:{port}", "fuzz") as client:
        client.be_patient_for(_PATIENCE_S)
        for greeting in _GREETINGS.get(case.entrance, ()):
            client.send_bytes(greeting)
            client.receive_frame()
        try:
            with suppress(ConnectionError), _closed_already():
                client.send_bytes(b"".join(case.frames))
                client.read_to_the_end()
        except TimeoutError as error:
            raise NoEndError(f"no end of the connection within {_PATIENCE_S:.0f} s") from error


@contextmanager
def _closed_already() -> Iterator[None]:
    """Ignore that a connection cannot be shut down because the broker has closed it."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
