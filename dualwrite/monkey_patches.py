"""Whether gevent or eventlet has replaced what the connections to Kafka are made of.

Where threads are greenlets of one thread, a thread, a lock or a sleep of ours is theirs, and what waits for the I/O
thread waits for a greenlet, which does not run while an event loop waits for the network. Where only sockets, selectors
or queues are theirs, each belongs to the thread that has made it: a loop of asyncio cannot wait in another one, a
lookup of a name, in a thread of its own, leaves descriptors open, and a driver's thread (aiosqlite's) hears nothing.

So nothing is made in such a process, and what was made before does nothing once threads are greenlets.
"""

from __future__ import annotations

import queue
import select
import selectors
import socket
import sys
import threading
from typing import Any, Final

from dualwrite.errors import ConfigError

FIRST_LOCK: Final = threading.Lock
"""`threading.Lock` at first. As long as it is the same, threads are what they were then."""

_LIBRARIES: Final = ("gevent", "eventlet")


def assert_unpatched() -> None:
    """Raise ConfigError if threads, queues, sockets, selectors or lookups of names have been replaced."""
    if sys.modules.keys().isdisjoint(_LIBRARIES):  # each block asks; a generator would cost three calls
        return
    assert_real_threads()
    _assert_not_replaced("queue", queue.SimpleQueue)
    _assert_not_replaced("socket", socket.socket)
    _assert_not_replaced("socket", socket.getaddrinfo)
    _assert_not_replaced("select", select.select)
    _assert_not_replaced("selectors", selectors.DefaultSelector)


def assert_real_threads() -> None:
    """Raise ConfigError if threads are greenlets.

    Both libraries replace `threading.Lock` together with the threads. Their own test for a patched
    module is no answer: it also counts parts that do no harm, such as gevent's Event.
    """
    _assert_not_replaced("threading", threading.Lock)


def _assert_not_replaced(module: str, part: Any) -> None:
    library = (getattr(part, "__module__", None) or "").partition(".")[0]
    if library in _LIBRARIES:
        raise ConfigError(
            f"{library} has patched {module} in this process, and the connections to Kafka need threads and sockets of "
            "the operating system; this call has changed nothing and sent nothing: use workers with threads (gunicorn "
            "--worker-class gthread, Celery --pool=threads) or processes, and patch nothing there"
        )
