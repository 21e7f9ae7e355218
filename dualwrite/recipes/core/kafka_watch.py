"""Watch for the return of Kafka: in the I/O thread that all producers for threads share, or in a task of a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from dualwrite.client.io_thread import this_process

Steps = Coroutine[Any, Any, None]


class KafkaWatch(Protocol):
    """Runs the steps that wait for Kafka, beside the dual writes."""

    @property
    def is_running(self) -> bool:
        """Whether the steps run in this process, and in the caller's loop if it has one."""

    def start(self, steps: Steps) -> None:
        """Run `steps` instead of those that were started before."""

    def stop(self) -> None:
        """End the steps."""


class IoThreadWatch:
    """`KafkaWatch` for threads."""

    def __init__(self) -> None:
        self._running: Future[None] | None = None
        self._generation = this_process.generation

    @property
    def is_running(self) -> bool:
        running = self._running
        return running is not None and not running.done() and self._generation == this_process.generation

    def start(self, steps: Steps) -> None:
        from dualwrite.async_producer import run_in_background

        self.stop()
        self._generation = this_process.generation
        self._running = run_in_background(steps)

    def stop(self) -> None:
        if self.is_running:
            assert self._running is not None, "it is running"
            self._running.cancel()


class TaskWatch:
    """`KafkaWatch` for asyncio."""

    def __init__(self) -> None:
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        running = self._running
        return running is not None and not running.done() and running.get_loop() is _running_loop()

    def start(self, steps: Steps) -> None:
        loop = _running_loop()
        if loop is None:  # in a forked child, or while the interpreter ends: nothing waits for Kafka there
            steps.close()
            return
        self._running = loop.create_task(steps, name="dualwrite-kafka-watch")

    def stop(self) -> None:
        if self._running is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._running.cancel()


def here() -> object:
    """Return this process and its running event loop: equal where the same connections may be used."""
    return this_process.generation, _running_loop()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
