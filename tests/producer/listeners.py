"""Listeners that are no brokers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def address(listening: socket.socket) -> str:
    return f"127.0.0.1:{listening.getsockname()[1]}"


def answer_everybody(listening: socket.socket, answer: bytes) -> None:
    """Run in a thread, until the listener is closed."""

    def run() -> None:
        while True:
            try:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)
            except OSError:
                return

    threading.Thread(target=run, daemon=True).start()
