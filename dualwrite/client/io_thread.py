"""The I/O thread whose event loop all `Producer`s of a process share. It runs uvloop if that is installed.

A fork copies no threads, so a child process gets a thread of its own when it first needs one. The objects of the
parent's loop are kept alive, unused, in the child: finalising them there would unregister sockets that the parent still
uses, because both processes share the kernel's poll object.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from dualwrite.client.late_log import log_guarded
from dualwrite.client.monotonic import monotonic_s
from dualwrite.monkey_patches import assert_unpatched

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
        loop.time = monotonic_s  # type: ignore[method-assign]
        return loop
    return uvloop.new_event_loop()


class IoThread:
    """A daemon thread that runs an event loop as long as the process lives."""

    def __init__(self) -> None:
        self.loop: Final[asyncio.AbstractEventLoop] = _new_event_loop()
        self.ident: int | None = None
        """By `threading.get_ident()`. This thread must never wait for its own loop."""
        self._thread = threading.Thread(target=self._run, name="dualwrite-io", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.ident = threading.get_ident()
        while True:
            try:
                self.loop.run_forever()
            except BaseException as error:  # asyncio passes SystemExit on, and all producers need this thread
                kind = type(error).__name__
                log_guarded(_log, logging.WARNING, "a callback raised %s in the I/O thread, which continues", kind)

    def start(self, coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Run a coroutine in the loop. May be called from any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


class ThisProcess:
    """The process's I/O thread, and the number of forks that led to this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: IoThread | None = None
        self.generation = 0
        """A number that changes in a forked child: objects made under another number belong to a parent."""
        self.abandoned: list[IoThread] = []

    def after_fork_in_child(self) -> None:
        self.generation += 1
        self.lock = threading.Lock()  # another thread of the parent may have held it
        if self.thread is not None:
            self.abandoned.append(self.thread)
            self.thread = None


this_process: Final = ThisProcess()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=this_process.after_fork_in_child)


def shared_io_thread() -> IoThread:
    """Return the I/O thread of this process; start it on the first call. Raises as `assert_unpatched`."""
    assert_unpatched()
    with this_process.lock:
        if this_process.thread is None:
            this_process.thread = IoThread()
        return this_process.thread
