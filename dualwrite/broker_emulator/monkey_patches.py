"""Whether gevent or eventlet has replaced threads, queues, sockets or selectors.

As greenlets of one thread, the emulator's loop and its callers would wait for each other.
"""

from __future__ import annotations

import queue
import select
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any


def assert_unpatched() -> None:
    """Raise RuntimeError if they have."""
    parts: list[Callable[..., Any]] = [threading.Lock, queue.SimpleQueue, socket.socket, socket.getaddrinfo]
    for part in [*parts, select.select, selectors.DefaultSelector]:
        library, _, _ = (getattr(part, "__module__", None) or "").partition(".")
        if library in ("gevent", "eventlet"):
            raise RuntimeError(
                f"{library} has patched this process, and the emulator's event loop needs a thread and sockets of the "
                "operating system: run it in another process (`python -m dualwrite.broker_emulator`)"
            )
